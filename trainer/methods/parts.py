"""What a method hands to the exporter: modules with named tensors, one for each entry point of a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

Computation: TypeAlias = nn.Module | Callable[..., Any]


@dataclass(frozen=True)
class PartTensor:
    """One input or output of a part.

    Attributes:
        name: Name in the graph; generated weights are called ``weight.<name in the classifier>``.
        dtype: numpy name of the dtype.
        shape: Sizes; a word is a named axis whose size is free.
        meaning: A few words for the manifest.
        minimum: Smallest value that an input takes at work; the parity gate draws from there.
        maximum: Largest such value.
        optional: Whether the graph can do without it: an input such as a LoRA factor, whose named axes then have size 0.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str
    minimum: float = 0.0
    maximum: float = 1.0
    optional: bool = False


@dataclass(frozen=True)
class Part:
    """One entry point of a bundle.

    Attributes:
        entry_point: ``embed``, ``generate``, ``classify``, ``features``, ...
        module: A torch module or a pure function. Takes the inputs positionally and returns one tensor, or a tuple in the order
            of ``outputs``.
        inputs: In the order of the module's parameters.
        outputs: In the order of the module's results.
        judged_by_label: Whether the parity gate also compares the arg max of the first output.
        gathered: How many of the last inputs are handed to the module as one dictionary by name, its last argument.
    """

    entry_point: str
    module: Computation
    inputs: tuple[PartTensor, ...]
    outputs: tuple[PartTensor, ...]
    judged_by_label: bool = False
    gathered: int = 0
