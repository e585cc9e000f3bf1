"""The crew: worker processes that each run one job of a round. One that dies is replaced and its job runs again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from protocol.errors import ConnectionLostError, DeadlineError
from trainer.engine.parcels import PackedResult
from trainer.engine.worker import Job, Worker, WorkerPlan

START_SECONDS = 300.0  # a worker imports torch, perhaps from a slow disk on a busy machine
REASON_LENGTH = 200
LOGS = "Ray's logs lie below /tmp/ray/session_latest"

logger = logging.getLogger(__name__)


class Crew:
    """Workers that share one plan.

    Args:
        ray: The library, connected.
        plan: How each of them works.
        replacements: Workers that may be replaced in one round.
    """

    def __init__(self, ray: Any, plan: WorkerPlan, replacements: int) -> None:
        self._ray = ray
        self._plan = plan
        self._replacements = replacements
        self._workers: list[Any] = []

    def run(self, jobs: Sequence[Job], server: Any) -> list[PackedResult]:
        """Return the result of each job; job i runs on worker i, round after round.

        Args:
            jobs: At most one for each worker that the cluster can hold.
            server: Reference to the server state.

        Raises:
            ConnectionLostError: More workers died than may be replaced.
            DeadlineError: A worker did not start.
        """
        try:
            self._hire(len(jobs) - len(self._workers))
            return self._gather(jobs, server)
        except BaseException:
            self.dismiss()  # else they would go on with a round that nobody waits for
            raise

    def dismiss(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers.clear()

    def _hire(self, number: int) -> None:
        """Start workers and wait until they answer or have failed, which their jobs will tell."""
        gpus = 1 if self._plan.device == "cuda" else 0
        kind = self._ray.remote(Worker).options(num_cpus=0, num_gpus=gpus, scheduling_strategy="SPREAD")
        new = [kind.remote(self._plan) for _ in range(number)]
        self._workers += new
        if not new:
            return
        _, late = self._ray.wait([worker.ready.remote() for worker in new], num_returns=number, timeout=START_SECONDS)
        if late:
            hint = f"ask for fewer workers, free GPUs that others hold, or {LOGS}"
            raise DeadlineError(f"{len(late)} workers did not start", expected=f"an answer in {START_SECONDS:.0f} s", hint=hint)

    def _gather(self, jobs: Sequence[Job], server: Any) -> list[PackedResult]:
        """Return each job's result, replacing workers that die."""
        results: dict[int, PackedResult] = {}
        running = {self._workers[place].run.remote(job, server): place for place, job in enumerate(jobs)}
        replaced = 0
        while running:
            finished = self._ray.wait(list(running), num_returns=1)[0][0]
            place = running.pop(finished)
            try:
                results[place] = self._ray.get(finished)
            except self._ray.exceptions.RayTaskError as error:
                raise self._own_error(error) from error
            except self._ray.exceptions.RayError as error:
                replaced += 1
                self._replace(place, jobs[place], replaced, error)
                running[self._workers[place].run.remote(jobs[place], server)] = place
        return [results[place] for place in range(len(jobs))]

    def _own_error(self, error: Any) -> Exception:
        """Return what a job raised, as it was there; running the job again would not help."""
        cause: Exception = error.cause
        if not isinstance(cause, self._ray.exceptions.RayError):
            return cause
        hint = f"a method of your own must be importable on each machine, and its errors picklable; {LOGS}"  # what Ray itself stumbles over
        return ConnectionLostError("a worker failed", got=_reason(cause), hint=hint)

    def _replace(self, place: int, job: Job, replaced: int, error: Exception) -> None:
        """Put a new worker in the place of one that is lost."""
        reason = _reason(error)
        if replaced > self._replacements:
            what, most = f"workers died {replaced} times in round {job.key.round}", f"at most {self._replacements}"
            hint = f"most often memory ran out (take fewer workers or a smaller chunk_size), or a machine lacks the same fedtailor; {LOGS}"
            raise ConnectionLostError(what, expected=most, got=reason, hint=hint) from error
        logger.warning("round %d: a worker died and is replaced, its %d clients run again: %s", job.key.round, len(job.clients), reason)
        self._ray.kill(self._workers.pop(place))
        self._hire(1)
        self._workers.insert(place, self._workers.pop())


def _reason(error: Exception) -> str:
    """Return the last line of what Ray says, which tells the cause."""
    return str(error).strip().splitlines()[-1][:REASON_LENGTH]
