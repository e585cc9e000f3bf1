"""The service and real agents over a pipe in memory: losses, repeats, cuts and restarts of either side change no bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edge_runtime.bundle import Bundle
from tests.protocol.lossy import CALM, STORM
from tests.releases import Release
from tests.trainer.coordinator.bench import DEVICES
from tests.trainer.coordinator.memory_federation import FULL_PLAN, MemoryFederation


@pytest.fixture(scope="module")
def bundle(release: Release) -> Bundle:
    return Bundle.open(release.bundle, release.trusted)


@pytest.fixture(scope="module")
def undisturbed(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    federation = MemoryFederation(tmp_path_factory.mktemp("calm"), bundle, 0, CALM)
    assert federation.run(60)
    state = federation.rounds.state
    federation.close()
    return state


def check(federation: MemoryFederation, undisturbed: bytes) -> None:
    """Each device counts once in each round, and the states are the same bits."""
    for number in (7, 8):
        assert [update.device for update in federation.rounds.journal.updates(number)] == sorted(DEVICES)
    assert federation.rounds.state == undisturbed
    for agent in federation.agents.values():
        assert set(agent.counts.refused) <= {"duplicate", "late"}


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_changes_no_bit(bundle: Bundle, undisturbed: bytes, tmp_path: Path, seed: int) -> None:
    federation = MemoryFederation(tmp_path, bundle, seed, STORM)
    assert federation.run(590), federation.rounds.current
    check(federation, undisturbed)
    federation.close()


@pytest.mark.parametrize("seed", range(8))
def test_restarts_of_either_side_change_no_bit(bundle: Bundle, undisturbed: bytes, tmp_path: Path, seed: int) -> None:
    draws = random.Random(seed)
    federation = MemoryFederation(tmp_path, bundle, seed, STORM)
    for _ in range(10):
        if federation.run(draws.uniform(0.1, 3)):
            break
        if draws.random() < 0.5:
            federation.restart_coordinator()
        else:
            federation.restart_agent(draws.choice(DEVICES))
    assert federation.run(590), federation.rounds.current
    check(federation, undisturbed)
    federation.close()


def test_any_one_message_may_be_lost(bundle: Bundle, undisturbed: bytes, tmp_path: Path) -> None:
    calm = MemoryFederation(tmp_path / "calm", bundle, 0, CALM)
    assert calm.run(60)
    calm.close()
    assert calm.pipe.count > 60
    for number in range(1, calm.pipe.count + 1, 7):
        federation = MemoryFederation(tmp_path / str(number), bundle, 0, CALM)
        federation.pipe.drop = lambda count, _, number=number: count == number  # type: ignore[misc]
        assert federation.run(120), number
        check(federation, undisturbed)
        federation.close()


def test_a_device_that_dies_for_good_holds_nobody_up(bundle: Bundle, tmp_path: Path) -> None:
    """The deadline closes the round without it; the next rounds ask those who are there."""
    from dataclasses import replace

    plan = replace(FULL_PLAN, minimum_devices=2, deadline_seconds=20.0, rounds=6)
    federation = MemoryFederation(tmp_path, bundle, 1, CALM, plan)
    for turn, name in enumerate(DEVICES[:3]):
        federation.run(0.5 + turn)
        agent = federation.agents.pop(name)
        agent._deliverer.close()
        agent.outbox.close()
        agent.memory.close()
        federation.pipe.ports.remove(agent.port)  # type: ignore[arg-type]
    assert federation.run(400)
    counted = [row["counted"] for row in federation.rounds.journal.history()]
    assert all(count >= 2 for count in counted)  # type: ignore[operator]
    assert counted[-1] == 2
    federation.close()


def test_a_device_that_was_away_is_counted_again_at_once(bundle: Bundle, tmp_path: Path) -> None:
    from dataclasses import replace

    plan = replace(FULL_PLAN, minimum_devices=4, deadline_seconds=15.0, rounds=8)
    federation = MemoryFederation(tmp_path, bundle, 2, CALM, plan)
    federation.run(0.4)
    away = federation.agents.pop("pi-2")
    while federation.rounds.number < 11:
        federation.run(1)
    federation.agents["pi-2"] = away
    assert federation.run(400)
    last = federation.rounds.journal.round(14)
    assert last is not None
    assert "pi-2" in last.counted
    federation.close()
