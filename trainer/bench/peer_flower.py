"""Flower's simulation engine on the common work: ``python -m trainer.bench.peer_flower mlp 5``.

One CPU for each client, FedAvg, no evaluation; the figure is the mean over rounds after the first.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from trainer.bench.work import BATCH, COHORT, RATE, SAMPLES, USERS, Work, make_work, plain_network

_LOADED: dict[str, tuple[Work, nn.Module]] = {}  # one data set and one network in each of Flower's processes


def loaded(work: str) -> tuple[Work, nn.Module]:
    """Return data and network of this process."""
    if work not in _LOADED:
        _LOADED[work] = make_work(work), plain_network(work)
    return _LOADED[work]


class Client(NumPyClient):  # type: ignore[misc]  # Flower ships no complete types
    """One user."""

    def __init__(self, work: str, user: int) -> None:
        self.work = work
        self.user = user

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Return the weights after one local epoch."""
        data, network = loaded(self.work)
        with torch.no_grad():
            for weight, array in zip(network.parameters(), parameters, strict=True):
                weight.copy_(torch.tensor(array))
        optimizer = torch.optim.SGD(network.parameters(), RATE)
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            logits = network(data.samples[self.user, start : start + BATCH])  # (B, C)
            torch.nn.functional.cross_entropy(logits, data.labels[self.user, start : start + BATCH]).backward()
            optimizer.step()
        return [weight.detach().numpy() for weight in network.parameters()], SAMPLES, {}


def server_components(work: str, rounds: int, times: list[float]) -> ServerAppComponents:
    """Return FedAvg that notes when each round ends."""

    class Clocked(FedAvg):  # type: ignore[misc]  # Flower ships no complete types
        def aggregate_fit(self, *arguments: Any) -> Any:
            """Aggregate and note the time."""
            result = super().aggregate_fit(*arguments)
            times.append(time.perf_counter())
            return result

    initial = ndarrays_to_parameters([weight.detach().numpy() for weight in plain_network(work).parameters()])
    strategy = Clocked(
        fraction_fit=COHORT / USERS,
        fraction_evaluate=0.0,
        min_fit_clients=COHORT,
        min_available_clients=USERS,
        initial_parameters=initial,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


def main(work: str, rounds: int) -> None:
    """Run some rounds and print seconds per round."""
    times: list[float] = []
    server = ServerApp(server_fn=lambda _: server_components(work, rounds + 1, times))
    client = ClientApp(client_fn=lambda context: Client(work, int(context.node_config["partition-id"])).to_client())
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=USERS, backend_config=resources)
    sys.stdout.write(f"s_per_round {(times[-1] - times[0]) / (len(times) - 1):.6f}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
