"""``fedtailor edge install`` and ``fedtailor edge store``: the bundles of a device, by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from edge_runtime.store import BundleStore, StoreSettings, StoreStatus
from protocol.schema import encode

STORE = click.option(
    "--store", type=click.Path(path_type=Path), required=True, envvar="FEDTAILOR_STORE", show_envvar=True, help="The store's folder."
)
REASON = click.option("--reason", default="called bad by hand", show_default=True, help="Why; it is noted for good.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command(epilog="Example: fedtailor edge install bundle/ --store /var/lib/fedtailor --trusted release.pub")
@click.argument("bundle", type=click.Path(path_type=Path))
@STORE
@click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FEDTAILOR_TRUSTED_KEY",
    show_envvar=True,
    help="Public key file of whoever releases bundles.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    envvar="FEDTAILOR_TARGET",
    show_envvar=True,
    help="Hardware group of this device; may be repeated.",
)
@AS_JSON
def install(bundle: Path, store: Path, trusted: Path, targets: tuple[str, ...], as_json: bool) -> None:
    """Copy BUNDLE into the store, test it here, and put it on trial; the bundle before it stays at hand."""
    states: list[str] = []
    started = time.perf_counter()
    status = BundleStore(store, trusted, StoreSettings(targets=targets)).install(bundle, states.append)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        click.echo(json.dumps({**as_values(status), "states": states, "seconds": seconds}))
        return
    in_use = status.journal.kept()[0]
    if "tested" not in states:
        click.echo(f"{in_use.name} version {in_use.bundle_version} is in use already ({status.state})")
        return
    click.echo(f"{' -> '.join(states)}: {in_use.name} version {in_use.bundle_version} in {seconds:.1f} s")
    click.echo(f"worst difference from the golden outputs: {in_use.worst_difference:.1e}")


@click.group()
def store() -> None:
    """Look at a device's bundles, and decide about them by hand."""


@store.command(epilog="Example: fedtailor edge store status --store /var/lib/fedtailor")
@STORE
@AS_JSON
def status(store: Path, as_json: bool) -> None:
    """Show the bundle in use, the one before it, and those that are never taken again."""
    _show(BundleStore(store, None).status(), as_json=as_json)


@store.command(epilog="Example: fedtailor edge store promote --store /var/lib/fedtailor")
@STORE
@AS_JSON
def promote(store: Path, as_json: bool) -> None:
    """Call the bundle on trial good; older ones are refused from now on."""
    _show(BundleStore(store, None).promote(), as_json=as_json)


@store.command(epilog='Example: fedtailor edge store reject --store /var/lib/fedtailor --reason "confuses cups and bowls"')
@STORE
@REASON
@AS_JSON
def reject(store: Path, reason: str, as_json: bool) -> None:
    """Call the bundle on trial bad; the good one is in use."""
    _show(BundleStore(store, None).reject(reason), as_json=as_json)


@store.command(epilog="Example: fedtailor edge store rollback --store /var/lib/fedtailor")
@STORE
@REASON
@AS_JSON
def rollback(store: Path, reason: str, as_json: bool) -> None:
    """Leave the bundle in use for the one before it; the one that is left is never taken again."""
    _show(BundleStore(store, None).rollback(reason), as_json=as_json)


def as_values(status: StoreStatus) -> dict[str, Any]:
    """Return a store's status as JSON values."""
    return {"store": str(status.path), "state": status.state, **encode(status.journal)}


def _show(status: StoreStatus, *, as_json: bool) -> None:
    """Print a store's status for people or for machines."""
    click.echo(json.dumps(as_values(status)) if as_json else "\n".join(_describe(status)))


def _describe(status: StoreStatus) -> list[str]:
    """Return the lines that a person reads."""
    journal = status.journal
    lines = [f"{status.path}: {status.state}"]
    for role, stored in (("on trial", journal.trial), ("good", journal.good), ("before that", journal.previous)):
        if stored is not None:
            lines.append(f"{role:<12}{stored.name} version {stored.bundle_version}  {stored.digest[:16]}")
    if journal.trial is not None:
        trial = journal.trial
        lines.append(f"{'trial':<12}{trial.uses} uses in {trial.seconds:.0f} s, {trial.starts} starts without an orderly end")
    lines += [f"{'bad':<12}{bad.name} version {bad.bundle_version}  {bad.digest[:16]}  {bad.reason}" for bad in journal.bad]
    return [*lines, f"{'refused':<12}anything before version {journal.rollback_counter}"]
