"""``fedtailor coordinator run``, ``status``, ``pause`` and ``resume``."""

from __future__ import annotations

import json
import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.broker_options import broker_options
from protocol.console import AS_JSON
from protocol.errors import RunFolderError
from trainer.coordinator.journal import HEARTBEAT, PAUSED, PRESENT, Journal, is_absent

if TYPE_CHECKING:
    from trainer.coordinator.rounds import Happened

FOLDER = "coordinator"
ALIVE_SECONDS = 10.0
RUN = click.option("--run", type=click.Path(path_type=Path), required=True, help="The run folder.")


@click.command(
    epilog="Example: fedtailor coordinator run --method fedavg --run runs/first --bundle bundle/ --trusted release.pub "
    "--broker mqtt://hub:1883 --key coordinator.key --registry devices/ --rounds 10 --fraction 0.2 --min-devices 3 --deadline 600"
)
@click.option("--method", required=True, help="The run's method, or prototypes.")
@RUN
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="The bundle that devices use; it is offered to all.")
@click.option(
    "--trusted", type=click.Path(path_type=Path), required=True, envvar="FEDTAILOR_TRUSTED_KEY", help="Public key file of its signer."
)
@broker_options()
@click.option("--federation", default="default", show_default=True, help="Name of the federation.")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="The coordinator's private key file.")
@click.option(
    "--registry", type=click.Path(path_type=Path), required=True, help="File of fedtailor keys enroll, or a folder of <device id>.pub."
)
@click.option(
    "--participant", "participants", multiple=True, help="Id of a device that takes part; repeatable; all registered if left out."
)
@click.option("--rounds", type=click.IntRange(min=1), required=True, help="Rounds to hold; ones that the journal has count.")
@click.option("--fraction", type=float, default=1.0, show_default=True, help="Share of the present devices that a round asks.")
@click.option("--min-devices", type=click.IntRange(min=1), default=1, show_default=True, help="Devices, and updates, that a round needs.")
@click.option("--deadline", type=click.FloatRange(min=0.1), default=600.0, show_default=True, help="Seconds for the updates of a round.")
@click.option("--quorum", type=float, default=1.0, show_default=True, help="Share of the asked devices that closes a round early.")
@click.option("--max-change", type=click.FloatRange(min=0), help="Largest norm of an update's change; 10 times the state's, plus 10.")
@click.option("--encoding", type=click.Choice(["float32", "float16", "int8"]), default="float32", show_default=True, help="Of updates.")
@click.option(
    "--patience", type=click.FloatRange(min=0), help="Seconds without enough devices before giving up; waits for ever if left out."
)
@click.option("--linger", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Seconds to stay after the last round.")
@AS_JSON
def run(as_json: bool, **options: Any) -> None:
    """Hold rounds with devices over a broker; stopped and started again, it goes on where it was."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from trainer.coordinator.plan import RoundPlan
    from trainer.coordinator.run_rounds import RoundsRequest, hold_rounds

    plan = RoundPlan(
        options.pop("rounds"),
        options.pop("fraction"),
        options.pop("min_devices"),
        options.pop("deadline"),
        quorum=options.pop("quorum"),
        largest_change=options.pop("max_change"),
        encoding=options.pop("encoding"),
    )
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stops.append(got))
    summary = hold_rounds(RoundsRequest(plan=plan, **options), _say, lambda: bool(stops))
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(f"{len(summary['rounds'])} rounds, next is {summary['next_round']}; state: {summary['state_file']}")
    for code, count in summary["refused"].items():
        click.echo(f"{count} updates refused: {code}")


@click.command(epilog="Example: fedtailor coordinator status --run runs/first")
@RUN
@AS_JSON
def status(run: Path, as_json: bool) -> None:
    """Tell where the rounds of a run stand, from its journal; the coordinator need not run."""
    journal = _journal(run)
    try:
        content = _status(journal)
    finally:
        journal.close()
    if as_json:
        click.echo(json.dumps(content))
        return
    click.echo(
        f"{'running' if content['running'] else 'not running'}{', paused' if content['paused'] else ''}; {content['present']} devices"
    )
    for row in content["rounds"]:
        took = "" if row["seconds"] is None else f", {row['seconds']:.1f} s"
        click.echo(f"round {row['round']}: {row['phase']}, {row['counted']} of {row['asked']} updates{took}")
    for code, facts in content["refused"].items():
        click.echo(f"refused {facts['count']} times, {code}: {facts['latest']}")


@click.command(epilog="Example: fedtailor coordinator pause --run runs/first")
@RUN
@AS_JSON
def pause(run: Path, as_json: bool) -> None:
    """Open no further round and let no deadline pass until ``resume``; updates of an open round still count."""
    _set_paused(run, paused=True, as_json=as_json)


@click.command(epilog="Example: fedtailor coordinator resume --run runs/first")
@RUN
@AS_JSON
def resume(run: Path, as_json: bool) -> None:
    """Go on after ``pause``."""
    _set_paused(run, paused=False, as_json=as_json)


def _set_paused(run: Path, *, paused: bool, as_json: bool) -> None:
    """Note the operator's wish; a coordinator at work reads it with its next step."""
    journal = _journal(run)
    try:
        with journal.transaction():
            journal.note(PAUSED, "yes" if paused else "no")
    finally:
        journal.close()
    click.echo(json.dumps({"paused": paused}) if as_json else "paused" if paused else "going on")


def _status(journal: Journal) -> dict[str, Any]:
    """Return what the journal says."""
    latest, beat = journal.latest_round(), float(journal.noted(HEARTBEAT) or 0)
    open_round = None
    if latest is not None and latest.phase != "published":
        open_round = {
            "round": latest.number,
            "attempt": latest.attempt,
            "phase": latest.phase,
            "seconds_left": max(0.0, latest.deadline - time.time()),
            "counted": sorted(latest.counted),
            "awaited": list(latest.awaited),
            "declined": sorted(name for name, asked in latest.asked.items() if asked.answer == "declined"),
        }
    return {
        "running": time.time() - beat < ALIVE_SECONDS,
        "paused": journal.noted(PAUSED) == "yes",
        "present": int(journal.noted(PRESENT) or 0),
        "open": open_round,
        "rounds": journal.history(),
        "refused": {code: {"count": count, "latest": latest} for code, (count, latest) in journal.refusals().items()},
    }


def _journal(run: Path) -> Journal:
    """Return the journal of a run that has one."""
    if is_absent(run / FOLDER):
        raise RunFolderError(f"{run} has held no rounds", hint="fedtailor coordinator run begins them")
    return Journal(run / FOLDER)


def _say(happened: Happened) -> None:
    """Tell people on standard error what a round did."""
    current = happened.round
    if current is None:
        return
    sentences = {
        "opened": f"round {current.number}: {len(current.asked)} devices asked",
        "asked-again": f"round {current.number}: attempt {current.attempt + 1}, {len(current.awaited)} devices asked",
        "closed": f"round {current.number}: closed with {len(current.counted)} updates",
        "published": f"round {current.number}: state {(current.result or '')[:16]} from {len(current.counted)} devices",
        "ended": "all rounds are done",
    }
    click.echo(sentences[happened.what], err=True)
