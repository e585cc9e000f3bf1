"""``fedtailor export``: a run folder becomes a signed bundle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from export.bundling import Extras, Release, export_run
from export.precision.variants import describe
from export.runtimes import DEFAULT_TARGET, check_target
from protocol.keys import PrivateKey, PublicKey
from trainer.runs import Run


@dataclass(frozen=True)
class ExportRequest:
    """What the command line asks for; each field is the option of the same name."""

    run: Path
    out: Path
    sign: Path
    coordinator_key: Path | None
    name: str | None
    bundle_version: int
    expires: int | None
    target_runtime: str
    target_python: str | None
    fp16: bool
    int8: bool
    max_drop: float
    training: bool
    overwrite: bool
    as_json: bool


@click.command(epilog="Example: fedtailor export runs/first --sign keys/release.key --out bundle/")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The bundle's folder.")
@click.option("--sign", type=click.Path(path_type=Path), required=True, help="Private key file of whoever releases bundles.")
@click.option("--coordinator-key", type=click.Path(path_type=Path), help="Public key file of the coordinator that devices will believe.")
@click.option("--name", help="Name of the bundle; that of the run folder when left out.")
@click.option("--bundle-version", type=click.IntRange(min=1), default=1, show_default=True, help="Grows with every release.")
@click.option("--expires", type=click.IntRange(min=1), help="Seconds since 1970 after which devices refuse the bundle.")
@click.option("--target-runtime", default=DEFAULT_TARGET, show_default=True, help="Oldest ONNX Runtime on the devices.")
@click.option("--target-python", help="Python on the devices, as in 3.10; refused where that runtime has no wheel for it.")
@click.option("--fp16", is_flag=True, help="Add variants in half precision: half the bytes.")
@click.option("--int8", is_flag=True, help="Add variants in eight bits: a quarter of the bytes, and quicker where there are convolutions.")
@click.option("--max-drop", type=click.FloatRange(0, 100), default=1.0, show_default=True, help="Points of accuracy a variant may lose.")
@click.option("--training", is_flag=True, help="Add the method's local steps, for devices that train.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle that lies there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(**options: Any) -> None:
    """Turn RUN into ONNX graphs, prove them equal to torch, and write a signed bundle."""
    request = ExportRequest(**options)
    check_target(request.target_runtime, request.target_python)
    coordinator = None if request.coordinator_key is None else PublicKey.open(request.coordinator_key).hex
    key = PrivateKey.open(request.sign)
    run = Run.open(request.run)
    release = Release(
        request.name or request.run.resolve().name,
        request.bundle_version,
        request.expires,
        coordinator_key=coordinator,
        target_runtime=request.target_runtime,
    )
    with Console(stderr=True).status("exporting and comparing with torch"):
        precisions = tuple(name for name, wanted in (("fp16", request.fp16), ("int8", request.int8)) if wanted)
        extras = Extras(precisions, request.max_drop, request.training)
        exported = export_run(run, request.out, release, key, overwrite=request.overwrite, extras=extras)
    total = sum(path.stat().st_size for path in request.out.rglob("*") if path.is_file())
    content = {"bundle": str(request.out), "digest": exported.digest, "bytes": total, "signer": key.public.fingerprint}
    text = [f"{request.out}: {total:,} bytes, signed by {key.public.fingerprint}, digest {exported.digest}"]
    if exported.verdicts:
        content["variants"] = [verdict.record() for verdict in exported.verdicts]
        text += ["", *describe(exported.verdicts)]
    click.echo(json.dumps(content) if request.as_json else "\n".join(text))
