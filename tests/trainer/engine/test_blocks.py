"""Which clients go to which worker, and what can be told without Ray."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.sampling import ClassIndex
from protocol.errors import InputError, MissingExtraError
from tests.trainer.engine.toys import TwoArchitectures
from trainer.engine.base import Client, RoundKey, RoundResult
from trainer.engine.blocks import Layout, Layouts, blocks_of, chunks_of
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine
from trainer.engine.parcels import PackedClient, PackedResult, merge_results
from trainer.engine.worker import WorkerPlan
from trainer.methods.base import Context, Method, State, Task
from trainer.methods.fedavg import FedAvg, FedAvgMethod

TASK = Task((4, 4), "uint8", 0.0, 16.0, ("a", "b", "c"))
CPU = torch.device("cpu")
SMALL, LARGE = (Layout((("w", torch.Size([size]), torch.float32),), size) for size in (2, 3))


def make_clients(number: int) -> list[Client]:
    generator = np.random.default_rng(5)
    clients = []
    for place in range(number):
        labels = generator.integers(0, 3, 20)
        samples = torch.from_numpy(generator.integers(0, 17, (20, 4, 4)).astype(np.uint8))
        clients.append(Client(f"client-{place:02}", samples, torch.from_numpy(labels), ClassIndex(labels)))
    return clients


CLIENTS = make_clients(30)


class Silent(TwoArchitectures):
    """Nothing goes up."""

    def upload(self, end: State, context: Context) -> State:
        return {}


def places(groups: list[list[Client]]) -> list[list[int]]:
    return [[int(client.device[-2:]) for client in group] for group in groups]


def test_chunks_hold_clients_of_one_layout_wherever_they_stand() -> None:
    layouts = [SMALL, LARGE, SMALL, SMALL, LARGE, LARGE, LARGE, SMALL, SMALL]
    assert places(chunks_of(make_clients(9), layouts)) == [[0, 2], [3, 7], [8], [1, 4, 5], [6]]
    assert chunks_of([], []) == []


@given(st.lists(st.sampled_from([SMALL, LARGE]), min_size=1, max_size=30), st.integers(1, 40))
def test_blocks_are_consecutive_whole_chunks_and_even(layouts: list[Layout], workers: int) -> None:
    chunks = chunks_of(CLIENTS[: len(layouts)], layouts)
    blocks = blocks_of(chunks, workers)
    assert [client for block in blocks for client in block] == [client for chunk in chunks for client in chunk]
    held = [sum(chunk[0] in block for chunk in chunks) for block in blocks]
    assert all(set(chunk) <= set(block) or not set(chunk) & set(block) for chunk in chunks for block in blocks)
    assert len(blocks) == min(workers, len(chunks))
    assert max(held) - min(held) <= 1


def test_the_first_workers_get_the_odd_chunks() -> None:
    assert places(blocks_of(chunks_of(CLIENTS[:5], [SMALL] * 5), 2)) == [[0, 1, 2, 3], [4]]
    assert places(blocks_of(chunks_of(CLIENTS[:3], [SMALL] * 3), 4)) == [[0, 1], [2]]


def test_layouts_are_found_once_for_each_client() -> None:
    asked: list[str] = []

    class Watched(type(FedAvg().bind(TASK))):  # type: ignore[misc]
        def downlink(self, server: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
            asked.append(device)
            return server

    settings = FedAvg(model="mlp-6")
    method = Watched(settings, TASK, torch.float32)
    layouts, clients = Layouts(None), make_clients(3)
    first = layouts.of(method, method.initial_state(0), clients, {})
    assert layouts.of(method, method.initial_state(0), clients, {}) == first
    assert len(set(first)) == 1
    assert first[0].chunk_size == 10
    assert asked == [client.device for client in clients]
    assert Layouts(4).of(method, method.initial_state(0), clients, {})[0].chunk_size == 4


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
@pytest.mark.parametrize("method", [FedAvg(model="mlp-6", local_steps=3, batch_size=8).bind(TASK), TwoArchitectures(), Silent()])
def test_blocks_run_apart_give_the_bits_of_one_batched_engine(workers: int, method: Method) -> None:
    """What workers do, in one process: pack, run each block, put the parts together."""
    clients, server, key = CLIENTS[:8], method.initial_state(1), RoundKey(3, 0)
    whole = CohortEngine(3).run_round(method, server, clients, key)
    blocks = blocks_of(chunks_of(clients, Layouts(3).of(method, server, clients, {})), workers)
    parts = [CohortEngine(3).run_round(method, server, [PackedClient.of(each).unpack(CPU) for each in block], key) for block in blocks]
    mixed = [client for block in blocks for client in block] != clients
    assert mixed is not isinstance(method, FedAvgMethod)
    assert_same(merge_results([PackedResult.of(part) for part in parts], CPU, mixed=mixed), whole)


def assert_same(found: RoundResult, wanted: RoundResult) -> None:
    assert found.updates.devices == wanted.updates.devices
    assert torch.equal(found.updates.sample_counts, wanted.updates.sample_counts)
    assert torch.equal(found.losses, wanted.losses)
    assert found.local_steps == wanted.local_steps
    assert len(found.updates.chunks) == len(wanted.updates.chunks)
    for chunk, other in zip(found.updates.chunks, wanted.updates.chunks, strict=True):
        assert chunk.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in chunk.items())


def test_read_only_data_make_no_noise_and_results_can_be_written() -> None:
    """Arrays from the object store are read-only; warnings are errors here."""
    packed = PackedClient.of(make_clients(1)[0])
    packed.samples.setflags(write=False)
    packed.labels.setflags(write=False)
    client = packed.unpack(CPU)
    assert client.samples.data_ptr() == packed.samples.ctypes.data  # mapped, not copied
    method = FedAvg(model="mlp-6", local_steps=1, batch_size=8).bind(TASK)
    part = PackedResult.of(LoopEngine().run_round(method, method.initial_state(0), [client], RoundKey(0, 0)))
    for array in part.chunks[0].values():
        array.setflags(write=False)
    for tensor in merge_results([part], CPU, mixed=False).updates.state.values():
        tensor.zero_()


def test_a_plan_makes_the_chosen_engine() -> None:
    assert isinstance(WorkerPlan("loop", None, "cpu", 1).make_engine(), LoopEngine)
    batched = WorkerPlan("cohort", 7, "cpu", 1).make_engine()
    assert isinstance(batched, CohortEngine)
    assert batched.chunk_size == 7


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engine.cluster import ClusterEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "fedtailor\[cluster\]"'):
        ClusterEngine()


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"chunk_size": 0}, {"replacements": -1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    from trainer.engine.cluster import ClusterEngine

    with pytest.raises(InputError, match="out of range"):
        ClusterEngine(**wrong)
