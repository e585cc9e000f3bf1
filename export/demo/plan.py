"""What the demo is asked to do, and where it puts things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXCHANGING_PARTICIPANTS = 3
FEDERATION = "demo"
SERVER_KEYS = ("release", "coordinator")


@dataclass(frozen=True)
class DemoPlan:
    """The demo's settings.

    Attributes:
        data: ``digits``, ``fashion-mnist``, or a path.
        seed: Seed of everything random.
        rounds: Rounds of training; None for the data set's preset.
        broker: Broker URL; None starts the embedded broker.
        root: Folder that takes everything the demo makes.
    """

    data: str
    seed: int
    rounds: int | None
    broker: str | None
    root: Path

    @property
    def bundle(self) -> Path:
        """Return the bundle's folder."""
        return self.root / "bundle"

    def run(self, method: str) -> Path:
        """Return the run folder of a method."""
        return self.root / "runs" / method

    def device(self, name: str) -> Path:
        """Return a device's folder."""
        return self.root / "devices" / name

    @property
    def registry(self) -> Path:
        """Return the folder of the devices' keys."""
        return self.root / "keys" / "devices"

    def key_folder(self, name: str) -> Path:
        """Return where the keys of a name lie; those of devices lie apart."""
        return self.root / "keys" if name in SERVER_KEYS else self.registry

    def private_key(self, name: str) -> Path:
        """Return the private key file of a name."""
        return self.key_folder(name) / f"{name}.key"

    def public_key(self, name: str) -> Path:
        """Return the public key file of a name."""
        return self.key_folder(name) / f"{name}.pub"
