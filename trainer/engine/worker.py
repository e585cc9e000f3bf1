"""A worker: a process that runs blocks of clients on an engine of its own and keeps their data over rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainer.engine.base import Client, Engine, RoundKey
from trainer.engine.cohort import CohortEngine
from trainer.engine.compilation import Compiler
from trainer.engine.loop import LoopEngine
from trainer.engine.parcels import Arrays, PackedResult, to_state
from trainer.engine.ray_session import import_ray
from trainer.methods.base import Method


@dataclass(frozen=True)
class WorkerPlan:
    """How a worker works.

    Attributes:
        engine: ``loop``, ``cohort`` or ``compiled``.
        chunk_size: Clients that are stacked at a time; None for as many as suit the states.
        device: Where its tensors live: ``cpu`` or ``cuda``.
        threads: Threads of torch.
    """

    engine: str
    chunk_size: int | None
    device: str
    threads: int

    def make_engine(self) -> Engine:
        """Return a new engine."""
        if self.engine == "loop":
            return LoopEngine()
        return CohortEngine(self.chunk_size, Compiler() if self.engine == "compiled" else None)


@dataclass(frozen=True, eq=False)
class Job:
    """A worker's part of a round.

    Attributes:
        method: Reference to the method in the object store.
        clients: References to the packed clients, by device id.
        key: Seed and number of the round.
        private: What the clients kept from earlier rounds, by device id.
    """

    method: Any
    clients: Mapping[str, Any]
    key: RoundKey
    private: Mapping[str, Arrays]


class Worker:
    """Runs jobs. What it fetched stays until another reference comes under the same name.

    Args:
        plan: How it works.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        torch.set_num_threads(plan.threads)
        self._ray = import_ray()
        self._device = torch.device(plan.device)
        self._engine = plan.make_engine()
        self._method: tuple[str, Method] | None = None
        self._clients: dict[str, tuple[str, Client]] = {}

    def ready(self) -> None:
        """Answer, which shows that the process has started."""

    def run(self, job: Job, server: Arrays) -> PackedResult:
        """Return what the job's clients send up and keep."""
        private = {device: to_state(kept, self._device) for device, kept in job.private.items()}
        clients = self._fetch_clients(job.clients)
        state = to_state(server, self._device)
        return PackedResult.of(self._engine.run_round(self._fetch_method(job.method), state, clients, job.key, private))

    def _fetch_method(self, reference: Any) -> Method:
        """Return the method, the same object in every round, so that its programs are made once."""
        if self._method is None or self._method[0] != reference.hex():
            self._method = (reference.hex(), self._ray.get(reference))
        return self._method[1]

    def _fetch_clients(self, references: Mapping[str, Any]) -> list[Client]:
        """Return the clients."""
        kept = {device: name for device, (name, _) in self._clients.items()}
        missing = [device for device, reference in references.items() if kept.get(device) != reference.hex()]
        for device, packed in zip(missing, self._ray.get([references[device] for device in missing]), strict=True):
            self._clients[device] = (references[device].hex(), packed.unpack(self._device))
        return [self._clients[device][1] for device in references]
