"""Which clients go to which worker: consecutive blocks of the chunks that the batched engine makes.

A worker that gets whole chunks stacks the same clients as one process would, so the number of workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from weakref import WeakKeyDictionary

import torch

from trainer.engine.base import Client, start_state
from trainer.engine.cohort import _suitable_chunk
from trainer.methods.base import Method, State


@dataclass(frozen=True)
class Layout:
    """What decides with whom a client is stacked.

    Attributes:
        shapes: Names, shapes and dtypes of its state.
        chunk_size: Clients of this layout that are stacked at a time.
    """

    shapes: tuple[tuple[str, torch.Size, torch.dtype], ...]
    chunk_size: int


class Layouts:
    """Finds the layouts of clients, once for each client and method: a state may be dear to make, and its shapes stay.

    Args:
        chunk_size: Clients that are stacked at a time; None for as many as the batched engine takes on a CPU, needed on a GPU.
    """

    def __init__(self, chunk_size: int | None) -> None:
        self._chunk_size = chunk_size
        self._method: Method | None = None
        self._known: WeakKeyDictionary[Client, Layout] = WeakKeyDictionary()

    def of(self, method: Method, server: State, clients: Sequence[Client], private: Mapping[str, State]) -> list[Layout]:
        """Return each client's layout."""
        if method is not self._method:
            self._method = method
            self._known.clear()
        for client in clients:
            if client not in self._known:
                self._known[client] = self._layout(start_state(method, server, client.device, private))
        return [self._known[client] for client in clients]

    def _layout(self, state: State) -> Layout:
        """Return the layout of a state."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(state.items()))
        return Layout(shapes, self._chunk_size or _suitable_chunk(state, 1))


def chunks_of(clients: Sequence[Client], layouts: Sequence[Layout]) -> list[list[Client]]:
    """Return the clients, given in device order, as they are stacked: layout by layout, wherever clients of one layout stand."""
    groups: dict[Layout, list[Client]] = {}
    for client, layout in zip(clients, layouts, strict=True):
        groups.setdefault(layout, []).append(client)
    return [
        group[start : start + layout.chunk_size] for layout, group in groups.items() for start in range(0, len(group), layout.chunk_size)
    ]


def blocks_of(chunks: Sequence[Sequence[Client]], workers: int) -> list[list[Client]]:
    """Return each worker's clients: consecutive chunks, the same number for all, or one more for the first workers.

    Args:
        chunks: The clients as they are stacked.
        workers: Workers at hand; where there are fewer chunks, the last ones get no block.
    """
    each, more = divmod(len(chunks), workers)
    borders = accumulate((each + (place < more) for place in range(workers)), initial=0)
    return [[client for chunk in chunks[start:end] for client in chunk] for start, end in pairwise(borders) if end > start]
