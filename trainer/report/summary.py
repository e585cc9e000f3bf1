"""The tables: every run, means over seeds, and differences to the first method."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.report.blocks import cell, exact, heading, interval_cell, row_heading, section, sentences, table
from trainer.report.comparison import Comparison, Group, cut_of
from trainer.report.figures import CORRECTED, COSTS, FIGURES, PLAIN, USES, Figure, points
from trainer.report.markup import Markup, element
from trainer.report.records import Record

GLOSSARY = (
    "gACC: one model on all held-out data. pACC: mean over participants on their own test data. zACC: mean over new devices. "
    "Worst tenth: mean over the tenth of the new devices that fares worst."
)
FEW_SEEDS = 5


def runs_section(comparison: Comparison) -> Markup:
    """Return a table with one row a run, and what each method reads of a new device."""
    columns = [heading(name, "left") for name in ("run", "method")]
    columns += [heading(name) for name in ("new device gives", "seed", "rounds")] + [heading(each.heading) for each in FIGURES]
    best = _best_records(comparison)
    rows = [_run_row(name, record, best[cut_of(record.config)]) for name, record in comparison.named()]
    body = table("Each run after its last round", [[*_blank(5), *_spans()], columns], rows)
    return section("Runs", body, sentences([GLOSSARY]), sentences(_notes(comparison)))


def seeds_section(comparison: Comparison) -> Markup:
    """Return means over seeds and differences to the first method; nothing where each method ran once."""
    if all(len(group.records) < 2 for group in comparison.groups):
        return Markup()
    parts = [_means(comparison), _differences(comparison)]
    if any(1 < len(group.records) < FEW_SEEDS for group in comparison.groups):
        parts.append(sentences([f"With fewer than {FEW_SEEDS} seeds these intervals are too narrow: read them as a hint."]))
    return section("Over seeds", *parts)


def _blank(count: int) -> list[Markup]:
    """Return an empty heading over some columns."""
    return [element("td", colspan=count)]


def _spans() -> list[Markup]:
    """Return headings over the three kinds of figures."""
    kinds = (("as it is", PLAIN), ("label shift corrected", CORRECTED), ("cost", COSTS))
    return [element("th", name, scope="colgroup", colspan=len(figures)) for name, figures in kinds]


def _best_records(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    """Return the best value of each figure among the runs that worked on the same kind of cut."""
    cuts: dict[str, list[Record]] = {}
    for record in comparison.records:
        cuts.setdefault(cut_of(record.config), []).append(record)
    return {cut: {each.name: each.best([each.read(record) for record in own]) for each in FIGURES} for cut, own in cuts.items()}


def _best_means(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    """Return the best mean of each figure among the methods that worked on the same kind of cut."""
    cuts: dict[str, list[Group]] = {}
    for group in comparison.groups:
        cuts.setdefault(cut_of(group.first.config), []).append(group)
    return {cut: {each.name: each.best([group.interval(each).mean for group in own]) for each in FIGURES} for cut, own in cuts.items()}


def _run_row(name: str, record: Record, best: dict[str, float | None]) -> list[Markup]:
    """Return the cells of one run."""
    config = record.config
    cells = [row_heading(name), cell(config.method, left=True), cell(USES[record.new_device_uses])]
    cells += [cell(str(config.seed)), cell(str(config.rounds))]
    values = [(figure, figure.read(record)) for figure in FIGURES]
    return cells + [cell(exact(value, figure.write(value)), best=value == best[figure.name]) for figure, value in values]


def _notes(comparison: Comparison) -> list[str]:
    """Return what a reader must know to compare fairly."""
    notes = []
    labelled = sorted({record.config.method for record in comparison.records if record.new_device_uses == "labels"})
    if labelled:
        notes.append(f"Labels of a new device are used by {_listed(labelled)}: the others do without, so zACC is not on equal terms.")
    else:
        notes.append("No method here uses labels of a new device.")
    if len({cut_of(record.config) for record in comparison.records}) > 1:
        notes.append("The runs worked on different data or cuts: the best is marked among runs on the same, and only those are paired.")
    if comparison.repeated:
        notes.append(f"The same method and seed once more, in no mean below: {_listed(comparison.repeated)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _means(comparison: Comparison) -> Markup:
    """Return a table of means with their intervals."""
    heads = [[*_blank(2), *_spans()], [heading("method", "left"), heading("seeds"), *(heading(each.heading) for each in FIGURES)]]
    best = _best_means(comparison)
    rows = [
        [
            row_heading(group.label),
            cell(str(len(group.records))),
            *(_mean_cell(group, each, best[cut_of(group.first.config)][each.name]) for each in FIGURES),
        ]
        for group in comparison.groups
    ]
    return table("Mean over seeds and, below it, its 95 % bootstrap interval", heads, rows)


def _mean_cell(group: Group, figure: Figure, best: float | None) -> Markup:
    """Return a mean, with its interval if there are several seeds and they differ."""
    interval = group.interval(figure)
    single = len(group.records) < 2 or interval.low == interval.high or math.isnan(interval.mean)
    return interval_cell(interval, figure.write, marked="best of its column" if interval.mean == best else None, single=single)


def _differences(comparison: Comparison) -> Markup:
    """Return a table of mean differences to the first method over the seeds that both have."""
    first = comparison.groups[0]
    paired = [(group, seeds) for group in comparison.groups if len(seeds := comparison.common_seeds(group)) > 1]
    if not paired:
        return Markup()
    figures = (*PLAIN, *CORRECTED)
    heads = [
        [*_blank(2), *_spans()[:2]],
        [heading("method", "left"), heading("common seeds"), *(heading(each.heading) for each in figures)],
    ]
    rows = [
        [row_heading(group.label), cell(str(len(seeds))), *(_difference_cell(group, first, each, len(seeds)) for each in figures)]
        for group, seeds in paired
    ]
    marked = f"marked where the 95 % interval leaves out zero, from {FEW_SEEDS} seeds on"
    caption = f"Difference to {first.label} in percentage points, seed by seed; {marked}"
    return table(caption, heads, rows)


def _difference_cell(group: Group, first: Group, figure: Figure, seeds: int) -> Markup:
    """Return a mean difference and its interval."""
    interval = group.difference(figure, first)
    clear = seeds >= FEW_SEEDS and (interval.low > 0 or interval.high < 0)
    return interval_cell(interval, points, marked="the interval leaves out zero" if clear else None, single=math.isnan(interval.mean))
