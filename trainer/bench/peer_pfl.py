"""pfl-research's simulated backend on the common work, in one process: ``python -m trainer.bench.peer_pfl mlp 10``.

Its public interface is used as its CIFAR-10 benchmark uses it; the figure is the mean over rounds after the first.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from trainer.bench.work import BATCH, COHORT, RATE, USERS, make_work, plain_network

NEVER = 10**6


class Network(nn.Module):
    """The work's network with the two methods that pfl-research asks of a model."""

    def __init__(self, work: str) -> None:
        super().__init__()
        self.inner = plain_network(work)

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        """Return the mean cross-entropy of samples (B, *shape) and labels (B,)."""
        return torch.nn.functional.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return nothing worth knowing: only time is measured."""
        return {"loss": Weighted(0.0, 1)}


class Clock(TrainingProcessCallback):  # type: ignore[misc]  # pfl-research ships no complete types
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        """Note the time and go on."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main(work: str, rounds: int) -> None:
    """Run some rounds and print seconds per round."""
    data, network, clock = make_work(work), Network(work), Clock()
    users = list(range(USERS))
    dataset = FederatedDataset(
        lambda user: Dataset([data.samples[user], data.labels[user]], user_id=user), get_user_sampler("random", users)
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=NEVER, train_cohort_size=COHORT, val_cohort_size=None
        ),
        backend=SimulatedBackend(training_data=dataset, val_data=dataset),
        model=PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0)),
        model_train_params=NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    sys.stdout.write(f"s_per_round {(clock.times[-1] - clock.times[0]) / (len(clock.times) - 1):.6f}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
