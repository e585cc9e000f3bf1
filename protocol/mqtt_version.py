"""Which version of MQTT to speak: 5, unless the broker really refuses it."""

from __future__ import annotations

from dataclasses import dataclass

MQTT_5, MQTT_3_1_1 = 5, 4  # as protocol levels, which stand in a CONNECT packet
UNSUPPORTED_VERSION = 0x84  # reason code; paho translates the 0x01 of MQTT 3.1.1 into it
CLOSED_IN_A_ROW = 2


@dataclass
class VersionChoice:
    """The version to try next.

    A broker refuses MQTT 5 in words, which counts for good, or by closing the connection upon it twice in a row, which may
    have other reasons: then the next connection begins with MQTT 5 again. Slowness refuses nothing, and a broker that has
    spoken MQTT 5 once never loses it.
    """

    version: int = MQTT_5
    _refused: bool = False
    _spoken: bool = False
    _closed: int = 0

    def accepted(self) -> None:
        """Note a connection that was made."""
        self._spoken = self._spoken or self.version == MQTT_5
        self._closed = 0

    def refused(self, code: int) -> None:
        """Note a refusal in words."""
        self._closed = 0
        if code == UNSUPPORTED_VERSION:
            self._refused = self.version == MQTT_5
            self.version = MQTT_3_1_1 if self._refused else MQTT_5

    def closed(self) -> None:
        """Note that the broker closed the connection upon CONNECT and said nothing."""
        self._closed += 1
        if self._closed >= CLOSED_IN_A_ROW and not self._refused and not self._spoken:
            self._closed = 0
            self.version = MQTT_3_1_1 if self.version == MQTT_5 else MQTT_5

    def failed(self) -> None:
        """Note an attempt that says nothing about versions: nobody was there, or nobody answered in time."""
        self._closed = 0

    def lost(self) -> None:
        """Note that a connection is over."""
        if not self._refused:
            self.version = MQTT_5
