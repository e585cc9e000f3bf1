"""How much one peer may make this side keep: a bad one costs bounded memory, disk and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.message_checks import ReasonCode
from protocol.transfer_messages import Offer

HOUR = 3600.0


@dataclass(frozen=True)
class TransferLimits:
    """Limits of incoming transfers, for each peer where not said otherwise.

    Attributes:
        open: Transfers at once.
        bytes_per_hour: Bytes of content taken on in an hour.
        largest: Bytes of one content.
        store_bytes: Bytes on disk.
        memory_bytes: Bytes in memory, over all peers; what does not fit goes to disk.
        memory_content: Bytes of one content that may be put together in memory.
        minimum_rate: Bytes a second, as a mean over a minute, below which a transfer is put off; 0 for never.
    """

    open: int = 2
    bytes_per_hour: int = 64 * 1024 * 1024
    largest: int = 64 * 1024 * 1024
    store_bytes: int = 1024 * 1024 * 1024
    memory_bytes: int = 64 * 1024 * 1024
    memory_content: int = 1024 * 1024
    minimum_rate: float = 0.0


@dataclass
class Quota:
    """What one peer has taken of its limits."""

    limits: TransferLimits
    _taken: dict[str, tuple[float, int]] = field(default_factory=dict)

    def judge(self, offer: Offer, opened: int, stored: int, now: float) -> tuple[ReasonCode, str] | None:
        """Say why an offer cannot be taken on, or take it on; going on with one that was taken on costs nothing."""
        limits = self.limits
        if offer.size > limits.largest:
            return "too-large", f"at most {limits.largest} bytes can be taken, this has {offer.size}"
        if opened >= limits.open:
            return "busy", f"{opened} transfers are open already"
        self._taken = {name: taken for name, taken in self._taken.items() if taken[0] > now - HOUR}
        used = sum(size for name, (_, size) in self._taken.items() if name != offer.transfer)
        if used + offer.size > limits.bytes_per_hour:
            return "quota", f"{used} bytes were taken within an hour, at most {limits.bytes_per_hour} can be"
        if stored + offer.size > limits.store_bytes:
            return "quota", f"{stored} bytes are kept already, at most {limits.store_bytes} can be"
        self._taken[offer.transfer] = (now, offer.size)
        return None


# What a device takes from its coordinator, whose bundles are large and whose keys it trusts.
DEVICE_LIMITS = TransferLimits(open=4, bytes_per_hour=8 * 1024**3, largest=1024**3, store_bytes=4 * 1024**3, memory_bytes=8 * 1024**2)
