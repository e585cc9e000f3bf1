"""A saved classifier: ``personal.json`` and the tensors that go with it, whole or not at all.

The tensors lie under the name of their digest, and the record names them: whatever interrupts a save leaves the earlier
classifier or the new one. ``personal.safetensors`` is a copy of the newest tensors, for people and other programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.personalizer import Correction, TailoredWeights
from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.manifest import MAXIMUM_FILE_BYTES
from protocol.schema import SchemaError, decode, parse_json, to_json
from protocol.tensors import decode_tensors, encode_tensors
from protocol.trust import TrustPolicy

WEIGHTS_SUFFIX = ".safetensors"
WEIGHTS_NAME = "personal.safetensors"
WEIGHTS_STEM = "personal-"
RECORD_NAME = "personal.json"
RECORD_BYTES = 64 * 1024
EMBEDDING, COVARIANCE, CORRECTION, RUNNING_MEAN = "embedding", "embedding_covariance", "correction_shift", "drift_running_mean"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class DriftState:
    """Where a drift monitor stood.

    Attributes:
        samples: Samples seen since the reference in use was taken.
        moved: Whether the distribution counted as moved.
        statistic: Last value of the statistic.
        alarms: Alarms since the first personalization.
    """

    samples: int
    moved: bool
    statistic: float
    alarms: int


@dataclass(frozen=True)
class PersonalRecord:
    """What ``personal.json`` holds: which bundle, trusted how, what was made when, and where its drift monitor stood."""

    bundle_path: str
    bundle_digest: str
    trust: TrustPolicy
    created: int
    support_size: int
    weights_sha256: str = ""
    correction_scale: float | None = None
    drift: DriftState | None = None


@dataclass(frozen=True, eq=False)
class PersonalFolder:
    """What a folder holds.

    Attributes:
        record: ``personal.json``.
        tailored: What personalization made.
        running_mean: Running mean embedding of the drift monitor, (E,) float32, or None.
    """

    record: PersonalRecord
    tailored: TailoredWeights
    running_mean: Floats | None = None

    def save(self, folder: Path) -> None:
        """Write everything; digest and scale in the record follow from what is written."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self._tensors()
        data = encode_tensors(tensors) if tensors else b""
        correction = self.tailored.correction
        record = replace(
            self.record,
            weights_sha256=hashlib.sha256(data).hexdigest(),
            correction_scale=None if correction is None else correction.scale,
        )
        weights = folder / weights_name(record)
        write_atomically(weights, data)
        write_atomically(folder / RECORD_NAME, to_json(record))
        write_atomically(folder / WEIGHTS_NAME, data)
        for left_over in folder.glob(f"{WEIGHTS_STEM}*{WEIGHTS_SUFFIX}"):
            if left_over != weights:
                left_over.unlink(missing_ok=True)

    def _tensors(self) -> dict[str, Floats]:
        """Return all tensors by name."""
        made = self.tailored
        shift = None if made.correction is None else made.correction.shift
        extra = {EMBEDDING: made.embedding, COVARIANCE: made.covariance, CORRECTION: shift, RUNNING_MEAN: self.running_mean}
        return {**made.weights, **{name: tensor for name, tensor in extra.items() if tensor is not None}}

    @classmethod
    def open(cls, folder: Path) -> PersonalFolder:
        """Read what ``save`` wrote.

        Raises:
            InputError: The folder holds no intact classifier.
        """
        record = read_record(folder)
        path = folder / weights_name(record)
        data = read_limited(path, MAXIMUM_FILE_BYTES)
        if hashlib.sha256(data).hexdigest() != record.weights_sha256:
            raise InputError(f"{path} is altered", expected="the digest in personal.json", hint="personalise again")
        tensors = decode_tensors(data, error=InputError) if data else {}
        floats = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        embedding, covariance, shift, mean = (floats.pop(name, None) for name in (EMBEDDING, COVARIANCE, CORRECTION, RUNNING_MEAN))
        if (shift is None) != (record.correction_scale is None):
            raise InputError(f"{folder} holds half a correction", hint="personalise again")
        correction = None if shift is None or record.correction_scale is None else Correction(record.correction_scale, shift)
        return cls(record, TailoredWeights(floats, embedding, record.support_size, covariance, correction), mean)


def check_shapes(folder: Path, found: Mapping[str, Floats | None], wanted: Mapping[str, tuple[int | str, ...] | None]) -> None:
    """Refuse saved tensors that the bundle does not take.

    Raises:
        InputError: Other names or shapes.
    """
    shapes = {name: None if tensor is None else tensor.shape for name, tensor in found.items()}
    if shapes != dict(wanted):
        raise InputError(f"{folder} does not fit the bundle", expected=dict(wanted), got=shapes, hint="personalise again")


def weights_name(record: PersonalRecord) -> str:
    """Return the name of the tensors' file, which follows from its content."""
    return f"{WEIGHTS_STEM}{record.weights_sha256[:16]}{WEIGHTS_SUFFIX}"


def read_record(folder: Path) -> PersonalRecord:
    """Return what ``personal.json`` holds.

    Raises:
        InputError: It is missing or malformed.
    """
    data = read_limited(folder / RECORD_NAME, RECORD_BYTES)
    try:
        return decode(PersonalRecord, parse_json(data), RECORD_NAME)
    except SchemaError as fault:
        raise InputError(
            f"{folder / fault.where} is malformed", expected=fault.expected, got=fault.got, hint="personalise again"
        ) from fault
