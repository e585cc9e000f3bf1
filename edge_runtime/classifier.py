"""The personalised classifier that a program on a device holds, saves and opens again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.adapters import Adapter, load_adapter, make_adapter
from edge_runtime.bundle import Bundle
from edge_runtime.personal_folder import DriftState, PersonalFolder, PersonalRecord, check_shapes
from edge_runtime.personalizer import LOG_PRIOR, TailoredWeights, generate
from edge_runtime.scores import TopK, likeliest, probabilities_of
from edge_runtime.sources import ROWS_AT_A_TIME
from protocol.arguments import as_path, require
from protocol.errors import BundleError, InputError, NumericalError
from protocol.trust import Trusted, TrustPolicy

Array = NDArray[np.generic]
Floats = NDArray[np.float32]


class Classifier:
    """A classifier tailored to one device. Calls may come from several threads.

    Args:
        bundle: The bundle it was made with.
        tailored: The generated weights.
        bake: Whether to build a session in which the generated weights are constants: some milliseconds once, and each
            prediction is faster. Otherwise they are fed.

    Raises:
        InputError: Each sample makes its own weights, so nothing can be baked.
    """

    def __init__(self, bundle: Bundle, tailored: TailoredWeights, *, bake: bool = False) -> None:
        self.bundle = require(bundle, Bundle, "the bundle", "edge_runtime.Bundle")
        self.tailored = require(tailored, TailoredWeights, "what was tailored", "the weights that Bundle.personalize makes")
        self.baked = bake
        way = bundle.manifest.personalization
        self._each_its_own = way is not None and way.scope == "sample"
        self._classes = np.array(bundle.manifest.classes)
        self._gate = bundle.gate
        if bake and self._each_its_own:
            raise InputError("each sample makes its own weights", expected="scope device for baking", hint="leave bake out")
        weights, correction = dict(tailored.weights), tailored.correction
        self._scale = 1.0 if correction is None else correction.scale
        self._shift = None if correction is None else correction.shift / np.float32(correction.scale)
        if LOG_PRIOR in weights and self._shift is not None:  # a graph that adds a log prior corrects by itself
            weights[LOG_PRIOR], self._shift = self._shift, None
        self._session = bundle.baked_session("classify", weights) if bake and weights else bundle.session("classify")
        self._constants: Mapping[str, Floats] = weights
        self._fed: Mapping[str, Array] = {} if bake else weights
        self._factors: Mapping[str, Array] = {}

    def use_adapter(self, adapter: Adapter | str | Path | None) -> None:
        """Predict with these LoRA factors from now on, on the same session; with None, with none.

        A prediction that runs in another thread sees the former factors or the new ones, never some of each.

        Args:
            adapter: Factors, or the file that holds them.

        Raises:
            InputError: The network takes no factors, or not these.
        """
        spec = self.bundle.manifest.graphs["classify"]
        if isinstance(adapter, str | Path):
            adapter = load_adapter(as_path(adapter, "an adapter's file"), spec)
        if adapter is None:
            self._factors = {}
            return
        own = require(adapter, Adapter, "an adapter", "edge_runtime.adapters.Adapter, the path of one, or None")
        self._factors = make_adapter(own.factors, spec).factors

    @property
    def advice(self) -> tuple[str, ...]:
        """Return sentences about a support set that may not serve; none if it was fine."""
        return self.tailored.advice

    @property
    def session_threads(self) -> int:
        """Return the threads of one call."""
        return self._session.threads

    def bare_session(self) -> Callable[[Mapping[str, Array]], Sequence[Array]]:
        """Return a call of ONNX Runtime itself on a session like this one with constant weights, with nothing of ours around it."""
        return self.bundle.baked_session("classify", self._constants).bare()

    def bare_fed_call(self, samples: Array) -> Callable[[], Sequence[Array]]:
        """Return a call of ONNX Runtime itself that feeds these samples (B, *shape) and the weights, with nothing of ours around it."""
        bare, feeds = self.bundle.session("classify").bare(), {"samples": samples, **self._constants}
        return lambda: bare(feeds)

    def predict(self, samples: Array) -> NDArray[np.str_]:
        """Return class names (B,) of raw samples (B, *shape), B from 0.

        Raises:
            InputError: Samples that do not fit; see ``SampleGate.accept``.
            NumericalError: The scores are not finite.
        """
        labels: NDArray[np.str_] = self._classes[self._scores(samples).argmax(axis=1)]
        return labels

    def logits(self, samples: Array) -> Floats:
        """Return class scores (B, C) float32 of raw samples (B, *shape), corrected if so personalised; errors as ``predict``."""
        scores = self._scores(samples)
        return scores if self._scale == 1.0 else scores * np.float32(self._scale)

    def predict_proba(self, samples: Array) -> Floats:
        """Return class probabilities (B, C) float32 of raw samples (B, *shape); errors as ``predict``."""
        return probabilities_of(self.logits(samples))

    def top_k(self, samples: Array, k: int) -> TopK:
        """Return the k likeliest classes of raw samples (B, *shape), or all where there are fewer; errors as ``predict``."""
        return likeliest(self.logits(samples), self._classes, k)

    def _scores(self, samples: Array) -> Floats:
        """Return scores (B, C) whose order is that of the classes' probabilities, of a bounded number of samples at a time."""
        accepted = self._gate.accept(samples)
        count, factors = len(accepted), self._factors  # the same for all rows, whoever changes them meanwhile
        if 0 < count <= ROWS_AT_A_TIME:
            return self._run(accepted, factors)
        if count == 0:
            return np.empty((0, len(self._classes)), np.float32)
        return np.concatenate([self._run(accepted[at : at + ROWS_AT_A_TIME], factors) for at in range(0, count, ROWS_AT_A_TIME)])

    def _run(self, samples: Array, factors: Mapping[str, Array]) -> Floats:
        """Return scores (B, C) of 1 to 256 samples."""
        weights = generate(self.bundle, self.bundle.embed(samples)) if self._each_its_own else self._fed
        scores = self._session.run({"samples": samples, **weights, **factors})[0]
        flat = scores.ravel()
        if not math.isfinite(flat.dot(flat)) and not np.isfinite(scores).all():  # an arg max over NaN would still name a class
            raise NumericalError("the classifier gave NaN or infinity", hint="are the samples in the raw range?")
        return scores if self._shift is None else scores + self._shift

    def save(self, directory: str | Path, drift: DriftState | None = None, running_mean: Floats | None = None) -> None:
        """Write weights, embedding and ``personal.json`` into a folder.

        Whatever interrupts this leaves the earlier classifier or the new one, whole.

        Args:
            directory: The folder; made if need be.
            drift: Where the drift monitor stands, if there is one.
            running_mean: Its running mean embedding, (E,) float32.

        Raises:
            InputError: The path is no folder's.
        """
        folder = as_path(directory, "the classifier's folder")
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is no folder", expected="a folder, or a path where one can be made", got="a file")
        record = PersonalRecord(
            bundle_path=str(self.bundle.path.resolve()),
            bundle_digest=self.bundle.digest,
            trust=TrustPolicy.of(self.bundle.trusted),
            created=int(time.time()),
            support_size=self.tailored.support_size,
            drift=drift,
        )
        PersonalFolder(record, self.tailored, running_mean).save(folder)

    @classmethod
    def open(cls, directory: str | Path, bundle: Bundle | None = None, *, trusted: Trusted | None = None, bake: bool = False) -> Classifier:
        """Open a saved classifier; its bundle is verified again.

        Args:
            directory: What ``save`` wrote.
            bundle: The bundle; where it lay when saving, if None.
            trusted: Key or policy that the bundle must satisfy; if None, the one that it was personalised with, which is as
                trustworthy as the folder.
            bake: As for the constructor.

        Raises:
            InputError: The folder holds no intact classifier.
            BundleError: The bundle is gone, altered, or another than the classifier was made with.
        """
        folder = as_path(directory, "the classifier's folder")
        saved = PersonalFolder.open(folder)
        opened = bundle_of(saved.record, bundle, trusted)
        check_saved(folder, saved, opened)
        return cls(opened, saved.tailored, bake=bake)


