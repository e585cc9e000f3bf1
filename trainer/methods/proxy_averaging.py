"""How proxies become the next global proxy: capped shares, clipped updates, and a moving average with bias correction."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.methods.base import State


def capped_shares(counts: Sequence[int], cap: float) -> list[float]:
    """Return shares that add up to 1, in proportion to sample counts but none above a cap.

    What the cap takes from the largest is poured over the others in their proportions, again and again until none is above it
    (water-filling). Where even equal shares are above the cap, they are equal.
    """
    if cap * len(counts) <= 1:
        return [1 / len(counts)] * len(counts)
    capped: set[int] = set()
    while True:
        free = sum(count for place, count in enumerate(counts) if place not in capped)
        rest = 1 - cap * len(capped)
        shares = [cap if place in capped else rest * count / free for place, count in enumerate(counts)]
        above = {place for place, share in enumerate(shares) if share > cap and place not in capped}
        if not above:
            return shares
        capped |= above


def clipped(state: State, start: State, most: float) -> State:
    """Return a state whose distance from where it started is at most ``most``, in the direction in which it lies; 0 for no limit."""
    if not most:
        return state
    moves = {name: state[name].double() - start[name].double() for name in start}
    norm = float(torch.sqrt(sum((move.square().sum() for move in moves.values()), torch.zeros((), dtype=torch.float64))))
    factor = min(1.0, most / norm) if norm > 0 else 1.0
    return {name: start[name].double() + factor * move for name, move in moves.items()}


def moving_average(average: State, new: State, decay: float) -> State:
    """Return decay * average + (1 - decay) * new, name by name, in the dtype of the average."""
    return {name: (decay * tensor.double() + (1 - decay) * new[name].double()).to(tensor.dtype) for name, tensor in average.items()}


def without_bias(average: State, decay: float, count: float) -> State:
    """Return a moving average that began at zero, divided by the weight that its ``count`` terms have together.

    The correction is that of Adam's moments (Kingma and Ba, arXiv 1412.6980, section 3).
    """
    weight = 1 - decay**count
    return {name: (tensor.double() / weight).to(tensor.dtype) for name, tensor in average.items()}
