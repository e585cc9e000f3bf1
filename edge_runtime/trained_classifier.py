"""The classifier that a training on this device made: the bundle's network with the weights of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.fit_folder import HINT, counted_state
from edge_runtime.scores import TopK, likeliest
from edge_runtime.sources import ROWS_AT_A_TIME
from protocol.errors import BundleError, InputError, NumericalError
from protocol.tensors import Array

TRAINED = "classify_trained"
STATE = "state."
Floats = NDArray[np.float32]


class TrainedClassifier:
    """Classifies with a state that local steps made. Thread-safe: nothing in it changes.

    Args:
        bundle: The bundle that the state was trained with.
        state: Name -> tensor, as a learner has it.

    Raises:
        BundleError: The method's state is no classifier.
        InputError: The state is of another network.
    """

    def __init__(self, bundle: Bundle, state: Mapping[str, Array]) -> None:
        if TRAINED not in bundle.manifest.graphs:
            what = f"what {bundle.manifest.method.name} trains on a device is no classifier"
            raise BundleError(what, expected=f"the entry point {TRAINED}", hint="export with --training, or choose another method")
        weights = {f"{STATE}{name}": tensor for name, tensor in state.items()}
        wanted = {spec.name: spec.shape for spec in bundle.manifest.graphs[TRAINED].inputs if spec.name.startswith(STATE)}
        for name, shape in wanted.items():
            if name not in weights or weights[name].shape != shape:
                got = "nothing" if name not in weights else weights[name].shape
                raise InputError(f"the state does not fit the bundle at {name}", expected=shape, got=got, hint=HINT)
        self.bundle = bundle
        self._weights = {name: np.ascontiguousarray(weights[name], np.float32) for name in wanted}
        self._names = np.array(bundle.manifest.classes)

    @classmethod
    def open(cls, folder: Path, bundle: Bundle) -> TrainedClassifier:
        """Return the classifier that a training left in a folder.

        Raises:
            InputError: The folder holds no intact training, or one of another bundle.
        """
        record, state = counted_state(folder)
        if record.bundle_digest != bundle.digest:
            raise InputError(f"{folder} was trained with another bundle", expected=bundle.digest, got=record.bundle_digest, hint=HINT)
        return cls(bundle, state)

    def logits(self, samples: Array) -> Floats:
        """Return class scores (B, C) float32 of raw samples (B, *shape)."""
        accepted = self.bundle.gate.accept(samples)
        session = self.bundle.session(TRAINED)
        rows = [accepted[at : at + ROWS_AT_A_TIME] for at in range(0, len(accepted), ROWS_AT_A_TIME)]
        pieces = [session.run({"samples": piece, **self._weights})[0] for piece in rows]
        scores = np.concatenate(pieces) if pieces else np.empty((0, len(self._names)), np.float32)  # (B, C)
        if not np.isfinite(scores).all():
            raise NumericalError("the classifier gave NaN or infinity", hint="are the samples in the raw range?")
        return scores

    def top_k(self, samples: Array, k: int) -> TopK:
        """Return the k likeliest classes of raw samples (B, *shape)."""
        return likeliest(self.logits(samples), self._names, k)

    def predict(self, samples: Array) -> NDArray[np.str_]:
        """Return the class names (B,) of raw samples (B, *shape)."""
        labels: NDArray[np.str_] = self._names[self.logits(samples).argmax(axis=1)]
        return labels
