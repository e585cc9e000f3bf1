"""Progress bars of rounds: how far, how long still, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def round_progress(title: str, rounds: int, *, quiet: bool) -> Iterator[Callable[[int, float], None]]:
    """Show a bar on stderr and yield what is called after each round with the rounds done and the loss."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task(f"{title:>12}", total=rounds, loss="")

        def observe(done: int, loss: float) -> None:
            progress.update(bar, completed=done, loss=f"loss {loss:.3f}")

        yield observe


@contextmanager
def count_progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr and yield what is called with the number of things done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task(f"{title:>12}", total=total)
        yield lambda done: progress.update(bar, completed=done)
