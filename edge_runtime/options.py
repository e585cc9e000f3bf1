"""Options that several device commands share."""

from __future__ import annotations

from pathlib import Path

import click

from edge_runtime.precision_words import AUTO, WORDS

TRUSTED = click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FEDTAILOR_TRUSTED_KEY",
    show_envvar=True,
    help="Public key file, or trust policy, of whoever releases bundles.",
)
THREADS = click.option("--threads", type=click.IntRange(min=1), help="Threads of a session; 1 for small graphs, else all usable cores.")
PROVIDERS = click.option("--provider", multiple=True, help="Execution provider of ONNX Runtime, the preferred first; the CPU's follows.")
PRECISION = click.option(
    "--precision",
    type=click.Choice(WORDS),
    default=AUTO,
    show_default=True,
    help="Form of the graphs; auto is the quickest that runs here.",
)
