"""``fedtailor keys enroll``, ``list`` and ``revoke``: which devices a coordinator believes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from protocol.console import AS_JSON, epilog
from protocol.enrolment import Enrolled, Enrolment, change
from protocol.keys import PublicKey

CODES = {"0": "done", "2": "wrong usage", "10": "bad id", "71": "unknown device", "72": "bad, weak, revoked or repeated key; bad registry"}
REGISTRY = click.option("--registry", type=click.Path(path_type=Path), required=True, help="The file of enrolled devices.")


@click.command(epilog=epilog("fedtailor keys enroll keys/pi-17.pub --id pi-17 --registry devices.json", codes=CODES))
@click.argument("public", type=click.Path(path_type=Path))
@click.option("--id", "device", help="Device id; the file's name when left out.")
@REGISTRY
@AS_JSON
def enroll(public: Path, device: str | None, registry: Path, as_json: bool) -> None:
    """Let the device with the key in PUBLIC take part; a coordinator at work follows."""
    key = PublicKey.open(public)
    name = public.stem if device is None else device
    entry = change(registry, lambda before: before.with_key(name, key, time.time()), create=True).latest(name)
    click.echo(json.dumps(_content(entry)) if as_json else f"enrolled {name}, fingerprint {key.fingerprint}")


@click.command(name="list", epilog=epilog("fedtailor keys list --registry devices.json", codes=CODES))
@REGISTRY
@AS_JSON
def list_devices(registry: Path, as_json: bool) -> None:
    """Show every key that was enrolled, the revoked ones too."""
    entries = Enrolment.open(registry).entries
    if as_json:
        click.echo(json.dumps({"devices": [_content(entry) for entry in entries]}))
        return
    for entry in entries:
        until = "" if entry.revoked is None else f"  revoked {_day(entry.revoked)}"
        click.echo(f"{PublicKey.from_hex(entry.key).fingerprint}  {entry.device}  enrolled {_day(entry.enrolled)}{until}")


@click.command(epilog=epilog("fedtailor keys revoke pi-17 --registry devices.json", codes=CODES))
@click.argument("device")
@REGISTRY
@AS_JSON
def revoke(device: str, registry: Path, as_json: bool) -> None:
    """Believe the present key of DEVICE never again; a coordinator at work follows."""
    entry = change(registry, lambda before: before.without(device, time.time())).latest(device)
    click.echo(json.dumps(_content(entry)) if as_json else f"revoked {device}; take its user or certificate from the broker too")


def _content(entry: Enrolled) -> dict[str, object]:
    """Return what programs read."""
    fingerprint = PublicKey.from_hex(entry.key).fingerprint
    return {"device": entry.device, "fingerprint": fingerprint, "enrolled": entry.enrolled, "revoked": entry.revoked}


def _day(seconds: float) -> str:
    """Return a time that a person reads."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"
