"""Rounds in which devices send class prototypes and get their mean, weighted by sample counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np

from edge_runtime.prototypes import Prototypes
from protocol.errors import FedtailorError
from protocol.messages import GlobalPrototypes, Message, PrototypeUpdate, check_prototypes
from protocol.reasons import reason_code
from protocol.round_messages import Payload
from protocol.tensors import decode_tensors, encode_tensors
from trainer.coordinator.admission import ACCEPTED, Claim, Verdict
from trainer.coordinator.journal import StoredUpdate
from trainer.coordinator.parameter_exchange import STATE_LIMITS

NOTHING_YET = {"devices": np.zeros(1, np.int64)}  # the format has no empty file


class PrototypeExchange:
    """The exchange of class prototypes.

    Args:
        class_count: Classes that the bundle knows.
        dimension: Feature dimension of the bundle.
    """

    payload: Payload = "prototypes"

    def __init__(self, class_count: int, dimension: int) -> None:
        self._class_count = class_count
        self._dimension = dimension

    def first_state(self) -> bytes:
        """Return the state in which nobody has sent anything."""
        return encode_tensors(NOTHING_YET)

    def downlink(self, state: bytes, device: str) -> bytes:
        """Return the global prototypes, or that there are none."""
        return state

    def scalars(self, state: bytes) -> Mapping[str, float]:
        """Return nothing."""
        return {}

    def claim(self, device: str, message: Message) -> Claim | None:
        """Return what an update says about itself; prototypes begin with no state."""
        if not isinstance(message, PrototypeUpdate):
            return None
        return Claim(device, message.round, None, int(message.counts.sum()))

    def judge(self, message: Message, base: bytes) -> Verdict:
        """Say whether the prototypes fit the bundle and can be true."""
        assert isinstance(message, PrototypeUpdate)  # noqa: S101  # `claim` saw to it
        try:
            check_prototypes(message, self._class_count, self._dimension)
        except FedtailorError as error:
            return Verdict(reason_code(error), error.sentence())
        return ACCEPTED

    def store(self, message: Message) -> tuple[bytes, Mapping[str, float]]:
        """Return the prototypes."""
        assert isinstance(message, PrototypeUpdate)  # noqa: S101
        return encode_tensors({"classes": message.classes, "means": message.means, "counts": message.counts}), {}

    def aggregate(self, state: bytes, updates: Sequence[StoredUpdate], number: int) -> bytes:
        """Return the means weighted by sample counts; a class that nobody holds is absent."""
        trees = [decode_tensors(update.content, STATE_LIMITS) for update in updates]
        total = reduce(add, (Prototypes.from_means(tree["classes"], tree["means"], tree["counts"]) for tree in trees))  # type: ignore[arg-type]
        devices = np.array([len(updates)], np.int64)
        return encode_tensors({"classes": total.classes, "means": total.means(), "counts": total.counts, "devices": devices})

    def announcement(self, state: bytes, number: int) -> Message | None:
        """Return the global prototypes."""
        tree = decode_tensors(state, STATE_LIMITS)
        if "classes" not in tree:
            return None
        return GlobalPrototypes(number, tree["classes"], tree["means"], tree["counts"], int(tree["devices"][0]))  # type: ignore[arg-type]
