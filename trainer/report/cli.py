"""``fedtailor report``: one page about one or more runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trainer.report.comparison import compare
from trainer.report.page import write_page
from trainer.report.plain import runs_as_values, summary_as_values
from trainer.runs import Run


@click.command(epilog="Example: fedtailor report runs/first runs/second --out report.html")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"), show_default=True, help="The page.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as one JSON object.")
def report(runs: tuple[Path, ...], out: Path, *, as_json: bool) -> None:
    """Write one HTML page about finished runs: accuracies, curves, devices, costs, settings.

    RUN is a folder that `fedtailor train` made. Runs that differ only in the seed are shown as one method, with intervals.
    """
    comparison = compare([Run.open(path) for path in runs])
    write_page(comparison, out)
    if as_json:
        content = {"report": str(out), "runs": runs_as_values(comparison), "summary": summary_as_values(comparison)}
        click.echo(json.dumps(content))
        return
    click.echo(f"runs: {len(comparison.records)}, methods: {', '.join(group.label for group in comparison.groups)}")
    click.echo(f"report: {out}")
