"""Sizes that grow with a device's samples, bounded from above at the corners of what it may feed.

Each free axis of a graph's inputs stands at 1 or at ``MOST_ROWS``, and a size is held at every combination of the two. Sums, products,
maxima and quotients by monomials of the axes are convex in their logarithms, so what holds at the corners holds between them. A size is
exact where it is a monomial of the axes: only by such ones may a bound be divided.
Source of the convexity: Boyd and Vandenberghe, "Convex Optimization", section 4.5 (posynomials).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import UnsafeGraphError

MOST_ROWS = 64
MOST_FREE_AXES = 4
LARGEST_EXACT = 2**31  # integers of a graph wrap beyond
CEILING = 2**256  # bounds grow no further: numbers of a million digits would be a bomb of their own


@dataclass(frozen=True)
class Extent:
    """One size, or one entry of a tensor of sizes, at every corner; where it is not exact, a bound of its absolute value."""

    at: tuple[int, ...]
    exact: bool = True

    @property
    def fixed(self) -> int | None:
        """Return the number that it always is, or None."""
        return self.at[0] if self.exact and min(self.at) == max(self.at) else None

    def bound(self) -> Extent:
        """Return the same as a bound."""
        return Extent(tuple(min(abs(value), CEILING) for value in self.at), exact=False)

    def __mul__(self, other: Extent) -> Extent:
        """Return the product."""
        return _held([one * two for one, two in zip(self.at, other.at, strict=True)], exact=self.exact and other.exact)

    def __add__(self, other: Extent) -> Extent:
        """Return the sum; of what is not fixed, a bound of sum and difference."""
        if self.fixed is not None and other.fixed is not None:
            return _held([one + two for one, two in zip(self.at, other.at, strict=True)], exact=True)
        return _held([abs(one) + abs(two) for one, two in zip(self.at, other.at, strict=True)], exact=False)

    def over(self, other: Extent) -> Extent:
        """Return the quotient, rounded as integers are."""
        if not other.exact or 0 in other.at:
            return self.bound()
        pairs = list(zip(self.at, other.at, strict=True))
        if self.exact and all(one % two == 0 for one, two in pairs):
            whole = [one // two for one, two in pairs]
            if all(abs(value) >= abs(whole[0]) for value in whole):  # else an axis divides, and between the corners it is rounded
                return _held(whole, exact=True)
        if self.fixed is not None and other.fixed is not None:
            return _held([int(math.copysign(abs(one) // abs(two), one * two)) for one, two in pairs], exact=True)
        return _held([-(-abs(one) // abs(two)) for one, two in pairs], exact=False)

    def largest(self, other: Extent) -> Extent:
        """Return what neither of both exceeds."""
        if self == other:
            return self
        return _held([max(abs(one), abs(two)) for one, two in zip(self.at, other.at, strict=True)], exact=False)

    def stretched(self, other: Extent) -> Extent:
        """Return the size of an axis when tensors with both are broadcast."""
        if self.fixed == 1 or other.fixed == 1:
            return other if self.fixed == 1 else self
        return self.largest(other)


def _held(values: Sequence[int], *, exact: bool) -> Extent:
    """Return an extent that neither wraps nor grows without end."""
    found = Extent(tuple(values), exact)
    return found if exact and max(map(abs, values)) < LARGEST_EXACT else found.bound()


@dataclass(frozen=True)
class Outline:
    """What is known of a tensor.

    Attributes:
        dims: Its sizes.
        values: The entries of a short tensor of integers with at most one axis; None where they come from data.
    """

    dims: tuple[Extent, ...]
    values: tuple[Extent, ...] | None = None


@dataclass(frozen=True)
class Corners:
    """The combinations of free axes at their ends."""

    axes: tuple[str, ...]

    @classmethod
    def of(cls, shapes: Iterable[Sequence[int | str]]) -> Corners:
        """Return those of a graph whose inputs have these shapes.

        Raises:
            UnsafeGraphError: Too many free axes.
        """
        axes = tuple(sorted({size for shape in shapes for size in shape if isinstance(size, str)}))
        if len(axes) > MOST_FREE_AXES:
            raise UnsafeGraphError("a graph has too many free axes", expected=f"at most {MOST_FREE_AXES}", got=", ".join(axes)[:100])
        return cls(axes)

    def number(self, value: int) -> Extent:
        """Return a fixed number."""
        return Extent((value,) * 2 ** len(self.axes))

    def outline(self, shape: Sequence[int | str], values: Sequence[int] | None = None) -> Outline:
        """Return a tensor of a shape with named axes."""
        ends: list[Mapping[str, int]] = [
            dict(zip(self.axes, row, strict=True)) for row in itertools.product((1, MOST_ROWS), repeat=len(self.axes))
        ]
        dims = tuple(Extent(tuple(end[size] for end in ends)) if isinstance(size, str) else self.number(size) for size in shape)
        entries = None if values is None or len(shape) > 1 else tuple(self.number(value) for value in values)
        return Outline(dims, entries)
