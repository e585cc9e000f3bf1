"""Topic names under ``fedtailor/v1/{federation}/``: built and parsed here only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

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
    def results(self) -> str:
        """Return the topic of the retained result of the latest round."""
        return f"{ROOT}/{self.federation}/all/down"

    @property
    def channel(self) -> str:
        """Return the topic of the retained channel head."""
        return f"{ROOT}/{self.federation}/channel"

    @property
    def any_presence(self) -> str:
        """Return the filter that matches every device's presence."""
        return f"{ROOT}/{self.federation}/devices/+/presence"

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
        return self._device_of(topic, "up")

    def present(self, topic: str) -> str | None:
        """Return the device whose ``presence`` topic this is, or None."""
        return self._device_of(topic, "presence")

    def _device_of(self, topic: str, channel: str) -> str | None:
        """Return the device whose topic of a channel this is."""
        parts = topic.split("/")
        mine = [*ROOT.split("/"), self.federation, "devices"]
        if len(parts) == len(mine) + 2 and parts[:-2] == mine and parts[-1] == channel and NAME.fullmatch(parts[-2]):
            return parts[-2]
        return None

    def _device(self, device: str, channel: str) -> str:
        """Return a device's topic."""
        return f"{ROOT}/{self.federation}/devices/{check_name('device id', device)}/{channel}"


def matches(pattern: str, topic: str) -> bool:
    """Tell whether a topic filter of MQTT, with its ``+`` and ``#``, matches a topic."""
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    return len(wanted) == len(levels) and all(each in ("+", level) for each, level in zip(wanted, levels, strict=True))


class Routes(Protocol):
    """Which topic leads to a peer, and who may have sent on a topic."""

    def topic_to(self, peer: str) -> str:
        """Return the topic that a peer receives."""

    def peer_of(self, topic: str) -> str | None:
        """Return the only peer that may publish on a topic, or None when nothing is expected there."""


@dataclass(frozen=True)
class DeviceRoutes:
    """The topics between one device and the coordinator, seen from the device."""

    topics: Topics
    device: str

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """Return what a device receives."""
        return (self.topics.down(self.device), self.topics.results, self.topics.channel, self.topics.prototypes)

    def topic_to(self, peer: str) -> str:
        """Return where a device sends; a device has one peer.

        Raises:
            InputError: The peer is another one.
        """
        if peer != COORDINATOR:
            raise InputError("a device speaks to the coordinator alone", got=repr(peer[:80]))
        return self.topics.up(self.device)

    def peer_of(self, topic: str) -> str | None:
        """Return the coordinator for every topic that a device receives."""
        return COORDINATOR if topic in self.subscriptions else None


@dataclass(frozen=True)
class CoordinatorRoutes:
    """The topics between the coordinator and its devices, seen from the coordinator."""

    topics: Topics

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """Return what a coordinator receives."""
        return (self.topics.any_up, self.topics.any_presence)

    def topic_to(self, peer: str) -> str:
        """Return where a device is sent to."""
        return self.topics.down(peer)

    def peer_of(self, topic: str) -> str | None:
        """Return the device whose topic this is."""
        return self.topics.sender(topic) or self.topics.present(topic)
