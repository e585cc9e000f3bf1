"""``fedtailor keys``: pairs of keys, and policies that say how many of which must sign."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from protocol.console import AS_JSON, epilog
from protocol.enrolment_cli import enroll, list_devices, revoke
from protocol.errors import InputError, KeyFileError
from protocol.keys import PrivateKey, PublicKey
from protocol.schema import encode
from protocol.trust import FORMAT, TrustFile, TrustPolicy, follow_successors, open_trusted

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILE = click.Path(path_type=Path)
KEY_CODES = {"0": "done", "2": "wrong usage", "10": "bad input", "40": "expired", "72": "bad key or policy file, or too few signatures"}
THRESHOLD = click.option("--threshold", type=click.IntRange(min=1), required=True, help="How many of the keys must sign.")
EXPIRES = click.option("--expires", type=click.IntRange(min=1), help="Seconds since 1970 after which devices believe it no longer.")


@dataclass(frozen=True)
class Rotation:
    """What ``keys rotate`` is asked for; each field is the option of the same name."""

    old: Path
    public: tuple[Path, ...]
    threshold: int | None
    expires: int | None
    signing: tuple[Path, ...]
    out: Path
    as_json: bool


@click.group()
def keys() -> None:
    """Make and show keys, say how many of which must sign, enrol and revoke devices."""


for command in (enroll, list_devices, revoke):
    keys.add_command(command)


@keys.command(epilog=epilog("fedtailor keys new release --out keys", codes=KEY_CODES))
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


@keys.command(epilog=epilog("fedtailor keys show keys/release.pub", codes=KEY_CODES))
@click.argument("path", type=click.Path(path_type=Path))
@AS_JSON
def show(path: Path, as_json: bool) -> None:
    """Show the fingerprint of the public key in PATH, or the trust policy."""
    trusted = open_trusted(path)
    if isinstance(trusted, TrustPolicy):
        click.echo(json.dumps(encode(trusted)) if as_json else "\n".join(_describe(trusted)))
    else:
        content = {"fingerprint": trusted.fingerprint, "public": trusted.hex}
        click.echo(json.dumps(content) if as_json else f"{trusted.fingerprint}  {trusted.hex}")


@keys.command(epilog=epilog("fedtailor keys trust keys/a.pub keys/b.pub keys/c.pub --threshold 2 --out trust.json", codes=KEY_CODES))
@click.argument("public", nargs=-1, required=True, type=FILE)
@THRESHOLD
@EXPIRES
@click.option("--out", type=FILE, required=True, help="File to hand to devices; it works wherever a public key file does.")
@AS_JSON
def trust(public: tuple[Path, ...], threshold: int, expires: int | None, out: Path, as_json: bool) -> None:
    """Say that bundles need signatures by so many of the PUBLIC keys."""
    if out.exists():
        raise KeyFileError(f"{out} exists and is not overwritten", hint="to replace a policy: fedtailor keys rotate")
    policy = TrustPolicy(tuple(PublicKey.open(path).hex for path in public), threshold, 1, expires)
    TrustFile(FORMAT, policy, {}).save(out)
    click.echo(json.dumps(encode(policy)) if as_json else "\n".join([f"wrote {out}", *_describe(policy)]))


@keys.command(
    epilog=epilog(
        "fedtailor keys rotate trust.json keys/b.pub keys/d.pub --sign keys/a.key --sign keys/b.key --out next.json", codes=KEY_CODES
    )
)
@click.argument("old", type=FILE)
@click.argument("public", nargs=-1, type=FILE)
@click.option("--threshold", type=click.IntRange(min=1), help="How many of the keys must sign; as before when left out.")
@EXPIRES
@click.option("--sign", "signing", type=FILE, multiple=True, required=True, help="Private key file; again for each that is at hand.")
@click.option("--out", type=FILE, required=True, help="The successor; signatures are added if it is there already.")
@AS_JSON
def rotate(**options: Any) -> None:
    """Write the successor of the policy OLD with the PUBLIC keys, or sign one that others have written."""
    request = Rotation(**options)
    private = [PrivateKey.open(path) for path in request.signing]
    before = TrustPolicy.of(open_trusted(request.old))
    file = _successor(request, before).signed(private)
    file.save(request.out)
    missing = {name: max(0, each.threshold - len(file.signers_in(each))) for name, each in (("old", before), ("new", file.policy))}
    lines = [f"wrote {request.out}", *_describe(file.policy)]
    lines += [f"still needs {count} signatures by {name} keys" for name, count in missing.items() if count]
    click.echo(json.dumps({**encode(file.policy), "missing": missing}) if request.as_json else "\n".join(lines))


def _successor(request: Rotation, before: TrustPolicy) -> TrustFile:
    """Return the file that is there already, or a new one."""
    if not request.out.exists():
        own = tuple(PublicKey.open(path).hex for path in request.public) or before.keys
        policy = TrustPolicy(own, request.threshold or before.threshold, before.version + 1, request.expires)
        return TrustFile(FORMAT, policy, {})
    if request.public or request.threshold or request.expires:
        hint = "choose another file"
        raise InputError(f"{request.out} is written already", expected="only --sign", got="keys, threshold or expiry", hint=hint)
    return TrustFile.open(request.out)


@keys.command(epilog=epilog("fedtailor keys accept version-2.json version-3.json --trusted trust.json", codes=KEY_CODES))
@click.argument("successors", type=FILE, nargs=-1, required=True)
@click.option("--trusted", type=FILE, required=True, help="What is believed now; replaced by the last successor.")
@AS_JSON
def accept(successors: tuple[Path, ...], trusted: Path, as_json: bool) -> None:
    """Let the policies SUCCESSORS, one after the other, take the place of the trusted one.

    Each must be the next version, signed by enough keys of the one before and by enough of its own.
    """
    files = [TrustFile.open(path) for path in successors]
    policy = follow_successors(open_trusted(trusted), files, time.time())
    files[-1].save(trusted)
    click.echo(json.dumps(encode(policy)) if as_json else "\n".join([f"{trusted} is now:", *_describe(policy)]))


def _describe(policy: TrustPolicy) -> list[str]:
    """Return the lines that a person reads."""
    until = "for ever" if policy.expires is None else f"until {time.strftime('%Y-%m-%d %H:%M', time.gmtime(policy.expires))} UTC"
    fingerprints = [PublicKey.from_hex(key).fingerprint for key in policy.keys]
    return [f"version {policy.version}: {policy.threshold} of {len(policy.keys)} keys must sign, {until}", *fingerprints]
