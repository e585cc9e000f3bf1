"""``fedtailor pretrain``: a backbone for low-rank adaptation, from data that no device holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trainer.data.datasets import load_dataset
from trainer.models.weights import write_weights
from trainer.pretraining import pretrain
from trainer.progress import round_progress


@click.command("pretrain", epilog="Example: fedtailor pretrain vit-tiny --data fashion-mnist-backbone --out backbone.safetensors")
@click.argument("model")
@click.option("--data", required=True, help="Labelled data that no device of the later federation holds (see docs/data.md).")
@click.option("--epochs", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Passes over the data.")
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of everything random.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File of weights to write, as safetensors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def pretrain_command(model: str, out: Path, **options: Any) -> None:
    """Train MODEL on one machine and keep its weights for `--set backbone=FILE`."""
    with round_progress(model, options["epochs"], quiet=options["quiet"]) as observe:
        weights, accuracy = pretrain(model, load_dataset(options["data"]), options["epochs"], options["seed"], observe)
    write_weights(out, weights)
    count = sum(tensor.numel() for tensor in weights.values())
    if options["as_json"]:
        click.echo(json.dumps({"file": str(out), "accuracy": accuracy, "weights": count}))
    else:
        click.echo(f"{out}: {count:,} weights, {accuracy:.1%} of held-out samples right")
