"""The bench: its table, its JSON, and that all contestants do the same gradient steps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from edge_runtime.sampling import DrawKey
from trainer.bench.contestants import federated, plain_loop
from trainer.bench.peers import SECONDS_LINE
from trainer.bench.work import BATCH, COHORT, SAMPLES, make_work, plain_network, weights_of
from trainer.engine.base import RoundKey
from trainer.engine.cohort import CohortEngine
from trainer.methods.base import Repeat
from trainer.simulation import select_cohort


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_our_network_and_the_plain_one_have_the_same_weights(name: str) -> None:
    assert weights_of(name) == sum(tensor.numel() for tensor in plain_network(name).parameters())


def test_a_round_of_the_work_is_what_it_says() -> None:
    work = make_work("mlp")
    method, clients = work.method(), work.clients()
    cohort = select_cohort(clients, 0.05, 0, 0)
    result = CohortEngine().run_round(method, method.initial_state(0), cohort, RoundKey(0, 0))
    assert len(result.updates.devices) == COHORT
    assert result.local_steps == COHORT * SAMPLES // BATCH


def test_the_contestants_run() -> None:
    work = make_work("mlp")
    for run in (plain_loop(work), federated(work, CohortEngine())):
        run(0)


def test_one_client_ends_where_a_plain_loop_ends() -> None:
    """The same start, the same batches: our step of the work is the plain loop's step."""
    work = make_work("mlp")
    method, client = work.method(), work.clients()[3]
    state = method.initial_state(0)
    ours = CohortEngine().run_round(method, state, [client], RoundKey(0, 0)).updates.state
    model = plain_network("mlp")
    with torch.no_grad():
        for weight, tensor in zip(model.parameters(), state.values(), strict=True):
            weight.copy_(tensor)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    (phase,) = method.phases()
    assert isinstance(phase, Repeat)
    order = phase.draw.draw(DrawKey(0, 0, client.device), client.index, SAMPLES // BATCH)
    for places in order:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(client.samples[places]), client.labels[places]).backward()
        optimizer.step()
    for weight, tensor in zip(model.parameters(), ours.values(), strict=True):
        torch.testing.assert_close(weight.detach(), tensor[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_command_prints_the_figures_as_json() -> None:
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "bench",
        "simulation",
        "--work",
        "mlp",
        "--rounds",
        "1",
        "--no-peers",
        "--json",
        "--quiet",
    ]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert {"plain", "loop", "cohort", "auto", "compile_seconds"} <= found["mlp"].keys()
    assert all(found["mlp"][name] > 0 for name in ("plain", "loop", "cohort", "auto"))
    assert found["mlp"]["compile_seconds"] >= 0


def test_a_peers_figure_is_read_from_its_last_line() -> None:
    match = SECONDS_LINE.search("noise\ns_per_round 0.125000\n")
    assert match is not None
    assert float(match.group(1)) == 0.125
