"""How many sealed messages of one peer are looked at: verifying a signature costs time, and one peer must not take it all."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RateLimit:
    """A bucket of tokens for each peer.

    Attributes:
        per_second: Messages a second that are looked at for good.
        burst: Messages that may come at once.
        dropped: How many were not looked at; whoever means well sends them again.
    """

    per_second: float = 200.0
    burst: float = 400.0
    dropped: int = 0
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)  # peer -> tokens, and when they were counted

    def allows(self, peer: str, now: float) -> bool:
        """Tell whether another message of a peer is looked at now."""
        tokens, counted = self._buckets.get(peer, (self.burst, now))
        tokens = min(self.burst, tokens + (now - counted) * self.per_second)
        allowed = tokens >= 1
        self._buckets[peer] = (tokens - 1 if allowed else tokens, now)
        self.dropped += not allowed
        return allowed
