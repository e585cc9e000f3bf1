"""``fedtailor adapter``: LoRA factors that fit a bundle become an adapter file of ONNX Runtime's own kind."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edge_runtime.adapters import load_adapter
from edge_runtime.options import TRUSTED
from export.adapters import write_onnx_adapter
from protocol.bundle import open_bundle
from protocol.console import AS_JSON
from protocol.trust import open_trusted

FIRST_RUNTIME = "1.20"  # of those with adapter files


@click.command(epilog="Example: fedtailor adapter bundle/ mine.safetensors --trusted keys/release.pub --out mine.onnx_adapter")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("factors", type=click.Path(path_type=Path))
@TRUSTED
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file; its name ends in .onnx_adapter.")
@click.option("--target-runtime", default=FIRST_RUNTIME, show_default=True, help="ONNX Runtime that shall load it.")
@AS_JSON
def adapter(bundle: Path, factors: Path, trusted: Path, out: Path, target_runtime: str, as_json: bool) -> None:
    """Write the LoRA factors in FACTORS, a safetensors file, for programs in other languages; they must fit BUNDLE's classifier."""
    verified = open_bundle(bundle, open_trusted(trusted))
    verified.graph("classify")  # says so where there is none
    manifest = verified.manifest
    checked = load_adapter(factors, manifest.graphs["classify"])
    write_onnx_adapter(out, checked, manifest.bundle_version, target_runtime)
    size = out.stat().st_size
    content = {"out": str(out), "rank": checked.rank, "factors": len(checked.factors), "bytes": size}
    click.echo(json.dumps(content) if as_json else f"{len(checked.factors)} factors of rank {checked.rank}, {size:,} bytes: {out}")
