"""A coordinator from its command line to its last round: run folder, bundle, keys, connection, service."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from protocol.broker_address import BrokerAddress
from protocol.bundle import VerifiedBundle, open_bundle
from protocol.bundle_archive import pack
from protocol.delivery import Deliverer
from protocol.envelope import Address, Expectation
from protocol.errors import InputError, NotAllowedError
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.mqtt import Connection
from protocol.outbox import Outbox
from protocol.topics import COORDINATOR, CoordinatorRoutes, Topics
from protocol.transfer_limits import TransferLimits
from protocol.trust import open_trusted
from trainer.claims import FolderClaim
from trainer.coordinator.broadcast import Broadcast, Offered
from trainer.coordinator.exchanges import Exchange
from trainer.coordinator.parameter_exchange import ParameterExchange
from trainer.coordinator.plan import RoundPlan
from trainer.coordinator.prototype_exchange import PrototypeExchange
from trainer.coordinator.registry import Registry, open_registry
from trainer.coordinator.rounds import Happened, Rounds
from trainer.coordinator.rounds_service import RoundsService
from trainer.methods.registry import method_settings
from trainer.runs import Run

FOLDER = "coordinator"  # in the run folder
PROTOTYPES = "prototypes"  # the exchange that is no method
MOST_TASKS = 8192
IN_MEMORY = Path(":memory:")
UPDATE_BYTES_PER_HOUR = 1024 * 1024 * 1024
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundsRequest:
    """What ``coordinator run`` is asked to do; each field is the option of the same name."""

    method: str
    run: Path
    bundle: Path
    trusted: Path
    broker: BrokerAddress
    federation: str
    key: Path
    registry: Path
    participants: tuple[str, ...]
    plan: RoundPlan
    patience: float | None
    linger: float


def hold_rounds(request: RoundsRequest, observe: Callable[[Happened], None], stopped: Callable[[], bool]) -> dict[str, Any]:
    """Hold rounds until all are done or somebody stops them, and return what happened.

    Args:
        request: What to do.
        observe: Told each step of a round.
        stopped: Whether to end now, in order; what is open goes on at the next start.

    Raises:
        FedtailorError: See the errors of each part; nothing that was acknowledged is lost.
    """
    run = Run.open(request.run)
    bundle = open_bundle(request.bundle, open_trusted(request.trusted))
    key = PrivateKey.open(request.key)
    if bundle.manifest.coordinator_key != key.public.hex:
        hint = "export the bundle with this coordinator's --coordinator-key"
        raise NotAllowedError("devices with this bundle will not believe this coordinator", got=key.public.fingerprint, hint=hint)
    torch.set_num_threads(run.config.threads)
    plan = replace(request.plan, seed=run.config.seed)
    folder = request.run / FOLDER
    folder.mkdir(exist_ok=True)
    claim = FolderClaim(folder)
    try:
        registry = open_registry(request.registry)
        participants = participants_of(registry, request.participants)
        rounds = Rounds(folder, plan, run.config.rounds, exchange_of(request.method, run, bundle, plan), participants)
        try:
            return _serve(request, rounds, (bundle, key, registry), observe, stopped)
        finally:
            rounds.close()
    finally:
        claim.release()


def exchange_of(method: str, run: Run, bundle: VerifiedBundle, plan: RoundPlan) -> Exchange:
    """Return what rounds of a run exchange.

    Raises:
        InputError: The run is of another method.
    """
    if method == PROTOTYPES:
        return PrototypeExchange(len(bundle.manifest.classes), bundle.manifest.feature_dimension())
    if method != run.config.method:
        raise InputError("the run is of another method", expected=f"{run.config.method} or {PROTOTYPES}", got=method)
    bound = method_settings(method, run.config.settings).bind(run.config.task)
    return ParameterExchange(bound, run.final_state(), plan)


def participants_of(registry: Registry, named: tuple[str, ...]) -> Callable[[], frozenset[str]]:
    """Return what tells the devices that take part now: those named, or all that are registered."""
    for device in named:
        registry.key(device)  # a forgotten key is found now and not in the middle of a round
    return lambda: registry.devices() & frozenset(named) if named else registry.devices()


def _serve(
    request: RoundsRequest,
    rounds: Rounds,
    trusted: tuple[VerifiedBundle, PrivateKey, Registry],
    observe: Callable[[Happened], None],
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Hold the rounds over a connection."""
    bundle, key, registry = trusted
    folder, topics = request.run / FOLDER, Topics(request.federation)
    offered, archive = _packed(bundle, folder)
    boot = next_boot(folder / "boot")
    routes = CoordinatorRoutes(topics)
    outbox = Outbox(IN_MEMORY, boot, most_messages=MOST_TASKS)  # of tasks alone, and the journal knows who was not asked yet
    address = Address(request.federation, COORDINATOR, boot, bundle.digest)
    expectation = Expectation(request.federation, bundle.digest, registry.key, check_sender=registry.check)
    limits = TransferLimits(bytes_per_hour=UPDATE_BYTES_PER_HOUR)
    started = time.monotonic()
    try:
        with Connection(request.broker, f"{request.federation}.{COORDINATOR}", routes.subscriptions) as connection:
            deliverer = Deliverer(connection, outbox, rounds.journal.inbox, key, address, expectation, routes, folder / "incoming", limits)
            deliverer.serve(archive, "bundle", round_number=None, expires=time.time() + 365 * 86_400.0)
            broadcast = Broadcast(deliverer, topics, offered, time.time)
            service = RoundsService(deliverer, rounds, broadcast, bundle.digest, observe, request.patience)
            _work(service, request.linger, stopped)
            deliverer.close()
            return _summary(rounds, connection, time.monotonic() - started)
    finally:
        outbox.close()


def _work(service: RoundsService, linger: float, stopped: Callable[[], bool]) -> None:
    """Hold rounds; after the last one, stay a little for devices whose receipts were lost."""
    until: float | None = None
    while not stopped() and (until is None or time.monotonic() < until):
        service.step()
        if service.ended and until is None:
            until = time.monotonic() + linger
    service.broadcast.head(None, "closed")
    service.broadcast.work()


def _packed(bundle: VerifiedBundle, folder: Path) -> tuple[Offered, Path]:
    """Return the bundle as one file, and what is said of it."""
    archive = folder / f"bundle-{bundle.digest[:16]}.ftb"
    pack(bundle.path, archive)
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return Offered(bundle.digest, bundle.manifest.bundle_version, digest.hexdigest(), archive.stat().st_size), archive


def _summary(rounds: Rounds, connection: Connection, seconds: float) -> dict[str, Any]:
    """Return what happened."""
    current = rounds.current
    return {
        "rounds": rounds.journal.history(),
        "next_round": rounds.number,
        "state": None if current is None else current.result or current.state,
        "state_file": str(rounds.states.path(rounds.number)),
        "refused": {code: count for code, (count, _) in rounds.journal.refusals().items()},
        "seed": rounds.plan.seed,
        "seconds": seconds,
        "bytes_up": connection.bytes_up,
        "bytes_down": connection.bytes_down,
        "dropped": connection.dropped,  # messages that came faster than they were read; their senders repeat them
    }
