"""Where a training on a device stands: the last good state, the best one, and the folder that both are kept in.

The tensors lie under the name of their digest and the record names them, so whatever interrupts a save leaves the earlier state or the
new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.manifest import MAXIMUM_FILE_BYTES
from protocol.schema import SchemaError, decode, encode, parse_json
from protocol.tensors import Array, TensorLimits, decode_tensors, encode_tensors
from protocol.trust import TrustPolicy

RECORD_NAME = "fit.json"
RECORD_BYTES = 64 * 1024
STEM, SUFFIX = "fit-", ".safetensors"
LATEST, BEST = "latest.", "best."
HINT = "take another folder, or remove this one to begin again"


@dataclass(frozen=True)
class FitRecord:
    """What ``fit.json`` holds.

    Attributes:
        bundle_digest: Bundle that the steps are from.
        bundle_path: Where it lay.
        trust: Key or policy that it satisfied.
        phase: Name of the step.
        seed: Seed of all draws.
        data: Digest of the samples, their labels and how they were split; nothing where the caller told none.
        step: Steps taken.
        restored: How often a good state was restored.
        best_loss: Loss of the best state on validation samples; None without such.
        best_step: Steps after which it was reached.
        sha256: Digest of the tensors.
    """

    bundle_digest: str
    bundle_path: str
    trust: TrustPolicy
    phase: str
    seed: int
    data: str = ""
    step: int = 0
    restored: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    sha256: str = ""


@dataclass
class Standing:
    """The last good state of a training, and the best one by validation."""

    record: FitRecord
    latest: dict[str, Array]
    best: dict[str, Array]
    folder: Path | None = None

    def keep(self, record: FitRecord, latest: dict[str, Array], best: dict[str, Array]) -> None:
        """Make a state the last good one, on disk too where there is a folder."""
        if self.folder is not None:
            record = _save(self.folder, record, latest, best)
        self.record, self.latest, self.best = record, latest, best

    def resume(self) -> None:
        """Go on from the state in the folder, if one lies there.

        Raises:
            InputError: It is of another bundle, step or seed, of other data than the caller names, or damaged.
        """
        if self.folder is None or not (self.folder / RECORD_NAME).exists():
            return
        record = read_fit(self.folder)
        own = (self.record.bundle_digest, self.record.phase, self.record.seed)
        found = (record.bundle_digest, record.phase, record.seed)
        if own != found:
            raise InputError(f"{self.folder} holds another training", expected=_named(own), got=_named(found), hint=HINT)
        if self.record.data and self.record.data != record.data:  # rows would move from training to validation
            what = f"{self.folder} holds a training on other data, or split in another way"
            got = f"data {record.data[:16] or 'of which nothing is known'}"
            raise InputError(what, expected=f"data {self.record.data[:16]}", got=got, hint=HINT)
        latest, best = read_states(self.folder, record)
        shapes = [{name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} for state in (self.latest, latest, best)]
        if not shapes[0] == shapes[1] == shapes[2]:
            raise InputError(f"{self.folder} holds the state of another network", expected="that of the bundle", hint=HINT)
        here = replace(record, bundle_path=self.record.bundle_path, trust=self.record.trust)
        self.record, self.latest, self.best = here, latest, best


def read_fit(folder: Path) -> FitRecord:
    """Return what ``fit.json`` holds.

    Raises:
        InputError: It is missing or malformed.
    """
    data = read_limited(folder / RECORD_NAME, RECORD_BYTES)
    try:
        return decode(FitRecord, parse_json(data), RECORD_NAME)
    except SchemaError as fault:
        raise InputError(f"{folder / fault.where} is malformed", expected=fault.expected, got=fault.got, hint=HINT) from fault


def read_states(folder: Path, record: FitRecord) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the latest and the best state.

    Raises:
        InputError: The tensors are absent or altered.
    """
    path = folder / _name(record.sha256)
    data = read_limited(path, MAXIMUM_FILE_BYTES)
    if hashlib.sha256(data).hexdigest() != record.sha256:
        raise InputError(f"{path} is altered", expected=f"the digest in {RECORD_NAME}", hint=HINT)
    tensors = decode_tensors(data, TensorLimits(magnitude=None), error=InputError)
    latest = {name.removeprefix(LATEST): tensor for name, tensor in tensors.items() if name.startswith(LATEST)}
    best = {name.removeprefix(BEST): tensor for name, tensor in tensors.items() if name.startswith(BEST)}
    return latest, best or dict(latest)


def counted_state(folder: Path) -> tuple[FitRecord, dict[str, Array]]:
    """Return a saved training's record and the state that counts: the best by validation if there was any, else the latest."""
    record = read_fit(folder)
    latest, best = read_states(folder, record)
    return record, latest if record.best_loss is None else best


def _save(folder: Path, record: FitRecord, latest: Mapping[str, Array], best: Mapping[str, Array]) -> FitRecord:
    """Write both states and then the record that names them; return the record."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {LATEST + name: tensor for name, tensor in latest.items()}
    if record.best_loss is not None:
        tensors |= {BEST + name: tensor for name, tensor in best.items()}
    data = encode_tensors(tensors)
    record = replace(record, sha256=hashlib.sha256(data).hexdigest())
    write_atomically(folder / _name(record.sha256), data)
    write_atomically(folder / RECORD_NAME, (json.dumps(encode(record), indent=2) + "\n").encode())
    for path in folder.glob(f"{STEM}*{SUFFIX}"):
        if path.name != _name(record.sha256):
            path.unlink(missing_ok=True)
    return record


def _name(digest: str) -> str:
    """Return the name of the tensors' file."""
    return f"{STEM}{digest[:16]}{SUFFIX}"


def _named(training: tuple[str, str, int]) -> str:
    """Return which training this is, for people."""
    digest, phase, seed = training
    return f"{phase} of bundle {digest[:16]} with seed {seed}"
