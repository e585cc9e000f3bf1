"""Which devices are there: from births and farewells that expire, and from whatever else a device says."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.fleet_messages import Presence

PRESENCE_LIFETIME_SECONDS = 90.0  # a device says every 30 s that it is there


@dataclass(frozen=True)
class _Device:
    """The latest that is known of a device."""

    boot: int
    until: float
    bundle: str


class PresenceTable:
    """Devices and until when they count as present, seconds since 1970."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def heard(self, device: str, presence: Presence, expires: float) -> None:
        """Take a birth or a farewell; one of an earlier boot says nothing, as MQTT keeps the order of one topic only."""
        known = self._devices.get(device)
        if known is not None and presence.boot < known.boot:
            return
        until = expires if presence.status == "online" else 0.0
        self._devices[device] = _Device(presence.boot, until, presence.bundle)

    def seen(self, device: str, now: float) -> None:
        """Note any other sign of life; it says nothing of the bundle, so a device must have been born before."""
        known = self._devices.get(device)
        if known is not None:
            self._devices[device] = _Device(known.boot, max(known.until, now + PRESENCE_LIFETIME_SECONDS), known.bundle)

    def present(self, now: float, bundle: str | None = None) -> list[str]:
        """Return the devices that are there, ascending; with a digest, those that have this bundle in use."""
        return sorted(name for name, known in self._devices.items() if known.until > now and (bundle is None or known.bundle == bundle))

    def next_end(self) -> float:
        """Return when the first device stops being present, or infinity."""
        return min((known.until for known in self._devices.values() if known.until > 0), default=float("inf"))
