"""Two rounds whose process is killed at a chosen write of SQLite or of the file system, and started again.

Run as a program: it loads everything once and forks for each life, so that a hundred lives take seconds. It prints one JSON
object a line: where the first life ended, what it had acknowledged, what the second one found, and how long that took.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_runtime.bundle import Bundle
from tests.edge_runtime.faults import FaultyDisk
from tests.protocol.lossy import CALM
from tests.protocol.sqlite_faults import KillingWrites
from tests.trainer.coordinator.bench import DEVICES, START, envelope, rounds_in, update_of
from tests.trainer.coordinator.memory_federation import MemoryFederation

ROUNDS = (7, 8)


def live(folder: Path, told: int) -> dict[str, Any]:
    """Hold both rounds as far as they are not held yet; every device sends until it is answered, under the same number."""
    began = time.perf_counter()
    rounds = rounds_in(folder)
    first = time.perf_counter() - began
    while True:
        steps = rounds.advance(DEVICES, START)
        if steps and steps[-1].what == "ended":
            break
        assert rounds.current is not None
        for device in DEVICES:
            number = rounds.current.number
            receipt = rounds.take([envelope(device, update_of(rounds, device), number)], START)[0]
            os.write(told, f"{device} {number} {receipt.code}\n".encode())  # as a device that reads its receipt
    counted = {str(number): [update.device for update in rounds.journal.updates(number)] for number in ROUNDS}
    digest = hashlib.sha256(rounds.state).hexdigest()
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    rounds.close()
    return {"digest": digest, "counted": counted, "open_seconds": first, "seconds": time.perf_counter() - began, "files": left}


def child(work: Callable[[], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Run some work in a process of its own; return how it ended and what it found."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException:  # noqa: BLE001  # the parent reads it
            traceback.print_exc()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), json.loads(content) if content else {}


def live_with_agents(folder: Path, told: int) -> dict[str, Any]:
    """Hold both rounds with the service and real agents, whose files are in the same process."""
    began = time.perf_counter()
    federation = MemoryFederation(folder, Bundle.open(BUNDLE[0], BUNDLE[1]), 0, CALM)
    first = time.perf_counter() - began
    assert federation.run(120), federation.rounds.current
    counted = {str(number): [update.device for update in federation.rounds.journal.updates(number)] for number in ROUNDS}
    accepted = {name: agent.counts.accepted for name, agent in federation.agents.items()}
    os.write(told, f"{json.dumps(accepted)} accepted\n".encode())
    digest = hashlib.sha256(federation.rounds.state).hexdigest()
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    federation.close()
    return {"digest": digest, "counted": counted, "open_seconds": first, "seconds": time.perf_counter() - began, "files": left}


def faulty(folder: Path, told: int, where: str, at: int) -> dict[str, Any]:
    """Hold both rounds with a fault; return how many writes there were."""
    if where == "sqlite":
        writes = KillingWrites(at)
        return {**LIVE[0](folder, told), "writes": writes.calls}
    with FaultyDisk(at, "kill") as disk:
        return {**LIVE[0](folder, told), "writes": disk.calls}


LIVE: list[Callable[[Path, int], dict[str, Any]]] = [live]
BUNDLE: list[Path] = []


def main(root: Path, stride: int, *bundle: str) -> None:
    """Kill at every ``stride``-th write of either kind; with a bundle and its key, of agents too."""
    if bundle:
        BUNDLE[:], LIVE[0] = map(Path, bundle), live_with_agents
    for where in ("sqlite", "disk"):
        total = int(child(lambda where=where: faulty(root / f"count-{where}", os.open(os.devnull, os.O_WRONLY), where, 0))[1]["writes"])  # type: ignore[misc]
        for at in range(1, total + 1, stride):
            root.mkdir(exist_ok=True)
            folder, log = root / f"{where}-{at}", root / f"{where}-{at}.told"
            told = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            code, _ = child(lambda: faulty(folder, told, where, at))  # noqa: B023  # it runs at once
            acknowledged = log.read_text().split("\n")[:-1]
            again, found = child(lambda: LIVE[0](folder, told))  # noqa: B023
            os.close(told)
            killed = code == -signal.SIGKILL
            facts = {"where": where, "at": at, "of": total, "killed": killed, "told": acknowledged, "code": again}
            sys.stdout.write(json.dumps({**facts, **found}) + "\n")
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
