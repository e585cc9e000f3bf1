"""``fedtailor edge bench``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge_runtime.options import PROVIDERS, THREADS, TRUSTED

if TYPE_CHECKING:
    from edge_runtime.bench.measure import BenchReport


@click.command(epilog="Example: fedtailor edge bench bundle/ --trusted release.pub")
@click.argument("bundle", type=click.Path(path_type=Path))
@TRUSTED
@THREADS
@PROVIDERS
@click.option("--repeats", type=click.IntRange(min=10), default=300, show_default=True, help="Calls of each contestant.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(bundle: Path, trusted: Path, threads: int | None, provider: tuple[str, ...], repeats: int, as_json: bool) -> None:
    """Measure what BUNDLE costs on this device, beside a bare ONNX Runtime session of the same network with constant weights.

    Samples are made up. Whatever is compared is measured in turn, on the same threads and with the same options.
    """
    from edge_runtime.bench.measure import measure
    from edge_runtime.bundle import Bundle
    from edge_runtime.session_settings import SessionSettings
    from protocol.schema import encode

    click.echo("measuring, about half a minute", err=True)
    report = measure(Bundle.open(bundle, trusted, settings=SessionSettings(threads, provider)), repeats)
    if as_json:
        click.echo(json.dumps(encode(report)))
        return
    for line in lines(report):
        click.echo(line)


def lines(report: BenchReport) -> Iterator[str]:
    """Yield a report for people."""
    start = report.cold_start
    memory = "" if start.megabytes is None else f", {start.megabytes:.0f} MB"
    yield f"bundle {report.bundle[:16]}, {report.cores} cores, {', '.join(report.providers)}"
    yield f"cold process to first label   {start.seconds:.2f} s{memory}"
    yield f"personalise, 256 samples      {report.personalise.p50 / 1000:.2f} ms (p99 {report.personalise.p99 / 1000:.2f})"
    if report.regenerate is not None:
        yield f"regenerate                    {report.regenerate.p50 / 1000:.2f} ms (p99 {report.regenerate.p99 / 1000:.2f})"
    yield f"CPU each, one every 20 ms     {report.paced_cpu_milliseconds:.2f} ms"
    if report.megabytes is not None:
        yield f"resident memory               {report.megabytes:.0f} MB"
    yield f"{'predict, microseconds':<24}{'p50':>10}{'p95':>10}{'p99':>10}{'of bare':>10}"
    for each in report.predictions:
        for name, found in each.microseconds.items():
            ratio = f"{each.ratios[name]:.2f}x" if name in each.ratios else ""
            yield f"  batch {each.batch:<4}{name:<12}{found.p50:>10.1f}{found.p95:>10.1f}{found.p99:>10.1f}{ratio:>10}"
    for batch, medians in report.threads.by_batch.items():
        yield f"threads at batch {batch:<4}" + ", ".join(f"{count}: {median:.0f} us" for count, median in medians.items())
    yield f"recommended threads: {report.threads.recommended} (configured: {report.threads.configured})"
    for warning in report.warnings:
        yield f"warning: {warning}"
