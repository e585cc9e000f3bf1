"""The personalised classifier that a program on a device holds, saves and opens again."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import ROWS_AT_A_TIME, Bundle
from edge_runtime.personalizer import TailoredWeights, generate
from edge_runtime.samples import check_samples
from protocol.errors import BundleError, InputError, NumericalError
from protocol.files import read_limited, write_atomically
from protocol.manifest import MAXIMUM_FILE_BYTES
from protocol.schema import SchemaError, decode, parse_json, to_json
from protocol.tensors import decode_tensors, encode_tensors
from protocol.trust import Trusted, TrustPolicy

WEIGHTS_SUFFIX = ".safetensors"
WEIGHTS_NAME = "personal.safetensors"
WEIGHTS_STEM = "personal-"
RECORD_NAME = "personal.json"
RECORD_BYTES = 64 * 1024
EMBEDDING = "embedding"


@dataclass(frozen=True)
class PersonalRecord:
    """What ``personal.json`` holds: which bundle, trusted how, and what was made when."""

    bundle_path: str
    bundle_digest: str
    trust: TrustPolicy
    created: int
    support_size: int
    weights_sha256: str


class Classifier:
    """A classifier tailored to one device. Calls may come from several threads.

    Args:
        bundle: The bundle it was made with.
        tailored: The generated weights.
    """

    def __init__(self, bundle: Bundle, tailored: TailoredWeights) -> None:
        self.bundle = bundle
        self.tailored = tailored
        self._session = bundle.session("classify")
        self._classes = np.array(bundle.manifest.classes)
        way = bundle.manifest.personalization
        self._each_its_own = way is not None and way.scope == "sample"

    def logits(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return class scores (B, C) float32 of raw samples (B, *shape), B from 0.

        Raises:
            InputError: Samples of another shape or dtype, or not finite.
            NumericalError: The scores are not finite.
        """
        check_samples(samples, self.bundle.manifest.raw_input)
        if len(samples) == 0:
            return np.empty((0, len(self._classes)), np.float32)
        if len(samples) <= ROWS_AT_A_TIME:
            return self._run(samples)
        return np.concatenate([self._run(samples[at : at + ROWS_AT_A_TIME]) for at in range(0, len(samples), ROWS_AT_A_TIME)])

    def predict_proba(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return class probabilities (B, C) float32 of raw samples (B, *shape); see ``logits`` for errors."""
        scores = self.logits(samples)
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))  # (B, C)
        probabilities: NDArray[np.float32] = exponents / exponents.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, samples: NDArray[np.generic]) -> NDArray[np.str_]:
        """Return class names (B,) of raw samples (B, *shape); see ``logits`` for errors."""
        labels: NDArray[np.str_] = self._classes[self.logits(samples).argmax(axis=1)]
        return labels

    def _run(self, samples: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return logits (B, C) of a bounded number of samples."""
        weights = generate(self.bundle, self.bundle.embed(samples)) if self._each_its_own else self.tailored.weights
        scores = self._session.run({"samples": samples, **weights})[0]
        if not np.isfinite(scores).all():  # an arg max over NaN would still name a class
            raise NumericalError("the classifier gave NaN or infinity", hint="are the samples in the raw range?")
        return scores

    def save(self, directory: str | Path) -> None:
        """Write the weights under the name of their digest, then ``personal.json`` which goes with them.

        Whatever interrupts this leaves the earlier classifier or the new one, whole. ``personal.safetensors`` is a
        copy of the newest weights, for people and other programs.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        embedding = self.tailored.embedding
        tensors = {**self.tailored.weights, **({} if embedding is None else {EMBEDDING: embedding})}
        data = encode_tensors(tensors) if tensors else b""
        record = PersonalRecord(
            bundle_path=str(self.bundle.path.resolve()),
            bundle_digest=self.bundle.digest,
            trust=TrustPolicy.of(self.bundle.trusted),
            created=int(time.time()),
            support_size=self.tailored.support_size,
            weights_sha256=hashlib.sha256(data).hexdigest(),
        )
        weights = folder / _weights_name(record)
        write_atomically(weights, data)
        write_atomically(folder / RECORD_NAME, to_json(record))
        write_atomically(folder / WEIGHTS_NAME, data)
        for left_over in folder.glob(f"{WEIGHTS_STEM}*{WEIGHTS_SUFFIX}"):
            if left_over != weights:
                left_over.unlink(missing_ok=True)

    @classmethod
    def open(cls, directory: str | Path, bundle: Bundle | None = None, *, trusted: Trusted | None = None) -> Classifier:
        """Open a saved classifier; its bundle is verified again.

        Args:
            directory: What ``save`` wrote.
            bundle: The bundle; where it lay when saving, if None.
            trusted: Key or policy that the bundle must satisfy; if None, the one that it was personalised with, which is as
                trustworthy as the folder.

        Raises:
            InputError: The folder holds no intact classifier.
            BundleError: The bundle is gone, altered, or another than the classifier was made with.
        """
        folder = Path(directory)
        record = _read_record(folder)
        path = folder / _weights_name(record)
        data = read_limited(path, MAXIMUM_FILE_BYTES)
        if hashlib.sha256(data).hexdigest() != record.weights_sha256:
            raise InputError(f"{path} is altered", expected="the digest in personal.json", hint="personalise again")
        bundle = bundle or Bundle.open(record.bundle_path, trusted or record.trust)
        if bundle.digest != record.bundle_digest:
            hint = "personalise again with this bundle"
            raise BundleError(
                "the classifier was made with another bundle", expected=record.bundle_digest[:16], got=bundle.digest[:16], hint=hint
            )
        tensors = decode_tensors(data, error=InputError) if data else {}
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        embedding = weights.pop(EMBEDDING, None)
        _check_weights(path, weights, bundle)
        return cls(bundle, TailoredWeights(weights, embedding, record.support_size))


def _check_weights(path: Path, weights: dict[str, NDArray[np.float32]], bundle: Bundle) -> None:
    """Refuse saved weights that the bundle's classifier does not take."""
    way = bundle.manifest.personalization
    stored = way is not None and way.scope == "device"
    inputs = bundle.manifest.graphs["classify"].inputs if stored else ()
    wanted = {spec.name: spec.shape for spec in inputs if spec.name != "samples" and not spec.optional}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != wanted:
        raise InputError(f"{path} does not fit the bundle", expected=wanted, got=found, hint="personalise again")


def _weights_name(record: PersonalRecord) -> str:
    """Return the name of the weights' file, which follows from its content."""
    return f"{WEIGHTS_STEM}{record.weights_sha256[:16]}{WEIGHTS_SUFFIX}"


def _read_record(folder: Path) -> PersonalRecord:
    """Return what ``personal.json`` holds."""
    data = read_limited(folder / RECORD_NAME, RECORD_BYTES)
    try:
        return decode(PersonalRecord, parse_json(data), RECORD_NAME)
    except SchemaError as fault:
        raise InputError(
            f"{folder / fault.where} is malformed", expected=fault.expected, got=fault.got, hint="personalise again"
        ) from fault
