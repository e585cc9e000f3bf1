"""Runs side by side: those that differ in nothing but the seed form a group, and groups are what is compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from protocol.errors import InputError
from trainer.report.figures import Figure
from trainer.report.records import Record, read_record
from trainer.runs import Run, RunConfig
from trainer.statistics import Interval, bootstrap_interval, paired_differences

# What decides no result, or differs between the runs of one group.
ASIDE = ("environment", "checkpoint_every", "seed", "split.seed")
LONGEST_LABEL = 60


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        label: The method, and what tells it from other groups of the same method.
        place: Its place among the groups, which decides its colour.
        records: One run a seed, seeds ascending.
    """

    label: str
    place: int
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """Return the run of the lowest seed."""
        return self.records[0]

    @property
    def style(self) -> str:
        """Return the classes that give its lines and areas their colour and dash."""
        return f"s{self.place % 8} d{self.place // 8 % 3}"

    def values(self, figure: Figure) -> dict[int, float]:
        """Return a figure by seed."""
        return {record.config.seed: figure.read(record) for record in self.records}

    def interval(self, figure: Figure) -> Interval:
        """Return a figure's mean over seeds and its interval."""
        return _interval(tuple(self.values(figure).values()))

    def difference(self, figure: Figure, reference: Group) -> Interval:
        """Return the mean difference to another group over common seeds, and its interval."""
        return _interval(tuple(paired_differences(self.values(figure), reference.values(figure)).values()))


@dataclass(frozen=True, eq=False)
class Comparison:
    """All runs of a report.

    Attributes:
        records: The runs as they were given.
        names: How each is called, unique.
        groups: The groups, in the order of their first runs.
        repeated: Names of runs that repeat a group and seed; they are shown and count for no mean.
    """

    records: tuple[Record, ...]
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    repeated: tuple[str, ...]

    def named(self) -> Iterator[tuple[str, Record]]:
        """Yield each run with its name."""
        return zip(self.names, self.records, strict=True)

    def common_seeds(self, group: Group) -> list[int]:
        """Return the seeds that a group shares with the first one; none if they worked on different cuts."""
        first = self.groups[0]
        if group is first or cut_of(group.first.config) != cut_of(first.first.config):
            return []
        seeds = {record.config.seed for record in first.records}
        return [record.config.seed for record in group.records if record.config.seed in seeds]


def compare(runs: Sequence[Run]) -> Comparison:
    """Return runs side by side; a folder that is named twice counts once.

    Raises:
        InputError: There are no runs.
        RunFolderError: A run has not ended, or its folder is damaged.
    """
    unique = {run.path.resolve(): run for run in runs}
    if not unique:
        raise InputError("no run was named", expected="one run folder or more")
    records = tuple(read_record(run) for run in unique.values())
    short = [record.path.resolve().name for record in records]
    names = tuple(name if short.count(name) == 1 else str(record.path) for name, record in zip(short, records, strict=True))
    members: dict[str, dict[int, Record]] = {}
    for record in records:
        members.setdefault(_text(sameness_of(record.config)), {}).setdefault(record.config.seed, record)
    labels = _labels([next(iter(own.values())).config for own in members.values()])
    groups = tuple(
        Group(label, place, tuple(own[seed] for seed in sorted(own)))
        for place, (label, own) in enumerate(zip(labels, members.values(), strict=True))
    )
    counted = {id(record) for group in groups for record in group.records}
    return Comparison(records, names, groups, tuple(name for name, record in zip(names, records, strict=True) if id(record) not in counted))


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return found


def sameness_of(config: RunConfig) -> dict[str, Any]:
    """Return by dotted name what the runs of one group have in common."""
    everything = flattened(dataclasses.asdict(config))
    return {name: value for name, value in everything.items() if name not in ASIDE and not name.startswith("environment.")}


def cut_of(config: RunConfig) -> str:
    """Return what two runs must share, beside the seed, to have worked on the same devices."""
    split = dataclasses.asdict(config.split) | {"seed": None}
    return _text({"data": config.data, "split": split, "classes": config.task.classes})


@lru_cache(maxsize=4096)
def _interval(values: tuple[float, ...]) -> Interval:
    """Return an interval that several sections ask for."""
    return bootstrap_interval(values)


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """Return a label for each group: the method, and where several share it, the settings in which they differ."""
    contents, labels = [sameness_of(config) for config in configs], []
    for place, (config, content) in enumerate(zip(configs, contents, strict=True)):
        rivals = [other for other, each in zip(contents, configs, strict=True) if each.method == config.method]
        different = [
            f"{name.removeprefix('settings.')}={_text(value)}"
            for name, value in sorted(content.items())
            if any(_text(other.get(name)) != _text(value) for other in rivals)
        ]
        detail = ", ".join(different)
        labels.append(f"{config.method} ({detail})" if detail and len(detail) <= LONGEST_LABEL else config.method)
        if labels[-1] in labels[:-1] or len(detail) > LONGEST_LABEL:
            labels[-1] = f"{config.method}, variant {place + 1}"
    return labels


def _text(value: Any) -> str:
    """Return a plain value as one line."""
    return json.dumps(value, sort_keys=True)
