"""Many agents in one process, each with its own connection, keys and state: for tests and load, not for devices.

Each connection needs three descriptors and two threads, and many systems give a process 1,024 descriptors: hence the limit.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.agent_bundles import FixedBundle
from edge_runtime.agent_memory import AgentMemory
from edge_runtime.agent_runner import connections
from edge_runtime.agent_service import AgentCounts, AgentIdentity, FederationAgent
from edge_runtime.agent_will import will_of
from edge_runtime.agent_work import STATE_LIMITS, DeviceWork, Work
from edge_runtime.bundle import Bundle
from edge_runtime.device_data import DeviceData
from edge_runtime.sampling import DrawKey
from protocol.broker_address import BrokerAddress
from protocol.errors import FedtailorError, InputError
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.messages import Message, ParameterUpdate
from protocol.mqtt import Connection
from protocol.outbox import Outbox
from protocol.round_messages import RoundTask
from protocol.tensors import decode_tensors
from protocol.topics import DeviceRoutes, Topics

MOST_AGENTS = 250  # of one process
STEP_SECONDS = 0.5
CONNECTS_A_SECOND = 40.0
WORKERS = 2
REHEARSED_CHANGE = 1e-3
IN_MEMORY = Path(":memory:")
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetRequest:
    """What a fleet's process is asked to do.

    Attributes:
        bundle: The bundle that all agents have in use; they install none.
        trusted: Public key file of its signer.
        broker: The broker.
        federation: Name of the federation.
        keys: Folder of ``<device id>.key`` files.
        devices: Ids of this process's agents.
        data: Folder of each device's data folder; None to rehearse rounds without data.
        state: Folder of each agent's state; None to keep it in memory, where it does not outlive the process.
    """

    bundle: Path
    trusted: Path
    broker: BrokerAddress
    federation: str
    keys: Path
    devices: tuple[str, ...]
    data: Path | None
    state: Path | None


class Rehearsal:
    """Work without data: the state that came down, changed a little by seeded noise. It trains nothing."""

    def __init__(self, device: str) -> None:
        self._device = device

    def objection(self, task: RoundTask) -> str | None:
        """Return None, or that only parameters can be rehearsed."""
        return None if task.payload == "parameters" else f"a rehearsal makes no {task.payload}"

    def do(self, task: RoundTask, state: bytes) -> Message:
        """Return the state with noise."""
        draws = DrawKey(task.seed, task.round, self._device).stream("rehearsal")
        before = sorted(decode_tensors(state, STATE_LIMITS).items())
        tree = {name: _changed(tensor.astype(np.float32), draws) for name, tensor in before if tensor.dtype == np.float32}
        return ParameterUpdate(task.round, task.state, 1, "float32", {}, tree).encoded(task.encoding)


def _changed(tensor: NDArray[np.float32], draws: np.random.Generator) -> NDArray[np.float32]:
    """Return a tensor with a little noise."""
    noise: NDArray[np.float32] = draws.standard_normal(tensor.shape, dtype=np.float32)
    changed: NDArray[np.float32] = tensor + np.float32(REHEARSED_CHANGE) * noise
    return changed


class FleetAgent:
    """One agent of a fleet, in a thread of its own."""

    def __init__(self, request: FleetRequest, device: str, bundle: Bundle, executor: Executor, stopped: Callable[[], bool]) -> None:
        self.counts = AgentCounts()
        self.failure: str | None = None
        self._request = request
        self._device = device
        self._bundle = bundle
        self._executor = executor
        self._stopped = stopped
        self._folder: Path | None = None
        self.thread = threading.Thread(target=self._run, name=f"agent-{device}", daemon=True)

    def start(self, folder: Path) -> None:
        """Begin, with a folder for what comes in pieces."""
        self._folder = folder
        self.thread.start()

    def _run(self) -> None:
        """Be an agent until stopped; what ends it is noted, and the others go on."""
        try:
            self._serve()
        except FedtailorError as error:
            self.failure = error.sentence()
            LOGGER.warning("%s ended: %s", self._device, self.failure)

    def _serve(self) -> None:
        """Be an agent until stopped."""
        assert self._folder is not None  # noqa: S101  # `start` set it
        request, device = self._request, self._device
        state = None if request.state is None else request.state / device
        boot = int(time.time()) if state is None else next_boot(state / "boot")
        identity = AgentIdentity(request.federation, device, PrivateKey.open(request.keys / f"{device}.key"), boot, None)
        subscriptions = DeviceRoutes(Topics(request.federation), device).subscriptions
        with ExitStack() as stack:
            memory = AgentMemory(IN_MEMORY if state is None else state / "agent.db")
            stack.callback(memory.close)
            outbox = Outbox(IN_MEMORY if state is None else state / "outbox.db", boot)
            stack.callback(outbox.close)
            name, will = f"{request.federation}.{device}", will_of(identity, lambda: self._bundle)
            for connection in connections(lambda: Connection(request.broker, name, subscriptions, will=will), self._stopped):
                agent = FederationAgent(
                    identity, connection, FixedBundle(self._bundle), memory, outbox, self._folder, self._work, self._executor
                )
                agent.counts = self.counts
                while not self._stopped():
                    agent.step(STEP_SECONDS)
                agent.close()

    def _work(self, bundle: Bundle) -> Work:
        """Return what this agent does in a round."""
        if self._request.data is None:
            return Rehearsal(self._device)
        data = DeviceData(self._request.data / self._device, bundle.manifest)
        return DeviceWork(bundle, data, self._device, self._folder or Path())


def run_fleet(request: FleetRequest, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Be a fleet until somebody stops it, and return what its agents did, added up.

    Raises:
        InputError: More agents than one process can hold.
        BundleError: The bundle cannot be used.
    """
    if len(request.devices) > MOST_AGENTS:
        hint = "use more processes"
        raise InputError("a process cannot hold so many agents", expected=f"at most {MOST_AGENTS}", got=len(request.devices), hint=hint)
    bundle = Bundle.open(request.bundle, request.trusted)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="work") as executor, tempfile.TemporaryDirectory() as folder:
        agents = [FleetAgent(request, device, bundle, executor, stopped) for device in request.devices]
        for agent, device in zip(agents, request.devices, strict=True):
            place = Path(folder) / device if request.state is None else request.state / device / "incoming"
            place.mkdir(parents=True, exist_ok=True)
            agent.start(place)
            time.sleep(1 / CONNECTS_A_SECOND)
        for agent in agents:
            agent.thread.join()
    return total([agent.counts for agent in agents], [agent.failure for agent in agents])


def total(counts: Sequence[AgentCounts], failures: Sequence[str | None]) -> dict[str, Any]:
    """Return what agents did, added up."""
    refused: dict[str, int] = {}
    for each in counts:
        for code, count in each.refused.items():
            refused[code] = refused.get(code, 0) + count
    names = ("taken", "declined", "updates", "accepted")
    sums = {name: sum(getattr(each, name) for each in counts) for name in names}
    return {"devices": len(counts), **sums, "refused": refused, "failures": [each for each in failures if each is not None]}
