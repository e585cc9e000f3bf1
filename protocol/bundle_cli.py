"""``fedtailor bundle``: verify, look into, sign, compare."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protocol.bundle import add_signature, open_bundle
from protocol.bundle_diff import compare_bundles, operator_configuration
from protocol.bundle_page import describe_bundle
from protocol.console import AS_JSON, epilog, plain
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


@bundle.command(epilog=epilog("fedtailor bundle verify bundle/ --trusted keys/release.pub"))
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def verify(path: Path, trusted: Path, as_json: bool) -> None:
    """Check signature, digests and graphs of the bundle at PATH."""
    opened = open_bundle(path, open_trusted(trusted))
    total = sum(entry.length for entry in opened.manifest.files.values())
    if as_json:
        content = {"digest": opened.digest, "signer": opened.signer, "signers": opened.signers, "files": len(opened.files), "bytes": total}
        click.echo(json.dumps(content))
    else:
        click.echo(f"{path} is whole: {len(opened.files)} files, {total:,} bytes, signed by {opened.signer}, digest {opened.digest}")


@bundle.command(epilog=epilog("fedtailor bundle inspect bundle/ --trusted keys/release.pub --json"))
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@AS_JSON
def inspect(path: Path, trusted: Path, as_json: bool) -> None:
    """Show what the bundle at PATH holds, after verifying it."""
    opened = open_bundle(path, open_trusted(trusted))
    if as_json:
        click.echo(json.dumps({"digest": opened.digest, "signers": opened.signers, "manifest": encode(opened.manifest)}))
    else:
        click.echo("\n".join(describe_bundle(opened)))


@bundle.command(epilog=epilog("fedtailor bundle sign bundle/ --sign keys/second.key"))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--sign", "key", type=click.Path(path_type=Path), required=True, help="Private key file.")
@AS_JSON
def sign(path: Path, key: Path, as_json: bool) -> None:
    """Add a signature to the bundle at PATH, after checking that it is whole."""
    private = PrivateKey.open(key)
    count = add_signature(path, private)
    content = {"signatures": count, "signer": private.public.fingerprint}
    click.echo(json.dumps(content) if as_json else f"{path} has {count} signatures; {private.public.fingerprint} is one of them")


@bundle.command(epilog=epilog("fedtailor bundle diff old/ new/ --trusted keys/release.pub"))
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
        lines = [plain(f"{change.where:<40}  {change.before}  ->  {change.after}") for change in changes]
        click.echo("\n".join(lines) or "no difference")


@bundle.command(epilog=epilog("fedtailor bundle operators bundle/ --trusted keys/release.pub --out operators.config"))
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File for ONNX Runtime's build option --include_ops_by_config.")
@AS_JSON
def operators(path: Path, trusted: Path, out: Path, as_json: bool) -> None:
    """Write which operators the bundle at PATH needs, for a reduced build of ONNX Runtime."""
    text = operator_configuration(open_bundle(path, open_trusted(trusted)).manifest)
    write_atomically(out, text.encode())
    click.echo(json.dumps({"file": str(out), "lines": text.splitlines()}) if as_json else f"wrote {out}")