def bundle_of(record: PersonalRecord, bundle: Bundle | None, trusted: Trusted | None) -> Bundle:
    """Return the bundle that a saved classifier was made with.

    Raises:
        BundleError: It is gone, altered, or another one.
    """
    if bundle is None:
        opened = Bundle.open(record.bundle_path, record.trust if trusted is None else trusted)
    else:
        opened = require(bundle, Bundle, "the bundle", "edge_runtime.Bundle, or None", BundleError)
    if opened.digest != record.bundle_digest:
        expected, got = record.bundle_digest[:16], opened.digest[:16]
        hint = "personalise again with this bundle"
        raise BundleError("the classifier was made with another bundle", expected=expected, got=got, hint=hint)
    return opened


def check_saved(folder: Path, saved: PersonalFolder, bundle: Bundle) -> None:
    """Refuse saved tensors that the bundle does not take.

    Raises:
        InputError: Other names or shapes.
    """
    manifest, made = bundle.manifest, saved.tailored
    way = manifest.personalization
    stored = way is not None and way.scope == "device"
    inputs = manifest.graphs["classify"].inputs if stored else ()
    check_shapes(folder, made.weights, {spec.name: spec.shape for spec in inputs if spec.name != "samples" and not spec.optional})
    size = -1 if way is None else way.embedding_dimension  # no tensor has that size
    extra = {"embedding": made.embedding, "covariance": made.covariance, "running mean": saved.running_mean}
    wanted: dict[str, tuple[int | str, ...]] = {"embedding": (size,), "covariance": (size, size), "running mean": (size,)}
    given = {name: tensor for name, tensor in extra.items() if tensor is not None}
    check_shapes(folder, given, {name: wanted[name] for name in given})
    if made.correction is not None:
        check_shapes(folder, {"correction": made.correction.shift}, {"correction": (len(manifest.classes),)})
