"""What a coordinator follows while it runs: a registry file that changes, a folder that changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.enrolment import change
from protocol.errors import NotAllowedError, RevokedDeviceError, UnknownDeviceError
from protocol.keys import PrivateKey
from trainer.coordinator.registry import DeviceRegistry, EnrolledDevices, open_registry
from trainer.coordinator.run_rounds import participants_of

KEYS = [PrivateKey(bytes([number]) * 32).public for number in range(1, 4)]


def enrol(path: Path, device: str, number: int) -> None:
    change(path, lambda before: before.with_key(device, KEYS[number], 1.0), create=True)


def test_a_file_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    enrol(file, "pi-1", 0)
    registry = open_registry(file)
    assert isinstance(registry, EnrolledDevices)
    everybody, named = participants_of(registry, ()), participants_of(registry, ("pi-1",))
    with pytest.raises(UnknownDeviceError):
        registry.key("pi-2")
    enrol(file, "pi-2", 1)
    assert everybody() == {"pi-1", "pi-2"}
    assert named() == {"pi-1"}
    assert registry.key("pi-2") == KEYS[1]
    change(file, lambda before: before.without("pi-1", 2.0))
    assert everybody() == {"pi-2"}
    assert not named()
    assert registry.key("pi-1") == KEYS[0]  # its holder is told
    with pytest.raises(RevokedDeviceError):
        registry.check("pi-1")
    enrol(file, "pi-1", 2)
    registry.check("pi-1")
    assert registry.key("pi-1") == KEYS[2]


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.unlink()], ids=["damaged", "gone"])
def test_a_broken_file_lets_nobody_in(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    enrol(tmp_path / "devices.json", "pi-1", 0)
    registry = open_registry(tmp_path / "devices.json")
    damage(tmp_path / "devices.json")
    for ask in (registry.devices, lambda: registry.key("pi-1"), lambda: registry.check("pi-1")):
        with pytest.raises(NotAllowedError):
            ask()


def test_a_folder_is_followed_too(tmp_path: Path) -> None:
    KEYS[0].save(tmp_path / "pi-1.pub")
    now = [0.0]
    registry = DeviceRegistry(tmp_path, lambda: now[0])
    assert registry.key("pi-1") == KEYS[0]
    assert registry.devices() == {"pi-1"}
    (tmp_path / "pi-1.pub").unlink()
    with pytest.raises(UnknownDeviceError):
        registry.key("pi-1")
    KEYS[1].save(tmp_path / "pi-1.pub")
    assert registry.key("pi-1") == KEYS[1]
    KEYS[2].save(tmp_path / "pi-2.pub")
    now[0] = 6.0
    assert registry.devices() == {"pi-1", "pi-2"}
    with pytest.raises(NotAllowedError, match="keys enroll"):
        open_registry(tmp_path / "absent")
