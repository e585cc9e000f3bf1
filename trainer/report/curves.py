"""What happened over the rounds: loss, and accuracies where rounds recorded them; a line a method, a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.report.blocks import chart, group_keys, row_of, section
from trainer.report.comparison import Comparison, Group
from trainer.report.drawing import Scale, area, drawing, frame, line
from trainer.report.figures import percent
from trainer.report.markup import Markup
from trainer.statistics import bootstrap_interval

WIDTH, HEIGHT = 540, 300
MOST_POINTS = 150
RESAMPLES = 1000
NAMES = {"loss": "training loss", "gacc": "gACC", "pacc": "pACC", "zacc": "zACC"}
CAPTIONS = {
    "loss": "Mean training loss of each round. Methods add different terms to their losses: compare shapes, not heights.",
    "gacc": "gACC as recorded during training.",
    "pacc": "pACC as recorded during training.",
    "zacc": "zACC as recorded during training.",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """One figure of one group over the rounds.

    Attributes:
        group: The group.
        rounds: Rounds that all its runs recorded, counted from 1, (T,).
        values: Mean, lower and upper end over its seeds, (T, 3).
    """

    group: Group
    rounds: NDArray[np.float64]
    values: NDArray[np.float64]


def curves_section(comparison: Comparison) -> Markup:
    """Return charts of whatever the rounds recorded."""
    charts = []
    for name in NAMES:
        curves = [curve for group in comparison.groups if (curve := _curve(group, name)) is not None]
        if curves:
            charts.append(chart(_drawn(curves, name), CAPTIONS[name]))
    several = any(len(group.records) > 1 for group in comparison.groups)
    bands = Markup("<p>Bands are 95 % bootstrap intervals of the mean over seeds.</p>") if several else Markup()
    return section("Over the rounds", group_keys(comparison.groups), row_of(charts), bands) if charts else Markup()


def _curve(group: Group, name: str) -> Curve | None:
    """Return a figure over the rounds that every run of a group recorded, or None."""
    by_round = [{row["round"]: row[name] for row in record.rows if name in row} for record in group.records]
    common = sorted(set(by_round[0]).intersection(*by_round))
    if not common:
        return None
    kept = [common[place] for place in np.unique(np.linspace(0, len(common) - 1, min(len(common), MOST_POINTS)).astype(int))]
    values = [bootstrap_interval([own[each] for own in by_round], resamples=RESAMPLES) for each in kept]
    return Curve(group, np.array(kept) + 1, np.array(values))


def _drawn(curves: Sequence[Curve], name: str) -> Markup:
    """Return the chart of one figure."""
    everything = np.concatenate([curve.values for curve in curves])
    last = max(float(curve.rounds[-1]) for curve in curves)
    x = Scale(min(float(curve.rounds[0]) for curve in curves), last, 56, WIDTH - 24)
    y = Scale(min(0.0, float(everything.min())), max(float(everything.max()), 1e-9), HEIGHT - 46, 28)
    write = f"{{:.{_decimals(y)}f}}".format if name == "loss" else percent
    parts = [frame(x, y, ("round", NAMES[name]), ("{:,.0f}".format, write))]
    parts += [_band(curve, x, y) for curve in curves if len(curve.group.records) > 1]
    parts += [_line(curve, x, y) for curve in curves]
    ends = "; ".join(f"{curve.group.label} ends at {write(curve.values[-1, 0])}" for curve in curves)
    return drawing(WIDTH, HEIGHT, f"{NAMES[name]} over {last:.0f} rounds: {ends}", *parts)


def _decimals(scale: Scale) -> int:
    """Return the decimals that tell the ticks of a scale apart."""
    return max(0, min(6, 1 - int(np.floor(np.log10(scale.high - scale.low)))))


def _band(curve: Curve, x: Scale, y: Scale) -> Markup:
    """Return the area between the ends of a curve's intervals."""
    upper = [(x.at(each), y.at(high)) for each, high in zip(curve.rounds, curve.values[:, 2], strict=True)]
    lower = [(x.at(each), y.at(low)) for each, low in zip(curve.rounds, curve.values[:, 1], strict=True)]
    return area([*upper, *reversed(lower)], f"band {curve.group.style}")


def _line(curve: Curve, x: Scale, y: Scale) -> Markup:
    """Return a curve's means; a run of one round is a short stroke."""
    places = [(x.at(each), y.at(mean)) for each, mean in zip(curve.rounds, curve.values[:, 0], strict=True)]
    if len(places) == 1:
        places = [(places[0][0] - 6, places[0][1]), (places[0][0] + 6, places[0][1])]
    return line(places, curve.group.style)
