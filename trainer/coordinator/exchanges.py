"""What rounds exchange: the rounds themselves know neither tensors nor prototypes, an exchange does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from protocol.messages import Message
from protocol.round_messages import Payload
from trainer.coordinator.admission import Claim, Verdict
from trainer.coordinator.journal import StoredUpdate


class Exchange(Protocol):
    """One kind of rounds. States are bytes, the same for the same content, so their SHA-256 names them."""

    @property
    def payload(self) -> Payload:
        """Return what a task asks for."""

    def first_state(self) -> bytes:
        """Return the server state before the first round."""

    def downlink(self, state: bytes, device: str) -> bytes:
        """Return what a device begins a round with."""

    def scalars(self, state: bytes) -> Mapping[str, float]:
        """Return the scalars that a task carries."""

    def claim(self, device: str, message: Message) -> Claim | None:
        """Return what an update says about itself, or None for a message that is no update of this exchange."""

    def judge(self, message: Message, base: bytes) -> Verdict:
        """Say whether the numbers of an update may count.

        Args:
            message: One that ``claim`` knows.
            base: What the device began with.
        """

    def store(self, message: Message) -> tuple[bytes, Mapping[str, float]]:
        """Return what the journal keeps of an update that counts, and its figures."""

    def aggregate(self, state: bytes, updates: Sequence[StoredUpdate], number: int) -> bytes:
        """Return the next server state from updates in ascending order of device ids.

        Raises:
            NumericalError: It is not finite.
        """

    def announcement(self, state: bytes, number: int) -> Message | None:
        """Return what is published for all besides the result, from a round's result."""
