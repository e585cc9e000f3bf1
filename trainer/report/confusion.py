"""Which classes of the new devices are taken for which: one matrix a method, its seeds together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.report.blocks import chart, row_of, section
from trainer.report.comparison import Comparison, Group
from trainer.report.drawing import CHARACTER_WIDTH, box, drawing, text
from trainer.report.markup import Markup, element, shortened

LONGEST_CLASS = 14
MOST_WRITTEN = 12
MOST_NAMED = 40
LEAST_SHARE = 0.01
DARK_SHARE = 0.55


def confusion_section(comparison: Comparison) -> Markup:
    """Return a confusion matrix for each group."""
    charts = []
    for group in comparison.groups:
        matrix = np.sum([record.confusion for record in group.records], axis=0)
        if matrix.sum():
            classes = group.first.config.task.classes
            charts.append(chart(confusion_drawing(matrix, classes, group.label), _caption(group, matrix, classes)))
    note = "Share of each true class's query samples that was taken for each class: true classes downwards, answers across."
    return section("Confusion of the new devices", element("p", note), row_of(charts)) if charts else Markup()


def shares_of(matrix: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a confusion matrix (C, C) as shares of each true class; rows without samples are zero."""
    return np.asarray(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1), np.float64)


def confusion_drawing(matrix: NDArray[np.int64], classes: Sequence[str], label: str) -> Markup:
    """Return a confusion matrix; with many classes cells get small, and names and the smallest shares are left out.

    Args:
        matrix: Counts, [true class, answered class], (C, C).
        classes: Class names in index order, C of them.
        label: Whose it is.
    """
    many = len(classes)
    side = 34 if many <= MOST_WRITTEN else 14 if many <= MOST_NAMED else max(2, 480 // many)
    names = [shortened(name, LONGEST_CLASS) for name in classes] if many <= MOST_NAMED else []
    margin = 12 + CHARACTER_WIDTH * max((len(name) for name in names), default=0)
    parts = [box(margin, 4, side * many, side * many, class_="plain")]
    parts += _cells(matrix, classes, margin, side)
    for place, name in enumerate(names):
        middle = (place + 0.5) * side
        parts.append(text(margin - 6, 4 + middle + 4, name, "end", "small"))
        parts.append(text(margin + middle + 4, 4 + side * many + 6, name, "end", "small", turned=True))
    right = float(np.trace(matrix) / matrix.sum())
    width, height = margin + side * many + 4, 4 + side * many + (margin if names else 4)
    return drawing(width, height, f"Confusion matrix of {label}: {right:.1%} of all query samples are right", *parts)


def _cells(matrix: NDArray[np.int64], classes: Sequence[str], margin: float, side: int) -> list[Markup]:
    """Return the cells that hold anything."""
    shares, totals, parts = shares_of(matrix), matrix.sum(axis=1), []
    few = len(classes) <= MOST_WRITTEN
    least = 0 if len(classes) <= MOST_NAMED else LEAST_SHARE
    for true, answered in np.argwhere((shares > 0) & (shares >= least)):
        share, x, y = float(shares[true, answered]), margin + side * int(answered), 4 + side * int(true)
        count = f"{matrix[true, answered]} of {totals[true]} ({share:.0%})"
        title = [element("title", f"{classes[true]} taken for {classes[answered]}: {count}")] if len(classes) <= MOST_NAMED else []
        parts.append(box(x, y, side, side, *title, class_="heat", fill_opacity=share))
        if few:
            parts.append(
                text(x + side / 2, y + side / 2 + 4, f"{100 * share:.0f}", "middle", "over small" if share > DARK_SHARE else "small")
            )
    return parts


def _caption(group: Group, matrix: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return whose matrix it is and the mistakes that are made most often."""
    seeds = f"{len(group.records)} seeds together" if len(group.records) > 1 else f"seed {group.first.config.seed}"
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:3]
    pairs = [(int(true), int(answered)) for true, answered in zip(*np.unravel_index(order, wrong.shape), strict=True)]
    worst = [
        f"{classes[true]} taken for {classes[answered]} ({wrong[true, answered]} of {matrix[true].sum()})"
        for true, answered in pairs
        if wrong[true, answered]
    ]
    return f"{group.label}, {seeds}, in percent. " + (f"Most often: {'; '.join(worst)}." if worst else "No mistakes.")
