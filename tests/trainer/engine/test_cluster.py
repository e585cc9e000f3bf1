"""The engine that spreads clients over worker processes: same results, placed once, deaths survived, errors as they are."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.errors import ConnectionLostError, DivergenceError, InputError
from tests.trainer.engine.test_blocks import TASK, assert_same, make_clients
from tests.trainer.engine.toys import TwoArchitectures
from tests.trainer.methods import small_federation
from trainer.engine.auto import Choice
from trainer.engine.base import Client, Engine, RoundKey, RoundResult
from trainer.engine.cluster import ClusterEngine
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine
from trainer.hypernetwork import HypernetworkSize
from trainer.methods.base import Batch, Context, MethodSettings, Metrics, Once, Phase, State, Task
from trainer.methods.distribution_embedding import ExtractorSize
from trainer.methods.fedavg import FedAvg, FedAvgMethod
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.registry import METHODS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "fedtailor[cluster]"'),
]

LIMIT_SECONDS = 400
FEDAVG = FedAvg(model="mlp-6", local_steps=3, batch_size=8)
HYPER = HyperFedZero(
    model="mlp-6", extractor=ExtractorSize(hidden=5, embedding=4), local_steps=3, batch_size=8, hypernetwork=HypernetworkSize(16, 3, 7)
)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Fail a test that hangs."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Return Ray, as the engine starts it; stopped after the last test."""
    from trainer.engine.ray_session import RaySession

    patch = pytest.MonkeyPatch()
    patch.delenv("RAY_ADDRESS", raising=False)
    patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))  # workers import what the tests import
    session = RaySession.open()
    yield session.ray
    session.close()
    patch.undo()


@pytest.fixture(scope="module")
def cluster(ray: Any) -> Iterator[ClusterEngine]:
    with ClusterEngine(2, chunk_size=2) as engine:
        yield engine


def train(engine: Engine, settings: MethodSettings, dtype: torch.dtype, clients: Sequence[Client], rounds: int = 3) -> State:
    method = settings.bind(TASK, dtype)
    state = method.initial_state(1)
    private: dict[str, State] = {}
    for number in range(rounds):
        result = engine.run_round(method, state, clients, RoundKey(3, number), private)
        state, private = method.aggregate(state, result.updates), {**private, **result.private}
    return state


