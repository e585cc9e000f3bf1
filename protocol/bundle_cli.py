"""``fedtailor bundle``: verify, look into, sign, compare."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from protocol.bundle import VerifiedBundle, add_signature, open_bundle
from protocol.bundle_diff import compare_bundles, operator_configuration
from protocol.console import AS_JSON
from protocol.files import write_atomically
from protocol.keys import PrivateKey
from protocol.schema import encode
from protocol.trust import open_trusted

TRUSTED = click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FEDTAILOR_TRUSTED_KEY",
    show_envvar=True,
    help="Public key or trust policy of whoever releases bundles.",
)


@click.group()
def bundle() -> None:
    """Verify, inspect, sign or compare bundles."""


@bundle.command(epilog="Example: fedtailor bundle verify bundle/ --trusted keys/release.pub")
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def verify(path: Path, trusted: Path, as_json: bool) -> None:
    """Check signature, digests and graphs of the bundle at PATH."""
    opened = open_bundle(path, open_trusted(trusted))
    total = sum(entry.length for entry in opened.manifest.files.values())
    if as_json:
        click.echo(json.dumps({"digest": opened.digest, "signer": opened.signer, "files": len(opened.files), "bytes": total}))
    else:
        click.echo(f"{path} is whole: {len(opened.files)} files, {total:,} bytes, signed by {opened.signer}, digest {opened.digest}")


@bundle.command(epilog="Example: fedtailor bundle inspect bundle/ --trusted keys/release.pub --json")
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def inspect(path: Path, trusted: Path, as_json: bool) -> None:
    """Show what the bundle at PATH holds, after verifying it."""
    opened = open_bundle(path, open_trusted(trusted))
    if as_json:
        click.echo(json.dumps({"digest": opened.digest, "manifest": encode(opened.manifest)}))
    else:
        click.echo("\n".join(_describe(opened)))


def _describe(opened: VerifiedBundle) -> list[str]:
    """Return the lines that a person reads."""
    manifest = opened.manifest
    raw = manifest.raw_input
    lines = [
        f"{'name':<18}{manifest.name}, version {manifest.bundle_version}, method {manifest.method.name}",
        f"{'digest':<18}{opened.digest}",
        f"{'signed by':<18}{opened.signer}",
        f"{'made':<18}{_date(manifest.created)}, expires {'never' if manifest.expires is None else _date(manifest.expires)}",
        f"{'raw sample':<18}{raw.dtype} {list(raw.shape)}, {raw.minimum:g} to {raw.maximum:g}",
        f"{'classes':<18}{', '.join(manifest.classes)}",
        f"{'ONNX Runtime':<18}{manifest.minimum_onnxruntime} or newer",
    ]
    if manifest.personalization is not None:
        way = manifest.personalization
        lines.append(f"{'personalise':<18}{way.tailored} classifier for each {way.scope}, from about {way.support_size} unlabelled samples")
    lines += ["", f"{'entry point':<18}{'bytes':>10}  {'operators':>9}  worst difference from torch"]
    for name, graph in sorted(manifest.graphs.items()):
        size = manifest.files[graph.file].length
        lines.append(f"{name:<18}{size:>10,}  {len(graph.operators):>9}  {graph.parity.worst_absolute_difference:.1e}")
        for precision, each in sorted(graph.variants.items()):
            own = f"{each.accuracy:.1%} right against {each.accuracy_float32:.1%}, {each.seconds / each.seconds_float32:.2f}x the time"
            lines.append(f"{'  ' + precision:<18}{manifest.files[each.file].length:>10,}  {len(each.operators):>9}  {own}")
    return lines


def _date(seconds: int) -> str:
    """Return a time as a person writes it."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


@bundle.command(epilog="Example: fedtailor bundle sign bundle/ --sign keys/second.key")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--sign", "key", type=click.Path(path_type=Path), required=True, help="Private key file.")
@AS_JSON
def sign(path: Path, key: Path, as_json: bool) -> None:
    """Add a signature to the bundle at PATH, after checking that it is whole."""
    private = PrivateKey.open(key)
    count = add_signature(path, private)
    content = {"signatures": count, "signer": private.public.fingerprint}
    click.echo(json.dumps(content) if as_json else f"{path} has {count} signatures; {private.public.fingerprint} is one of them")


@bundle.command(epilog="Example: fedtailor bundle diff old/ new/ --trusted keys/release.pub")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def diff(first: Path, second: Path, trusted: Path, as_json: bool) -> None:
    """Show what changed from the bundle FIRST to the bundle SECOND."""
    policy = open_trusted(trusted)
    changes = compare_bundles(open_bundle(first, policy), open_bundle(second, policy))
    if as_json:
        click.echo(json.dumps([encode(change) for change in changes]))
    else:
        click.echo("\n".join(f"{change.where:<40}  {change.before}  ->  {change.after}" for change in changes) or "no difference")


@bundle.command(epilog="Example: fedtailor bundle operators bundle/ --trusted keys/release.pub --out operators.config")
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File for ONNX Runtime's build option --include_ops_by_config.")
@AS_JSON
def operators(path: Path, trusted: Path, out: Path, as_json: bool) -> None:
    """Write which operators the bundle at PATH needs, for a reduced build of ONNX Runtime."""
    text = operator_configuration(open_bundle(path, open_trusted(trusted)).manifest)
    write_atomically(out, text.encode())
    click.echo(json.dumps({"file": str(out), "lines": text.splitlines()}) if as_json else f"wrote {out}")
