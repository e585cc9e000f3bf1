"""Which devices a federation knows: one file of enrolled public keys, and of revoked ones for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from protocol.curve import has_prime_order
from protocol.errors import KeyFileError, RevokedDeviceError, UnknownDeviceError
from protocol.files import read_limited, write_atomically
from protocol.keys import PublicKey
from protocol.locks import locked_folder
from protocol.schema import SchemaError, decode, parse_json, to_json
from protocol.topics import check_name

FORMAT = "fedtailor-registry/1"
MAXIMUM_FILE_BYTES = 32 * 1024 * 1024
LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Enrolled:
    """One key of one device.

    Attributes:
        device: Device id.
        key: Public key in hexadecimal.
        enrolled: Seconds since 1970.
        revoked: The same; None while the key is good.
    """

    device: str
    key: str
    enrolled: float
    revoked: float | None = None


@dataclass(frozen=True)
class Enrolment:
    """All keys that were ever enrolled, in the order in which they were.

    Attributes:
        format: ``fedtailor-registry/1``.
        entries: A key is in at most one of them, and at most one of a device's is not revoked.
    """

    format: str = FORMAT
    entries: tuple[Enrolled, ...] = ()
    _latest: dict[str, Enrolled] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse entries that contradict each other."""
        if self.format != FORMAT:
            raise KeyFileError("the registry is of another format", expected=FORMAT, got=self.format[:80])
        keys, latest = set[str](), dict[str, Enrolled]()
        for entry in self.entries:
            check_name("device id", entry.device)
            key = PublicKey.from_hex(entry.key).hex
            if key in keys or (entry.device in latest and latest[entry.device].revoked is None):
                raise KeyFileError("the registry contradicts itself", expected="each key once, one good key a device", got=entry.device)
            keys.add(key)
            latest[entry.device] = entry
        object.__setattr__(self, "_latest", latest)

    @classmethod
    def open(cls, path: Path) -> Enrolment:
        """Read a registry file.

        Raises:
            KeyFileError: Missing, malformed, or contradicting itself.
        """
        try:
            content = parse_json(read_limited(path, MAXIMUM_FILE_BYTES, KeyFileError))
            if not isinstance(content, dict) or content.keys() != {"format", "devices"}:
                raise SchemaError("registry", "an object with format and devices", type(content).__name__)
            entries = decode(tuple[Enrolled, ...], content["devices"], "devices")
            return cls(decode(str, content["format"], "format"), entries)
        except SchemaError as fault:
            raise KeyFileError(f"{path} is no registry of devices", expected=fault.expected, got=f"{fault.got} at {fault.where}") from fault

    def save(self, path: Path) -> None:
        """Write the file whole."""
        write_atomically(path, to_json({"format": self.format, "devices": self.entries}))

    @property
    def devices(self) -> frozenset[str]:
        """Return the devices with a good key."""
        return frozenset(device for device, entry in self._latest.items() if entry.revoked is None)

    def latest(self, device: str) -> Enrolled:
        """Return the latest key of a device, good or revoked.

        Raises:
            UnknownDeviceError: It was never enrolled.
        """
        try:
            return self._latest[device]
        except KeyError:
            raise UnknownDeviceError("an unknown device", got=repr(device[:64]), hint="fedtailor keys enroll") from None

    def check(self, device: str) -> None:
        """Refuse a device whose latest key is revoked.

        Raises:
            UnknownDeviceError: It was never enrolled.
            RevokedDeviceError: It was, and no longer is.
        """
        if self.latest(device).revoked is not None:
            raise RevokedDeviceError(f"the key of {device} is revoked", hint="give it a new pair, and enrol that: fedtailor keys enroll")

    def with_key(self, device: str, key: PublicKey, now: float) -> Enrolment:
        """Return the enrolment with one more key; the same key of the same device again changes nothing.

        Raises:
            InputError: The id cannot be one.
            KeyFileError: The key is weak, revoked or another device's, or the device has a good key.
        """
        check_name("device id", device)
        if not has_prime_order(key.raw):
            raise KeyFileError("a public key is weak or no point of its curve", hint="make a new pair: fedtailor keys new NAME")
        known = next((entry for entry in self.entries if entry.key.lower() == key.hex), None)
        if known is not None and known.revoked is not None:
            raise KeyFileError(f"this key was revoked, as that of {known.device}", hint="make a new pair: fedtailor keys new NAME")
        if known is not None and known.device != device:
            raise KeyFileError(f"this key is enrolled as that of {known.device}", hint="each device has a pair of its own")
        if known is not None:
            return self
        if device in self.devices:
            raise KeyFileError(f"{device} has another key already", hint=f"first fedtailor keys revoke {device}")
        return replace(self, entries=(*self.entries, Enrolled(device, key.hex, now)))

    def without(self, device: str, now: float) -> Enrolment:
        """Return the enrolment with a device's key revoked for ever.

        Raises:
            UnknownDeviceError: It was never enrolled.
        """
        gone = self.latest(device)
        if gone.revoked is not None:
            return self
        return replace(self, entries=tuple(replace(entry, revoked=now) if entry is gone else entry for entry in self.entries))


def change(path: Path, alter: Callable[[Enrolment], Enrolment], *, create: bool = False) -> Enrolment:
    """Change a registry file whole, one process at a time, and return what it holds now.

    Args:
        path: The file.
        alter: Old content -> new content.
        create: Whether a missing file is an empty one.

    Raises:
        KeyFileError: Missing or malformed, another process holds it, or ``alter`` refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.parent, LOCK_SECONDS, KeyFileError):
        before = Enrolment() if create and not path.exists() else Enrolment.open(path)
        after = alter(before)
        if after is not before or not path.exists():
            after.save(path)
        return after
