"""One exchange of class prototypes, without I/O: who is expected, what was accepted, what the global prototypes are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

from edge_runtime.prototypes import Prototypes
from protocol.errors import DeadlineError, NotAllowedError, StaleMessageError
from protocol.messages import GlobalPrototypes, PrototypeUpdate, check_prototypes


class PrototypeRound:
    """Collects updates until every expected device has sent one.

    Args:
        number: Round number; updates for another round are stale.
        devices: Ids of the devices whose updates count.
        class_count: Classes that the bundle knows.
        dimension: Feature dimension of the bundle.
    """

    def __init__(self, number: int, devices: Iterable[str], class_count: int, dimension: int) -> None:
        self.number = number
        self.expected = frozenset(devices)
        self._class_count = class_count
        self._dimension = dimension
        self._accepted: dict[str, Prototypes] = {}

    @property
    def missing(self) -> list[str]:
        """Return the expected devices that have not sent an update."""
        return sorted(self.expected - self._accepted.keys())

    @property
    def accepted(self) -> list[str]:
        """Return the devices whose updates count."""
        return sorted(self._accepted)

    def accept(self, device: str, update: PrototypeUpdate) -> None:
        """Count a device's update.

        Raises:
            NotAllowedError: The device is not expected in this round.
            StaleMessageError: The update is for another round, or the device has sent one already.
            PrototypeError: Its content is wrong; nothing of it is counted.
        """
        if device not in self.expected:
            raise NotAllowedError("this device takes no part in the round", expected=" or ".join(sorted(self.expected)), got=device)
        if update.round != self.number:
            raise StaleMessageError("the update is for another round", expected=str(self.number), got=str(update.round))
        if device in self._accepted:
            raise StaleMessageError("this device's update was counted already", got=device)
        check_prototypes(update, self._class_count, self._dimension)
        self._accepted[device] = Prototypes.from_means(update.classes, update.means, update.counts)

    def result(self) -> GlobalPrototypes:
        """Return the means weighted by sample counts; a class that nobody holds is absent.

        Raises:
            DeadlineError: No device has sent an update.
        """
        if not self._accepted:
            raise DeadlineError("no device sent prototypes in time", expected=", ".join(self.missing), hint="start the devices first")
        devices = self.accepted  # the same order of sums whoever came first
        total = reduce(add, (self._accepted[device] for device in devices))
        return GlobalPrototypes(self.number, total.classes, total.means(), total.counts, len(devices))
