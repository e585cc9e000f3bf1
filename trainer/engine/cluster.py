"""The engine that spreads a cohort over worker processes, on the cores and GPUs of one machine or of several, by Ray.

Each worker runs a block of clients on an engine of its own. Data are placed once in Ray's object store, the
server state once a round; what clients keep travels with their block. Blocks are cut between chunks, so results are
those of the batched engine, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import InputError
from trainer.engine.auto import Choice
from trainer.engine.base import Client, RoundKey, RoundResult, in_device_order
from trainer.engine.blocks import Layouts, blocks_of, chunks_of
from trainer.engine.crew import Crew
from trainer.engine.parcels import merge_results, to_arrays
from trainer.engine.placement import Placement
from trainer.engine.ray_session import RaySession, import_ray
from trainer.engine.worker import Job, WorkerPlan
from trainer.methods.base import Method, State

GPU_CHUNK = 50  # fixed, since a chunk as large as the block would tie results to the number of workers
LEAST_REPLACEMENTS = 3


@dataclass(frozen=True, eq=False)
class _Site:
    """Where rounds run: a connection, the workers and how many there may be, what is placed, and the kind of device."""

    session: RaySession
    crew: Crew
    placement: Placement
    layouts: Layouts
    workers: int
    device: str


class ClusterEngine:
    """Runs rounds on many workers. Close it, or use it in a ``with`` statement.

    Args:
        workers: Worker processes; None for one on each GPU where the clients' tensors live on a GPU, else one on each core.
        chunk_size: Clients that are stacked at a time; None for what the batched engine takes on a CPU, and 50 on a GPU.
        choice: What an ``AutoEngine`` chose, to run it in the workers; the batched engine when None.
        replacements: Workers that may be replaced in one round; None for all of them once, at least 3.

    Raises:
        InputError: A number is out of range.
        MissingExtraError: Ray is not installed.
    """

    def __init__(
        self, workers: int | None = None, *, chunk_size: int | None = None, choice: Choice | None = None, replacements: int | None = None
    ) -> None:
        for name, number, least in (("workers", workers, 1), ("chunk_size", chunk_size, 1), ("replacements", replacements, 0)):
            if number is not None and number < least:
                raise InputError(f"{name} is out of range", expected=f"{least} or more", got=number)
        import_ray()
        self._workers = workers
        self._chunk_size = chunk_size
        self._engine = "cohort" if choice is None else choice.name
        self._replacements = replacements
        self._site: _Site | None = None

    def __enter__(self) -> ClusterEngine:
        """Return the engine."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the engine."""
        self.close()

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        """Return what the clients send up and keep after the method's phases.

        Raises:
            ConnectionLostError: No cluster answers, or more workers died than may be replaced.
            DeadlineError: A worker did not start.
            InputError: The cluster has too few GPUs, or the method cannot be sent to a worker.
        """
        ordered = in_device_order(clients)
        site = self._opened(ordered[0].labels.device.type)
        blocks = blocks_of(chunks_of(ordered, site.layouts.of(method, server, ordered, private or {})), site.workers)
        jobs = [
            Job(
                site.placement.method(method),
                {client.device: site.placement.client(client) for client in block},
                key,
                {client.device: to_arrays(private[client.device]) for client in block if private and client.device in private},
            )
            for block in blocks
        ]
        results = site.crew.run(jobs, site.placement.server(server))
        mixed = [client for block in blocks for client in block] != ordered
        return merge_results(results, ordered[0].labels.device, mixed=mixed)

    def close(self) -> None:
        """Stop the workers, and Ray if it was started here; a later round starts them again."""
        if self._site is not None and self._site.session.is_open:
            self._site.crew.dismiss()
            self._site.session.close()
        self._site = None

    def _opened(self, device: str) -> _Site:
        """Return workers for tensors on a kind of device, ``cpu`` or ``cuda``."""
        if self._site is not None and (self._site.device != device or not self._site.session.is_open):
            self.close()
        if self._site is None:
            self._site = self._open(device)
        return self._site

    def _open(self, device: str) -> _Site:
        """Connect; workers start when there is something to do."""
        session = RaySession.open()
        kind = "CPU" if device == "cpu" else "GPU"
        found = session.count(kind)
        workers = self._workers or max(1, found)
        if kind == "GPU" and workers > found:
            session.close()
            raise InputError("too few GPUs in the Ray cluster", expected=workers, got=found, hint="take fewer workers, or device cpu")
        chunk_size = self._chunk_size or (GPU_CHUNK if kind == "GPU" else None)
        plan = WorkerPlan(self._engine, chunk_size, device, max(1, session.count("CPU") // workers))
        replacements = max(LEAST_REPLACEMENTS, workers) if self._replacements is None else self._replacements
        crew = Crew(session.ray, plan, replacements)
        return _Site(session, crew, Placement(session.ray), Layouts(chunk_size), workers, device)
