"""A network in an ONNX file, run by ONNX Runtime as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InputError, MissingExtraError
from protocol.files import require_plain_file

LOG_ERRORS_ONLY = 3
INPUT_DTYPES: Mapping[str, np.dtype[Any]] = {
    "tensor(double)": np.dtype(np.float64),
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8),
}


class OnnxNetwork:
    """The first output of a graph as a function of its first input.

    Args:
        path: The file; its weights must be inside it.

    Attributes:
        digest: SHA-256 of the file, in hexadecimal.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
        InputError: The file cannot be read, or ONNX Runtime refuses it.
    """

    def __init__(self, path: Path) -> None:
        require_plain_file(path)
        graph = path.read_bytes()
        self.path = path
        self.digest = hashlib.sha256(graph).hexdigest()
        self._session = _open(path, graph)
        inputs = self._session.get_inputs()
        if not inputs or inputs[0].type not in INPUT_DTYPES:
            got = inputs[0].type if inputs else "no input"
            raise InputError(f"{path} cannot take samples", expected=f"an input of {', '.join(INPUT_DTYPES)}", got=got)
        self._input: str = inputs[0].name
        self._dtype = INPUT_DTYPES[inputs[0].type]
        axes: list[int | str | None] = inputs[0].shape
        self._fixed_batch = axes[0] if axes and isinstance(axes[0], int) else None

    def __call__(self, samples: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the first output, (B, ...), for raw samples (B, *shape), which are cast to the graph's dtype.

        Raises:
            InputError: The samples do not fit the graph, or its first output is no tensor.
        """
        if not np.can_cast(samples.dtype, self._dtype, "same_kind"):
            raise InputError(f"samples do not fit {self.path}", expected=f"what {self._dtype} can hold", got=samples.dtype)
        size = self._fixed_batch or len(samples)
        pieces = [self._run(batch)[:count] for batch, count in _batches(samples.astype(self._dtype, copy=False), size)]
        return np.concatenate(pieces)  # (B, ...)

    def _run(self, batch: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the first output for one batch in the graph's dtype."""
        name = self._session.get_outputs()[0].name
        try:
            output: Any = self._session.run([name], {self._input: batch})[0]
        except Exception as error:  # ONNX Runtime raises classes of its own without a common root
            got = f"samples {batch.shape}: {str(error)[:300]}"
            raise InputError(f"{self.path} cannot take the samples", got=got, hint="it must take raw samples as its first input") from error
        if not isinstance(output, np.ndarray) or output.ndim == 0:
            got = type(output).__name__
            raise InputError(f"{self.path} gives no features", expected="a tensor with the batch first", got=got)
        features: NDArray[np.generic] = output  # (B, ...)
        return features


def _open(path: Path, graph: bytes) -> Any:
    """Return a session with as many threads as torch has."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingExtraError("ONNX Runtime is not installed", hint='pip install "fedtailor[train]"') from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = LOG_ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own without a common root
        hint = "the weights must be inside the file"
        raise InputError(f"ONNX Runtime refuses {path}", got=str(error)[:300], hint=hint) from error


def _batches(samples: NDArray[np.generic], size: int) -> Iterator[tuple[NDArray[np.generic], int]]:
    """Give batches of exactly ``size`` samples, the last one filled up with its last sample, and how many count."""
    for start in range(0, len(samples), size):
        batch = samples[start : start + size]
        filling = np.repeat(batch[-1:], size - len(batch), axis=0)
        yield np.concatenate([batch, filling]) if len(filling) else batch, len(batch)
