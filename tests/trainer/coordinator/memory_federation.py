"""A coordinator's service and agents over a pipe in memory that loses, repeats and reorders by a seed: minutes pass in moments.

Everything but the pipe, its clock and the devices' training is what runs in earnest: delivery, outboxes, journals, signatures.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_runtime.agent_bundles import FixedBundle
from edge_runtime.agent_memory import AgentMemory
from edge_runtime.agent_service import AgentIdentity, FederationAgent
from edge_runtime.bundle import Bundle
from edge_runtime.fleet import Rehearsal
from protocol.delivery import Deliverer
from protocol.envelope import Address, Expectation
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.outbox import Outbox
from protocol.topics import COORDINATOR, CoordinatorRoutes, DeviceRoutes, Topics
from tests.protocol.lossy import MemoryPort, Pipe, Weather
from tests.trainer.coordinator.bench import DEVICES, PLAN, rounds_in
from trainer.coordinator.broadcast import Broadcast, Offered
from trainer.coordinator.plan import RoundPlan
from trainer.coordinator.rounds_service import RoundsService

TOPICS = Topics("demo")
KEYS = {name: PrivateKey(hashlib.sha256(name.encode()).digest()) for name in (COORDINATOR, *DEVICES)}
FULL_PLAN = replace(PLAN, minimum_devices=len(DEVICES), deadline_seconds=600.0)


class AtOnce(Executor):
    """Does work when it is submitted."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **named))
        return future


class MemoryFederation:
    """All sides in one process; killed together when it is killed."""

    def __init__(self, folder: Path, bundle: Bundle, seed: int, weather: Weather, plan: RoundPlan = FULL_PLAN) -> None:
        self.folder, self.bundle, self.plan = folder, bundle, plan
        self.pipe = Pipe(seed, weather)
        self.service = self.start_coordinator()
        self.agents = {name: self.start_agent(name) for name in DEVICES}

    def start_coordinator(self) -> RoundsService:
        folder, pipe = self.folder / COORDINATOR, self.pipe
        self.rounds = rounds_in(folder, self.plan)
        boot, routes = next_boot(folder / "boot"), CoordinatorRoutes(TOPICS)
        self.port = MemoryPort(pipe, *(topic for name in DEVICES for topic in (TOPICS.up(name), TOPICS.presence(name))))
        deliverer = Deliverer(
            self.port, Outbox(Path(":memory:"), boot), self.rounds.journal.inbox, KEYS[COORDINATOR],
            Address("demo", COORDINATOR, boot, self.bundle.digest), Expectation("demo", self.bundle.digest, lambda name: KEYS[name].public),
            routes, folder / "incoming", clock=pipe.clock, timer=pipe.timer, draw=pipe.random.random,
        )  # fmt: skip
        offered = Offered(self.bundle.digest, 1, "0" * 64, 10)
        return RoundsService(
            deliverer, self.rounds, Broadcast(deliverer, TOPICS, offered, pipe.clock), self.bundle.digest, clock=pipe.clock
        )

    def start_agent(self, name: str) -> FederationAgent:
        folder, pipe = self.folder / name, self.pipe
        boot, routes = next_boot(folder / "boot"), DeviceRoutes(TOPICS, name)
        port = MemoryPort(pipe, *routes.subscriptions)
        identity = AgentIdentity("demo", name, KEYS[name], boot, KEYS[COORDINATOR].public)
        return FederationAgent(
            identity, port, FixedBundle(self.bundle), AgentMemory(folder / "agent.db"), Outbox(folder / "outbox.db", boot),
            folder / "incoming", lambda _: Rehearsal(name), AtOnce(),
            clock=pipe.clock, timer=pipe.timer, draw=pipe.random.random,
        )  # fmt: skip

    def restart_coordinator(self) -> None:
        """Kill the coordinator, as far as one process can, and start it again."""
        self.service.deliverer.close()
        self.service.deliverer.outbox.close()
        self.rounds.close()
        self.pipe.ports.remove(self.port)
        self.service = self.start_coordinator()

    def restart_agent(self, name: str) -> None:
        """Kill an agent and start it again."""
        agent = self.agents[name]
        agent._deliverer.close()
        agent.outbox.close()
        agent.memory.close()
        self.pipe.ports.remove(agent.port)  # type: ignore[arg-type]
        self.agents[name] = self.start_agent(name)

    def run(self, seconds: float, slice_seconds: float = 0.05) -> bool:
        """Let time pass until all rounds are done; tell whether they are."""
        until = self.pipe.now + seconds
        while self.pipe.now < until and not self.service.ended:
            self.service.step(slice_seconds / 6)
            for agent in self.agents.values():
                agent.step(slice_seconds / 6)
        return self.service.ended

    def close(self) -> None:
        self.service.deliverer.close()
        self.service.deliverer.outbox.close()
        self.rounds.close()
        for agent in self.agents.values():
            agent._deliverer.close()
            agent.outbox.close()
            agent.memory.close()
