"""A bundle store dies at every call that changes a file, and after each death a working bundle is at hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.bundle import Bundle
from edge_runtime.store import BundleStore, StoreSettings
from edge_runtime.store_journal import Journal, read_journal
from protocol.errors import StoreError
from protocol.keys import PrivateKey
from tests.edge_runtime.faults import FaultyDisk, SimulatedCrashError
from tests.edge_runtime.stores import computed_here
from tests.edge_runtime.tiny import logits, raw_samples, write_tiny

SETTINGS = StoreSettings(trial_uses=1, trial_seconds=0, trial_starts=4)
SUPPORT, QUERY = raw_samples(12, seed=3), raw_samples(4, seed=4)
OLD, NEW = 1, 2


@dataclass(frozen=True)
class Shelf:
    """Two bundles and stores in every state that the scenarios start from."""

    root: Path
    key: PrivateKey

    def bundle(self, version: int) -> Path:
        return self.root / f"bundle-{version}"

    def store(self, path: Path, settings: StoreSettings = SETTINGS) -> BundleStore:
        return BundleStore(path, self.key.public, settings, computed_here)


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """Return a folder in memory where there is one: what matters here is which calls are made, not how slow the disk is."""
    place = Path("/dev/shm")  # noqa: S108  # a fresh folder is made in it
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def path(memory: Path) -> Path:
    return memory / "store"


@pytest.fixture(scope="module")
def shelf(memory: Path) -> Shelf:
    shelf = Shelf(memory / "shelf", PrivateKey.generate())
    for version in (OLD, NEW):
        write_tiny(shelf.bundle(version), shelf.key, bundle_version=version)
    good = shelf.store(shelf.root / "good")
    good.install(shelf.bundle(OLD))
    good.promote()
    shutil.copytree(good.path, shelf.root / "trial")
    trial = shelf.store(shelf.root / "trial")
    trial.install(shelf.bundle(NEW))
    shutil.copytree(trial.path, shelf.root / "exhausted")
    for _ in range(SETTINGS.trial_starts):
        shelf.store(shelf.root / "exhausted").current()  # never closed
    shutil.copytree(trial.path, shelf.root / "both")
    shelf.store(shelf.root / "both").promote()
    return shelf


def use(store: BundleStore) -> None:
    store.current()
    store.succeeded()
    store.close()


def install_twice(shelf: Shelf, store: BundleStore) -> None:
    store.install(shelf.bundle(OLD))
    store.install(shelf.bundle(NEW))


@dataclass(frozen=True)
class Scenario:
    """What a store is, what happens to it, and which versions it may be left with."""

    start: str | None
    action: Callable[[Shelf, BundleStore], object]
    ends_with: int


SCENARIOS = {
    "install": Scenario("good", lambda shelf, store: store.install(shelf.bundle(NEW)), NEW),
    "first install": Scenario(None, lambda shelf, store: store.install(shelf.bundle(NEW)), NEW),
    "replace a trial": Scenario(None, install_twice, NEW),
    "pass the trial": Scenario("trial", lambda shelf, store: use(store), NEW),
    "promote": Scenario("trial", lambda shelf, store: store.promote(), NEW),
    "reject": Scenario("trial", lambda shelf, store: store.reject("it is slow"), OLD),
    "fall back": Scenario("exhausted", lambda shelf, store: store.current(), OLD),
    "roll back": Scenario("both", lambda shelf, store: store.rollback("it is slow"), OLD),
}

GOES_ON = {"pass the trial", "fall back"}  # a device works on though its disk does not
LONG = {"install", "replace a trial", "reject", "roll back"}  # a minute and more; the others show the same in short
MARKED = [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SCENARIOS]


def prepare(shelf: Shelf, scenario: Scenario, path: Path) -> BundleStore:
    shutil.rmtree(path, ignore_errors=True)
    if scenario.start is not None:
        shutil.copytree(shelf.root / scenario.start, path)
    return shelf.store(path)


def works(bundle: Bundle) -> int:
    """Return the version of a bundle that computes what it should."""
    found = bundle.personalize(SUPPORT).logits(QUERY)
    np.testing.assert_allclose(found, logits(SUPPORT, QUERY, "device"), atol=1e-4)
    return bundle.manifest.bundle_version


def check_survivor(shelf: Shelf, scenario: Scenario, path: Path) -> None:
    """A store after a fault: whole, with the old or the new bundle working, its counter never ahead; and it goes on."""
    fresh = shelf.store(path)
    try:
        version = works(fresh.current())
    except StoreError:
        assert scenario.start is None  # it was empty before, and it may be so now
        assert not (path / "state.json").exists() or read_journal(path) == Journal(time_floor=read_journal(path).time_floor)
    else:
        journal = read_journal(path)
        assert version in (OLD, NEW)
        assert journal.rollback_counter <= max(
            [stored.bundle_version for stored in journal.kept()] + [bad.bundle_version for bad in journal.bad]
        )
        assert journal.good is None or journal.rollback_counter >= journal.good.bundle_version
    if scenario.ends_with == NEW:
        fresh = shelf.store(path)
        fresh.install(shelf.bundle(NEW))
        assert works(fresh.current()) == NEW
        names = {folder.name for folder in (path / "bundles").iterdir()}
        assert names == {stored.digest for stored in read_journal(path).kept()}
        assert {entry.name for entry in path.iterdir()} == {"state.json", "bundles"}


def count_calls(shelf: Shelf, scenario: Scenario, path: Path) -> FaultyDisk:
    store = prepare(shelf, scenario, path)
    with FaultyDisk() as disk:
        scenario.action(shelf, store)
    assert works(shelf.store(path).current()) == scenario.ends_with
    return disk


def test_every_kind_of_call_is_seen(shelf: Shelf, path: Path) -> None:
    kinds = sum((count_calls(shelf, scenario, path).kinds for scenario in SCENARIOS.values()), start=FaultyDisk().kinds)
    assert {"open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir"} <= kinds.keys()
    assert kinds["write"] > 20


@pytest.mark.parametrize("power", [pytest.param("stays", marks=pytest.mark.slow), "is cut"])
@pytest.mark.parametrize("name", MARKED)
def test_a_crash_at_every_call_leaves_a_working_bundle(shelf: Shelf, path: Path, name: str, power: str) -> None:
    scenario = SCENARIOS[name]
    total = count_calls(shelf, scenario, path).calls
    for at in range(1, total + 1):
        store = prepare(shelf, scenario, path)
        disk = FaultyDisk(at)
        with disk, pytest.raises(SimulatedCrashError):
            scenario.action(shelf, store)
        if power == "is cut":
            disk.cut_power()
        check_survivor(shelf, scenario, path)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_reported_as_done_survives_a_power_cut(shelf: Shelf, path: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    store = prepare(shelf, scenario, path)
    with FaultyDisk() as disk:
        scenario.action(shelf, store)
    before = read_journal(path)
    disk.cut_power()
    assert read_journal(path) == before
    assert works(shelf.store(path).current()) == scenario.ends_with


@pytest.mark.parametrize("way", [pytest.param("error", marks=pytest.mark.slow), "full"])
@pytest.mark.parametrize("name", MARKED)
def test_a_disk_that_refuses_gives_one_sentence_and_changes_nothing(shelf: Shelf, path: Path, name: str, way: str) -> None:
    scenario = SCENARIOS[name]
    total, refused = count_calls(shelf, scenario, path).calls, 0
    for at in range(1, total + 1):
        store = prepare(shelf, scenario, path)
        with FaultyDisk(at, way):
            try:
                scenario.action(shelf, store)
            except StoreError as error:
                refused += "\n" not in error.sentence()
        check_survivor(shelf, scenario, path)
    assert refused > 0 or name in GOES_ON
