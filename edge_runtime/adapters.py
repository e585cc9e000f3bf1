"""LoRA factors on a device: read, checked against the graph that takes them, and fed as ordinary inputs.

Feeding works on every ONNX Runtime that we serve; adapter files of ONNX Runtime's own kind need 1.20 and are for other
languages. A graph without factors computes the base model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.arguments import as_path, require
from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.manifest import GraphSpec
from protocol.tensors import decode_tensors, encode_tensors

MAXIMUM_ADAPTER_BYTES = 64 * 1024 * 1024
MAXIMUM_RANK = 1024
RANK_METADATA = "rank"

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Adapter:
    """Checked factors.

    Attributes:
        factors: Name -> factor, float32: A (R, inputs) and B (outputs, R) of each adapted layer.
        rank: R, at least 1, the same for all.
    """

    factors: Mapping[str, Floats]
    rank: int


def make_adapter(factors: Mapping[str, NDArray[np.generic]], graph: GraphSpec) -> Adapter:
    """Return factors as an adapter for a graph.

    Args:
        factors: Name -> factor; all of the graph's optional inputs.
        graph: The manifest's entry of the graph that takes them.

    Raises:
        InputError: A name is missing or unknown, a dtype, number of axes or size differs, ranks differ, or an entry is not finite.
    """
    given = require(factors, Mapping, "an adapter", "factors by name")  # type: ignore[type-abstract]
    for name, factor in given.items():
        require(factor, np.ndarray, f"the factor {name}", "a float32 array")
    wanted = {spec.name: spec for spec in graph.inputs if spec.optional}
    if not wanted:
        raise InputError(f"{graph.file} takes no adapter", expected="a graph with optional inputs", hint="export the model with LoRA")
    if factors.keys() != wanted.keys():
        odd = sorted(factors.keys() ^ wanted.keys())
        fault = "which is not known" if odd[0] in factors else "which is missing"
        raise InputError(f"the adapter does not fit {graph.file}", expected=", ".join(wanted), got=f"{odd[0]}, {fault}")
    ranks = {rank for name, spec in wanted.items() for rank in _ranks(factors[name], spec.shape, spec.dtype, name)}
    if len(ranks) != 1 or not 1 <= next(iter(ranks)) <= MAXIMUM_RANK:
        raise InputError("the adapter's rank is wrong", expected=f"one rank from 1 to {MAXIMUM_RANK}", got=sorted(ranks))
    return Adapter({name: np.ascontiguousarray(factors[name], np.float32) for name in wanted}, ranks.pop())


def save_adapter(path: Path, adapter: Adapter) -> None:
    """Write an adapter as a safetensors file, whole or not at all.

    Raises:
        InputError: The path is a folder, or lies in none.
    """
    target = as_path(path, "an adapter's file")
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"{target} cannot be written", expected="the path of a file in a folder that is there", got=_place(target))
    write_atomically(target, encode_tensors(adapter.factors, {RANK_METADATA: str(adapter.rank)}))


def load_adapter(path: Path, graph: GraphSpec) -> Adapter:
    """Return the adapter in a safetensors file.

    Raises:
        InputError: Absent, no plain file, too large, malformed, or it does not fit the graph.
    """
    return make_adapter(decode_tensors(read_limited(as_path(path, "an adapter's file"), MAXIMUM_ADAPTER_BYTES), error=InputError), graph)


def _place(path: Path) -> str:
    """Return why nothing can be written at a path."""
    return "a folder" if path.is_dir() else "no folder around it"


def _ranks(factor: NDArray[np.generic], shape: tuple[int | str, ...], dtype: str, name: str) -> list[int]:
    """Return the sizes of a factor's named axes, or refuse a factor that does not fit."""
    if str(factor.dtype) != dtype:
        raise InputError(f"the dtype of {name} is wrong", expected=dtype, got=factor.dtype)
    fits = factor.ndim == len(shape) and all(isinstance(axis, str) or axis == size for axis, size in zip(shape, factor.shape, strict=True))
    if not fits:
        raise InputError(f"the shape of {name} is wrong", expected=shape, got=factor.shape)
    if not np.isfinite(factor).all():
        raise InputError(f"{name} holds NaN or infinity", expected="finite numbers")
    return [size for axis, size in zip(shape, factor.shape, strict=True) if isinstance(axis, str)]
