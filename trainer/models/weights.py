"""Weights of a network in a safetensors file: written after pretraining, read into a network whose head may differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors

LARGEST_FILE = 4 * 2**30


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors by name."""
    write_atomically(path, encode_tensors({name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file.

    Raises:
        InputError: It is absent or damaged.
    """
    try:
        tensors = decode_tensors(read_limited(path, LARGEST_FILE, InputError), TensorLimits(), InputError)
    except InputError as error:
        hint = "make it with fedtailor pretrain, or fetch published weights as safetensors"
        raise InputError(f"weights of {path} cannot be read", got=error.sentence(), hint=hint) from error
    return {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], head: str) -> None:
    """Put weights into a network in place; those of its head stay as they are.

    Args:
        network: The network.
        weights: Tensors by their names in the network.
        head: Name of the layer that a file may lack or have for other classes.

    Raises:
        InputError: Another tensor is missing, left over, or of another shape.
    """
    own = {name: tensor for name, tensor in network.named_parameters() if not name.startswith(f"{head}.")}
    given = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{head}.")}
    for name in sorted(own.keys() | given.keys()):
        shapes = [tuple(each[name].shape) if name in each else "nothing" for each in (own, given)]
        if shapes[0] != shapes[1]:
            raise InputError(f"the weights do not fit the model at {name}", expected=shapes[0], got=shapes[1], hint="name the same model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])
