"""Which devices the coordinator knows: a folder of public keys, one ``<device id>.pub`` each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import NotAllowedError, UnknownDeviceError
from protocol.keys import PublicKey
from protocol.topics import COORDINATOR, NAME


@dataclass(frozen=True)
class DeviceRegistry:
    """The public keys of devices.

    Attributes:
        folder: Where they lie.
    """

    folder: Path
    _known: dict[str, PublicKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a folder that is not there."""
        if not self.folder.is_dir():
            raise NotAllowedError("the registry of devices is missing", expected="a folder of <device id>.pub files", got=str(self.folder))

    def key(self, device: str) -> PublicKey:
        """Return a device's key.

        Raises:
            UnknownDeviceError: The device is not registered.
        """
        if device not in self._known:
            path = self.folder / f"{device}.pub"
            if not NAME.fullmatch(device) or device == COORDINATOR or not path.is_file():  # the name comes from the wire
                raise UnknownDeviceError(
                    "a message is from an unknown device", got=repr(device[:64]), hint="put its .pub file into the registry"
                )
            self._known[device] = PublicKey.open(path)
        return self._known[device]