@pytest.mark.parametrize("settings", [FEDAVG, HYPER], ids=["fedavg", "hyperfedzero"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_results_are_those_of_one_process(cluster: ClusterEngine, settings: MethodSettings, dtype: torch.dtype, tolerance: float) -> None:
    clients = make_clients(7)
    found = train(cluster, settings, dtype, clients[::-1])
    other_chunks, same_chunks = (train(CohortEngine(size), settings, dtype, clients) for size in (3, 2))
    for name, tensor in other_chunks.items():
        assert (found[name] - tensor).abs().max() <= tolerance * max(1.0, float(tensor.abs().max())), name
    assert all(torch.equal(found[name], tensor) for name, tensor in same_chunks.items())  # to the bit where chunks are the same


@pytest.mark.parametrize("name", [*METHODS, "two architectures"])
def test_every_method_can_be_spread(cluster: ClusterEngine, name: str) -> None:
    method = TwoArchitectures() if name == "two architectures" else small_federation.bound(name)
    clients = small_federation.make_clients((20, 13, 31, 24, 9, 16))
    found, wanted = (small_federation.train(method, engine, clients, 2) for engine in (cluster, small_federation.COHORT))
    small_federation.assert_equal(found.server, wanted.server)
    assert found.private.keys() == wanted.private.keys()
    for device, state in wanted.private.items():
        small_federation.assert_equal(found.private[device], state)


def test_results_do_not_depend_on_the_number_of_workers(cluster: ClusterEngine) -> None:
    clients = make_clients(7)
    with ClusterEngine(3, chunk_size=2) as three, ClusterEngine(1, chunk_size=2) as one:
        states = [train(engine, FEDAVG, torch.float32, clients) for engine in (cluster, three, one)]
    assert all(torch.equal(tensor, state[name]) for state in states[1:] for name, tensor in states[0].items())


def test_the_choice_of_an_engine_holds_in_the_workers(ray: Any) -> None:
    clients = make_clients(4)
    with ClusterEngine(2, chunk_size=2, choice=Choice("loop", "told")) as engine:
        found = train(engine, FEDAVG, torch.float32, clients)
    assert all(torch.equal(found[name], tensor) for name, tensor in train(LoopEngine(), FEDAVG, torch.float32, clients).items())


def test_data_and_method_are_placed_once(cluster: ClusterEngine, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    put = ray.put

    def watched(value: Any) -> Any:
        placed.append(getattr(value, "device", type(value).__name__))
        return put(value)

    monkeypatch.setattr(ray, "put", watched)
    method, clients = FEDAVG.bind(TASK), make_clients(4)
    server = method.initial_state(1)
    for number, cohort in enumerate((clients[:3], clients, clients[1:])):  # a share of the clients each round
        cluster.run_round(method, server, cohort, RoundKey(3, number))
    assert placed == ["FedAvgMethod", *(client.device for client in clients[:3]), "dict", clients[3].device, "dict", "dict"]
    changed = make_clients(5)[4]
    other = [Client(clients[0].device, changed.samples, changed.labels, changed.index), *clients[1:]]
    placed.clear()
    found = cluster.run_round(method, server, other, RoundKey(3, 3))
    assert placed == [clients[0].device, "dict"]
    assert_same(found, CohortEngine(2).run_round(method, server, other, RoundKey(3, 3)))


@dataclass(frozen=True)
class Fragile(FedAvg):
    """FedAvg of a user, with an accident after its local steps.

    Attributes:
        scene: Folder where each process leaves its mark.
        accident: ``die``, ``die always``, ``diverge``, ``strange`` or ``count``.
    """

    scene: str = field(default="")
    accident: str = "count"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FragileMethod:
        return FragileMethod(self, task, dtype, self.scene, self.accident)


class StrangeError(Exception):
    """An error that cannot be sent."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be sent")


class FragileMethod(FedAvgMethod):
    def __init__(self, settings: Fragile, task: Task, dtype: torch.dtype, scene: str, accident: str) -> None:
        super().__init__(settings, task, dtype)
        self.scene, self.accident = Path(scene), accident

    def phases(self) -> tuple[Phase, ...]:
        return (*super().phases(), Once("accident", self.happen))

    def private_state(self, server: State, device: str) -> State:
        return {"rounds": torch.zeros(())}

    def upload(self, end: State, context: Context) -> State:
        return {name: tensor for name, tensor in end.items() if name != "rounds"}

    def keep(self, end: State, context: Context) -> State:
        return {"rounds": end["rounds"]}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        weights = {name: tensor for name, tensor in state.items() if name != "rounds"}
        after, metrics = super().step(weights, batch, context)
        return {**after, "rounds": state["rounds"] + 1 / self.training.local_steps}, metrics

    def happen(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        first = not list(self.scene.glob("dead-*"))
        (self.scene / f"process-{os.getpid()}").touch()
        if self.accident == "die always" or (self.accident == "die" and first):
            (self.scene / f"dead-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.accident == "diverge":
            raise DivergenceError("training diverged", expected="a number", got="NaN", hint="lower the rate")
        if self.accident == "strange":
            raise StrangeError
        return state


def run_fragile(engine: Engine, accident: str, scene: Path, rounds: int = 1) -> list[RoundResult]:
    method = Fragile(model="mlp-6", local_steps=3, batch_size=8, scene=str(scene), accident=accident).bind(TASK)
    results: list[RoundResult] = []
    private: dict[str, State] = {}
    for number in range(rounds):
        results.append(engine.run_round(method, method.initial_state(1), make_clients(4), RoundKey(3, number), private))
        private |= results[-1].private
    return results


def test_what_clients_keep_travels_with_them(cluster: ClusterEngine, tmp_path: Path) -> None:
    found, wanted = (run_fragile(engine, "count", tmp_path, 3)[-1] for engine in (cluster, CohortEngine(2)))
    assert_same(found, wanted)
    assert {device: float(kept["rounds"]) for device, kept in found.private.items()} == pytest.approx(
        {f"client-{n:02}": 3 for n in range(4)}
    )


def test_a_worker_that_is_killed_is_replaced_and_its_clients_run_again(cluster: ClusterEngine, tmp_path: Path) -> None:
    found = run_fragile(cluster, "die", tmp_path)[0]
    assert len(list(tmp_path.glob("dead-*"))) >= 1
    assert_same(found, run_fragile(CohortEngine(2), "count", tmp_path)[0])
    assert_same(run_fragile(cluster, "count", tmp_path)[0], found)


def test_workers_that_die_again_and_again_end_the_round(ray: Any, tmp_path: Path) -> None:
    with ClusterEngine(1, replacements=1) as engine, pytest.raises(ConnectionLostError) as caught:
        run_fragile(engine, "die always", tmp_path)
    assert caught.value.what == "workers died 2 times in round 0"
    assert "worker process has died" in str(caught.value.got)
    assert "fewer workers" in str(caught.value.hint)
    assert len(list(tmp_path.glob("dead-*"))) == 2


def test_an_error_of_a_method_comes_as_itself_and_the_engine_stays_of_use(cluster: ClusterEngine, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError) as caught:
        run_fragile(cluster, "diverge", tmp_path)
    assert type(caught.value) is DivergenceError
    assert (caught.value.expected, caught.value.got, caught.value.hint) == ("a number", "NaN", "lower the rate")
    assert_same(run_fragile(cluster, "count", tmp_path)[0], run_fragile(CohortEngine(2), "count", tmp_path)[0])


def test_an_error_that_cannot_be_sent_is_told_at_once(ray: Any, tmp_path: Path) -> None:
    with ClusterEngine(1) as engine, pytest.raises(ConnectionLostError, match="StrangeError"):
        run_fragile(engine, "strange", tmp_path)
    assert len(list(tmp_path.glob("process-*"))) == 1


def test_a_method_that_cannot_be_sent_is_refused(cluster: ClusterEngine) -> None:
    method: Any = FEDAVG.bind(TASK)
    method.held = threading.Lock()
    with pytest.raises(InputError, match="cannot be sent"):
        cluster.run_round(method, method.initial_state(1), make_clients(2), RoundKey(0, 0))


def test_closing_leaves_no_worker_and_keeps_a_ray_that_others_started(ray: Any, tmp_path: Path) -> None:
    with ClusterEngine(2, chunk_size=2) as engine:
        run_fragile(engine, "count", tmp_path)
    processes = [int(path.name.partition("-")[2]) for path in tmp_path.glob("process-*")]
    assert len(processes) == 2
    deadline = time.monotonic() + 30
    while any(is_running(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ray.is_initialized()


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ray_listens_on_loopback_only(ray: Any) -> None:
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
