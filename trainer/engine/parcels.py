"""What travels between processes: tensors as numpy arrays, which a receiver on the same machine maps without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_runtime.sampling import ClassIndex
from trainer.engine.base import Client, RoundResult
from trainer.methods.base import State, Updates

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]


def to_arrays(state: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as arrays."""
    return {name: _to_array(tensor) for name, tensor in state.items()}


def to_state(arrays: Mapping[str, Array], device: torch.device) -> State:
    """Return arrays as tensors on a device, in memory of their own."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


@dataclass(frozen=True, eq=False)
class PackedClient:
    """A client on its way.

    Attributes:
        device: Device id.
        samples: Raw samples, (N, *shape).
        labels: Class indices, (N,) int64.
        index: Where each class lies in ``labels``.
    """

    device: str
    samples: Array
    labels: Array
    index: ClassIndex

    @classmethod
    def of(cls, client: Client) -> PackedClient:
        """Return a client, packed."""
        return cls(client.device, _to_array(client.samples), _to_array(client.labels), client.index)

    def unpack(self, device: torch.device) -> Client:
        """Return the client, its tensors on a device; on the CPU they are a view of the arrays."""
        return Client(self.device, _view(self.samples).to(device), _view(self.labels).to(device), self.index)


@dataclass(frozen=True, eq=False)
class PackedResult:
    """A block's results on their way; the attributes are those of ``RoundResult`` and ``Updates``."""

    devices: tuple[str, ...]
    chunks: tuple[Arrays, ...]
    sample_counts: Array
    losses: Array
    private: Mapping[str, Arrays]
    local_steps: int

    @classmethod
    def of(cls, result: RoundResult) -> PackedResult:
        """Return results, packed."""
        return cls(
            result.updates.devices,
            tuple(to_arrays(chunk) for chunk in result.updates.chunks),
            _to_array(result.updates.sample_counts),
            _to_array(result.losses),
            {device: to_arrays(kept) for device, kept in result.private.items()},
            result.local_steps,
        )


def merge_results(parts: Sequence[PackedResult], device: torch.device, *, mixed: bool) -> RoundResult:
    """Return the round's result in device order, states on a device.

    Args:
        parts: Results of the blocks.
        device: Where states go.
        mixed: Whether the blocks' clients lie between each other; chunks are then cut into single clients.
    """
    devices = [each for part in parts for each in part.devices]
    chunks = [chunk for part in parts for chunk in part.chunks]
    order = sorted(range(len(devices)), key=devices.__getitem__)
    if mixed:
        rows = [row for chunk in chunks for row in _rows(chunk)] or [{} for _ in devices]  # nothing may go up
        chunks = [rows[place] for place in order]
    counts = torch.cat([torch.tensor(part.sample_counts) for part in parts])[order]  # (M,)
    losses = torch.cat([torch.tensor(part.losses) for part in parts])[order]  # (M,)
    updates = Updates(tuple(devices[place] for place in order), tuple(to_state(chunk, device) for chunk in chunks), counts)
    private = {each: to_state(kept, device) for part in parts for each, kept in part.private.items()}
    return RoundResult(updates, private, losses, sum(part.local_steps for part in parts))


def _rows(chunk: Arrays) -> list[Arrays]:
    """Return what each client of a chunk sent, (1, *shape) each."""
    size = len(next(iter(chunk.values()))) if chunk else 0
    return [{name: array[place : place + 1] for name, array in chunk.items()} for place in range(size)]


def _to_array(tensor: Tensor) -> Array:
    """Return a tensor as a contiguous array."""
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def _view(array: Array) -> Tensor:
    """Return a tensor over the array's memory, which may be read-only: local data are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)
