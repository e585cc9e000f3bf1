"""What the demo is asked to do, and where it puts things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXCHANGING_PARTICIPANTS = 3
FEDERATION = "demo"


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

    def private_key(self, name: str) -> Path:
        """Return the private key file of a name."""
        return self.root / "keys" / f"{name}.key"

    def public_key(self, name: str) -> Path:
        """Return the public key file of a name."""
        return self.root / "keys" / f"{name}.pub"
