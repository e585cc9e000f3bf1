"""The messages on their way to a broker: no more than it allows, and each answered, or lost with the connection."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from protocol.errors import DeadlineError
from protocol.mqtt_limits import Limits

FAILURE = 0x80  # reason codes from here on say no


@dataclass
class Flight:
    """One message on its way; ``code`` is the broker's reason code, None when the connection broke before it came."""

    size: int
    awaited: bool
    over: bool = False
    code: int | None = None


class Window:
    """The messages of one connection that the broker has not acknowledged.

    A message enters, is handed to the network under a number, and leaves with the answer to this number; the answer may come
    before the number is known here. Once full, the window opens again at half: one waking for many messages.

    Args:
        state: The connection's lock.
        limits: What the broker can stand.
    """

    def __init__(self, state: threading.Condition, limits: Limits) -> None:
        self._state = state
        self._limits = limits
        self._flights: dict[int, Flight] = {}
        self._early: dict[int, int] = {}
        self._inside = 0
        self._full = False
        self._alone = False  # the one inside must stay on its own
        self._draining = 0  # those who wait until nobody is inside
        self.closed = False

    def enter(self, size: int, deadline: float) -> bool:
        """Wait for room; False when the connection is over.

        Args:
            size: Bytes of the payload.
            deadline: On the clock of ``time.monotonic``.

        Raises:
            DeadlineError: No room came before the deadline.
        """
        with self._state:
            alone = not self._limits.is_proven(size)
            self._draining += alone
            try:
                answered = self._state.wait_for(lambda: self.closed or self._has_room(alone), max(0.0, deadline - time.monotonic()))
            finally:
                self._draining -= alone
            if not answered:
                hint = f"{self._inside} messages wait for the broker's answer"
                raise DeadlineError("no room for another message came in time", expected=f"at most {self._limits.window}", hint=hint)
            if not self.closed:
                self._inside += 1
                self._alone = alone
                self._full = self._inside >= self._limits.window
            return not self.closed

    def depart(self, number: int, flight: Flight) -> None:
        """Note the number of a message that has entered."""
        with self._state:
            if number in self._early:
                self._land(flight, self._early.pop(number))
            elif self.closed:
                flight.over = True
            else:
                self._flights[number] = flight

    def leave(self) -> None:
        """Take back a message that has entered and was not sent."""
        with self._state:
            self._left()

    def answered(self, number: int, code: int) -> None:
        """Take the broker's answer."""
        with self._state:
            flight = self._flights.pop(number, None)
            if flight is None:
                self._early[number] = code
            else:
                self._land(flight, code)

    def wait(self, flight: Flight, deadline: float) -> int | None:
        """Wait for the broker's reason code; None when the connection broke before it came.

        Raises:
            DeadlineError: Neither happened before the deadline.
        """
        with self._state:
            if not self._state.wait_for(lambda: flight.over, max(0.0, deadline - time.monotonic())):
                raise DeadlineError("the broker did not acknowledge a message", expected="an answer before the deadline")
            return flight.code

    def drain(self, deadline: float) -> None:
        """Wait until nothing is on its way, or until the deadline."""
        with self._state:
            self._draining += 1
            self._state.wait_for(lambda: self.closed or self._inside == 0, max(0.0, deadline - time.monotonic()))

    def close(self) -> list[int]:
        """End all waiting; return the sizes of the messages that were lost."""
        with self._state:
            sizes = [flight.size for flight in self._flights.values()]
            for flight in self._flights.values():
                flight.over = True
            self._flights.clear()
            self.closed = True
            self._state.notify_all()
            return sizes

    def _has_room(self, alone: bool) -> bool:
        """Tell whether another message may enter."""
        return self._inside == 0 if alone else not (self._full or self._alone or self._draining)

    def _land(self, flight: Flight, code: int) -> None:
        """Note an answer."""
        flight.over, flight.code = True, code
        if code < FAILURE:
            self._limits.passed(flight.size)
        self._left()
        if flight.awaited:
            self._state.notify_all()

    def _left(self) -> None:
        """Note that there is one fewer inside, and wake those who wait for it."""
        self._inside -= 1
        if self._inside == 0:
            self._alone = False
        if self._inside <= self._limits.window // 2:
            self._full = False
        if not self._full:
            self._state.notify_all()
