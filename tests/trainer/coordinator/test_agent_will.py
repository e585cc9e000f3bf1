"""A device that dies without a farewell is offline for its coordinator, however much later."""

from __future__ import annotations

from edge_runtime.agent_service import NO_BUNDLE, AgentIdentity
from edge_runtime.agent_will import will_of
from protocol.envelope import Expectation, unseal
from protocol.fleet_messages import Presence
from protocol.keys import PrivateKey
from protocol.topics import Topics
from trainer.coordinator.presence import PresenceTable

KEY = PrivateKey(bytes(range(32)))
BUNDLE = "ab" * 32


def test_the_will_of_a_boot_ends_the_presence_of_this_boot_alone() -> None:
    now = 1_800_000_000.0
    topic, payload = will_of(AgentIdentity("demo", "pi-1", KEY, 7, None), lambda: None, clock=lambda: now)()
    assert topic == Topics("demo").presence("pi-1")
    later = now + 86_400
    envelope = unseal(payload, Expectation("demo", BUNDLE, lambda _: KEY.public), later)
    assert envelope.message == Presence("offline", 7, NO_BUNDLE, "1", "lost")
    table = PresenceTable()
    expected: tuple[tuple[int, list[str]], ...] = ((7, []), (8, ["pi-1"]))
    for boot, here in expected:
        table.heard("pi-1", Presence("online", boot, BUNDLE, "1", "ready"), later + 90)
        assert table.present(later, BUNDLE) == ["pi-1"]
        assert isinstance(envelope.message, Presence)
        table.heard("pi-1", envelope.message, envelope.header.expires)
        assert table.present(later, BUNDLE) == here
