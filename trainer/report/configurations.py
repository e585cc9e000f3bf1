"""What each run was: all settings, versions and the git state, folded away."""

from __future__ import annotations

import dataclasses
import json

from trainer.report.blocks import folded, row_heading, section, table
from trainer.report.comparison import Comparison, flattened
from trainer.report.markup import Markup, element
from trainer.report.records import Record


def configurations_section(comparison: Comparison) -> Markup:
    """Return the configuration of every run."""
    parts = [folded(f"{name}: {record.config.method}, seed {record.config.seed}", _settings(record)) for name, record in comparison.named()]
    return section("Configurations", *parts)


def _settings(record: Record) -> Markup:
    """Return every setting of a run by its dotted name."""
    values = flattened(dataclasses.asdict(record.config)) | {"folder": str(record.path), "calibration": record.calibration}
    if record.engine is not None:
        values |= {"engine that ran": record.engine[0], "why this engine": record.engine[1]}
    rows = [[row_heading(name), element("td", _written(value), class_="left wrap")] for name, value in values.items()]
    return table("All settings, versions and the git state", [], rows)


def _written(value: object) -> str:
    """Return a plain value as people read it."""
    return value if isinstance(value, str) else json.dumps(value)
