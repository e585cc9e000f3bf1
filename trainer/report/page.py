"""The page: one HTML file that needs nothing else, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.files import write_atomically
from trainer.report.accuracies import accuracies_section
from trainer.report.comparison import Comparison, compare
from trainer.report.configurations import configurations_section
from trainer.report.confusion import confusion_section
from trainer.report.costs import costs_section
from trainer.report.curves import curves_section
from trainer.report.embeddings import embeddings_section
from trainer.report.markup import Markup, element
from trainer.report.mixes import mixes_section
from trainer.report.style import style_sheet
from trainer.report.summary import runs_section, seeds_section
from trainer.runs import Run

SECTIONS = (
    runs_section,
    seeds_section,
    curves_section,
    accuracies_section,
    mixes_section,
    embeddings_section,
    confusion_section,
    costs_section,
    configurations_section,
)
# Nothing is loaded and nothing runs, whatever a name in a run may look like.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write one page about runs.

    Args:
        runs: Runs that have ended; those that differ only in the seed are shown as one method.
        path: The HTML file; its folder is made if need be.

    Raises:
        InputError: There are no runs.
        RunFolderError: A run has not ended, was made by an earlier version, or its folder is damaged.
    """
    write_page(compare(runs), path)


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page of runs that were read already."""
    content = page(comparison).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    title = _title(comparison)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    )
    style = f"<style>{style_sheet()}</style>"
    body = element("main", element("h1", title), *(section(comparison) for section in SECTIONS))
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}{element("title", title)}{Markup(style)}</head><body>{body}</body></html>\n'


def _title(comparison: Comparison) -> str:
    """Return how many runs of what on which data."""
    runs, groups = len(comparison.records), comparison.groups
    data = sorted({record.config.data for record in comparison.records})
    what = groups[0].label if len(groups) == 1 else f"{len(groups)} methods"
    return f"{runs} run{'s' if runs > 1 else ''} of {what} on {', '.join(data)}"
