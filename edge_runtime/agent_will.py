"""An agent's last will: what the broker says for a device that is gone without a farewell."""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_runtime.agent_service import NO_BUNDLE, VERSION, AgentIdentity
from edge_runtime.bundle import Bundle
from protocol.envelope import Address, seal
from protocol.fleet_messages import Presence
from protocol.topics import Topics

WILL_LIFETIME_SECONDS = 30 * 86_400.0  # it is signed when the connection is made, and said whenever that breaks
WILL_SEQUENCE = 0  # a word of the moment passes no window, and counts for the birth of its boot alone


def will_of(
    identity: AgentIdentity, current: Callable[[], Bundle | None], clock: Callable[[], float] = time.time
) -> Callable[[], tuple[str, bytes]]:
    """Return what gives topic and payload of an agent's will at each connecting.

    Args:
        identity: Who the agent is.
        current: Gives the bundle in use.
        clock: Seconds since 1970, UTC.
    """
    topic = Topics(identity.federation).presence(identity.device)

    def will() -> tuple[str, bytes]:
        bundle, now = current(), clock()
        digest = NO_BUNDLE if bundle is None else bundle.digest
        message = Presence("offline", identity.boot, digest, VERSION, "lost")
        address = Address(identity.federation, identity.device, identity.boot, digest)
        return topic, seal(message, address, WILL_SEQUENCE, (now, now + WILL_LIFETIME_SECONDS), identity.key)

    return will
