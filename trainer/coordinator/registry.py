"""Which devices the coordinator knows: a registry file that it follows, or a folder of public keys, ``<device id>.pub`` each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from protocol.enrolment import Enrolment
from protocol.errors import NotAllowedError, UnknownDeviceError
from protocol.keys import PublicKey
from protocol.topics import COORDINATOR, NAME

LOOK_SECONDS = 5.0  # between two looks at a whole folder
Stamp: TypeAlias = tuple[int, int, int]  # of a file's content: inode, size, time of change


class Registry(Protocol):
    """The devices that a coordinator believes; asked for each message, as devices are enrolled and revoked meanwhile."""

    def key(self, device: str) -> PublicKey:
        """Return a device's key, a revoked one too: only its holder deserves an answer.

        Raises:
            UnknownDeviceError: The device is not registered.
        """

    def check(self, device: str) -> None:
        """Refuse a device whose key is revoked.

        Raises:
            RevokedDeviceError: It is.
        """

    def devices(self) -> frozenset[str]:
        """Return the devices that may take part."""


def open_registry(path: Path) -> Registry:
    """Return the registry in a file or a folder.

    Raises:
        NotAllowedError: It is neither, or damaged.
    """
    return EnrolledDevices(path) if path.is_file() else DeviceRegistry(path)


def stamp(path: Path) -> Stamp:
    """Return what changes when a file is replaced."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


class EnrolledDevices:
    """A registry file, read again whenever it has changed.

    One that is damaged or gone meanwhile is an error and not the last good one: nobody may stay in by a broken file.

    Args:
        path: The file that ``fedtailor keys enroll`` writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[Stamp, Enrolment] | None = None
        self._keys: dict[str, PublicKey] = {}
        self._now()

    def key(self, device: str) -> PublicKey:
        """Return a device's latest key, good or revoked."""
        text = self._now().latest(device).key
        if text not in self._keys:
            self._keys[text] = PublicKey.from_hex(text)
        return self._keys[text]

    def check(self, device: str) -> None:
        """Refuse a device whose latest key is revoked."""
        self._now().check(device)

    def devices(self) -> frozenset[str]:
        """Return the devices with a good key."""
        return self._now().devices

    def _now(self) -> Enrolment:
        """Return what the file holds now."""
        try:
            now = stamp(self.path)
        except OSError as error:
            raise NotAllowedError("the registry of devices is gone", got=str(self.path), hint="put it back") from error
        if self._read is None or self._read[0] != now:
            self._read = (now, Enrolment.open(self.path))
        return self._read[1]


@dataclass(frozen=True)
class DeviceRegistry:
    """A folder of public keys; taking a file out of it ends a device's part, without a word to the device.

    Attributes:
        folder: Where they lie.
    """

    folder: Path
    timer: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[Stamp, PublicKey]] = field(default_factory=dict)
    _looked: list[tuple[float, frozenset[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse a folder that is not there."""
        if not self.folder.is_dir():
            expected = "a file of fedtailor keys enroll, or a folder of <device id>.pub files"
            raise NotAllowedError("the registry of devices is missing", expected=expected, got=str(self.folder))

    def key(self, device: str) -> PublicKey:
        """Return a device's key.

        Raises:
            UnknownDeviceError: The device is not registered.
        """
        path = self.folder / f"{device}.pub"
        if not NAME.fullmatch(device) or device == COORDINATOR or not path.is_file():  # the name comes from the wire
            raise UnknownDeviceError(
                "a message is from an unknown device", got=repr(device[:64]), hint="put its .pub file into the registry"
            )
        now = stamp(path)
        if device not in self._known or self._known[device][0] != now:
            self._known[device] = (now, PublicKey.open(path))
        return self._known[device][1]

    def check(self, device: str) -> None:
        """Refuse nobody: a folder knows of no revocation, and who is not in it is unknown."""

    def devices(self) -> frozenset[str]:
        """Return all that are in the folder, looked up every few seconds."""
        now = self.timer()
        if not self._looked or now - self._looked[0][0] > LOOK_SECONDS:
            names = {path.stem for path in self.folder.glob("*.pub")} - {COORDINATOR}
            self._looked[:] = [(now, frozenset(name for name in names if NAME.fullmatch(name)))]
        return self._looked[0][1]
