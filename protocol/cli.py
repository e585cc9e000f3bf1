"""``fedtailor bundle``, ``fedtailor keys`` and ``fedtailor broker``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from protocol.broker import LOOPBACK, serve
from protocol.bundle import VerifiedBundle, open_bundle
from protocol.errors import InputError, KeyFileError
from protocol.keys import PrivateKey, PublicKey
from protocol.schema import encode

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TRUSTED = click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FEDTAILOR_TRUSTED_KEY",
    show_envvar=True,
    help="Public key file of whoever releases bundles.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def bundle() -> None:
    """Verify or inspect a bundle."""


@bundle.command(epilog="Example: fedtailor bundle verify bundle/ --trusted keys/release.pub")
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def verify(path: Path, trusted: Path, as_json: bool) -> None:
    """Check signature, digests and graphs of the bundle at PATH."""
    opened = open_bundle(path, PublicKey.open(trusted))
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
    opened = open_bundle(path, PublicKey.open(trusted))
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
    return lines


@click.group()
def keys() -> None:
    """Make and show signing keys."""


@keys.command(epilog="Example: fedtailor keys new release --out keys")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder; the present one when left out.")
@AS_JSON
def new(name: str, out: Path, as_json: bool) -> None:
    """Make NAME.key (keep it secret) and NAME.pub (hand it out)."""
    if not KEY_NAME.fullmatch(name):
        raise InputError("the key's name is wrong", expected="letters, digits, and _ . - after the first", got=repr(name))
    private = PrivateKey.generate()
    private_path, public_path = out / f"{name}.key", out / f"{name}.pub"
    for path in (private_path, public_path):  # before anything is written: half a pair helps nobody
        if path.exists() or path.is_symlink():
            raise KeyFileError(f"{path} exists and is not overwritten", hint="choose another name, or remove it yourself")
    private.save(private_path)
    private.public.save(public_path)
    content = {"private": str(private_path), "public": str(public_path), "fingerprint": private.public.fingerprint}
    click.echo(json.dumps(content) if as_json else f"made {private_path} and {public_path}, fingerprint {private.public.fingerprint}")


@keys.command(epilog="Example: fedtailor keys show keys/release.pub")
@click.argument("path", type=click.Path(path_type=Path))
@AS_JSON
def show(path: Path, as_json: bool) -> None:
    """Show the fingerprint of the public key in PATH."""
    key = PublicKey.open(path)
    click.echo(json.dumps({"fingerprint": key.fingerprint, "public": key.hex}) if as_json else f"{key.fingerprint}  {key.hex}")


@click.command(epilog="Example: fedtailor broker --port 1883")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=1883, show_default=True, help="Port to listen on.")
@AS_JSON
def broker(host: str, port: int, as_json: bool) -> None:
    """Run the embedded MQTT broker until Ctrl-C. Anybody who reaches it may use it: for first tries only."""
    text = json.dumps({"url": f"mqtt://{host}:{port}"}) if as_json else f"broker on mqtt://{host}:{port}, Ctrl-C ends it"
    serve(host, port, lambda: click.echo(text))
