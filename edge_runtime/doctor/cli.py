"""``fedtailor edge doctor``: will this bundle run here?"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from edge_runtime.doctor.findings import Finding
from protocol.broker_address import BrokerAddress
from protocol.broker_options import broker_options
from protocol.errors import UnfitDeviceError
from protocol.schema import encode

WIDTH = 100
MARKS = {"ok": "ok", "note": "note", "failed": "FAILED", "skipped": "-"}


@click.command(epilog="Example: fedtailor edge doctor bundle/ --trusted release.pub --broker mqtts://hub:8883")
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    envvar="FEDTAILOR_TRUSTED_KEY",
    show_envvar=True,
    help="Public key file of whoever releases bundles; needed with BUNDLE.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    envvar="FEDTAILOR_TARGET",
    show_envvar=True,
    help="Hardware group of this device; may be repeated.",
)
@click.option(
    "--store", type=click.Path(path_type=Path), default=Path(), show_default="this folder", help="Where the bundle store will be."
)
@broker_options("Also try this broker: mqtt://, mqtts://, ws:// or wss://, then host:port.", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(context: click.Context, /, *, broker: BrokerAddress | None, as_json: bool, **place: Any) -> None:
    """Say whether this device can run BUNDLE, or, without one, bundles at all.

    Exit code 0 when nothing failed, 42 when something did.
    """
    from edge_runtime.doctor.examination import Question, examine

    if place["bundle"] is not None and place["trusted"] is None:
        raise click.UsageError("BUNDLE needs --trusted")
    findings = examine(Question(**place, broker=broker))
    failed = [finding.check for finding in findings if finding.verdict == "failed"]
    if as_json:
        click.echo(json.dumps({"fit": not failed, "failed": failed, "checks": encode(findings)}))
    else:
        click.echo("\n".join(line for finding in findings for line in _lines(finding)))
        click.echo("all well" if not failed else f"not fit: {', '.join(failed)}")
    if failed:
        context.exit(UnfitDeviceError.exit_code)


def _lines(finding: Finding) -> Iterator[str]:
    """Yield a finding as lines of a table; what to do stands below it."""
    head = f"{finding.check:<14}{MARKS[finding.verdict]:<8}"
    yield from textwrap.wrap(finding.found, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head]
    if finding.advice:
        yield from textwrap.wrap(finding.advice, WIDTH, initial_indent=" " * len(head) + "-> ", subsequent_indent=" " * (len(head) + 3))
