"""Topic names under ``fedtailor/v1/{federation}/``: built and parsed here only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.errors import InputError

ROOT = "fedtailor/v1"
COORDINATOR = "coordinator"  # the sender that is no device
NAME = re.compile(r"[a-z0-9-]{1,64}")


def check_name(kind: str, name: str) -> str:
    """Return a federation name or device id that may stand in a topic.

    Raises:
        InputError: It may not.
    """
    if not NAME.fullmatch(name) or name == COORDINATOR:
        raise InputError(
            f"the {kind} cannot be part of a topic", expected="1 to 64 of a-z, 0-9 and -, and not coordinator", got=repr(name[:80])
        )
    return name


@dataclass(frozen=True)
class Topics:
    """The topics of one federation."""

    federation: str

    def __post_init__(self) -> None:
        """Refuse a name that cannot stand in a topic."""
        check_name("federation", self.federation)

    @property
    def prototypes(self) -> str:
        """Return the topic of the retained global prototypes."""
        return f"{ROOT}/{self.federation}/all/prototypes"

    @property
    def any_up(self) -> str:
        """Return the filter that matches what every device sends up."""
        return f"{ROOT}/{self.federation}/devices/+/up"

    def up(self, device: str) -> str:
        """Return where a device sends."""
        return self._device(device, "up")

    def down(self, device: str) -> str:
        """Return where a device is sent to."""
        return self._device(device, "down")

    def presence(self, device: str) -> str:
        """Return where a device says that it is there."""
        return self._device(device, "presence")

    def sender(self, topic: str) -> str | None:
        """Return the device whose ``up`` topic this is, or None."""
        parts = topic.split("/")
        mine = [*ROOT.split("/"), self.federation, "devices"]
        if len(parts) == len(mine) + 2 and parts[:-2] == mine and parts[-1] == "up" and NAME.fullmatch(parts[-2]):
            return parts[-2]
        return None

    def _device(self, device: str, channel: str) -> str:
        """Return a device's topic."""
        return f"{ROOT}/{self.federation}/devices/{check_name('device id', device)}/{channel}"
