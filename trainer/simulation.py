"""The federation as a program sees it: choose a method and data, fit, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from edge_runtime.sampling import ClassIndex
from protocol.errors import DivergenceError
from trainer.data.dataset import Dataset
from trainer.data.federation import Answers, FederatedData, SplitSettings, split_dataset
from trainer.data.presets import preset_for
from trainer.engine.base import Client, Engine, RoundKey, RoundResult
from trainer.engine.cohort import CohortEngine
from trainer.evaluation import Evaluation, evaluate
from trainer.methods.base import Method, MethodSettings, State, Task

OnRound = Callable[[int, RoundResult, State], None]


@dataclass(frozen=True, eq=False)
class FittedRun:
    """A trained method with the devices it was trained for.

    Attributes:
        method: The method bound to its task.
        state: Server state after the last round.
        data: Participants and new devices.
        seconds: Seconds that training took, data loading and evaluation aside.
    """

    method: Method
    state: State
    data: FederatedData
    seconds: float
    _answers: Answers
    _split: SplitSettings

    def evaluate(self) -> Evaluation:
        """Return gACC, pACC and zACC after the last round."""
        return evaluate(self.method.predictor(self.state), self.data, self._answers, self._split.support_size, self._split.seed)


class Federation:
    """A simulated federation.

    Args:
        settings: The method's settings.
        dataset: The data.
        participants: Clients that take part; the data set's preset when None.
        new_devices: Clients held out whole; the preset's number when None.
        seed: Seed of the cut, the initialisation and every draw.
        engine: How steps run; the batched engine when None.
    """

    def __init__(
        self,
        settings: MethodSettings,
        dataset: Dataset,
        *,
        participants: int | None = None,
        new_devices: int | None = None,
        seed: int = 0,
        engine: Engine | None = None,
    ) -> None:
        split = default_split(dataset, seed)
        self.split = replace(
            split,
            participants=split.participants if participants is None else participants,
            new_devices=split.new_devices if new_devices is None else new_devices,
        )
        self.task = task_of(dataset)
        self.method = settings.bind(self.task)
        self.data, self._answers = split_dataset(dataset, self.split)
        self.seed = seed
        self.engine = engine or CohortEngine()

    def fit(self, rounds: int, on_round: OnRound | None = None) -> FittedRun:
        """Train for a number of rounds.

        Args:
            rounds: Rounds, all participants in each.
            on_round: Called after each round with its number, 0-based, its result and the new server state.

        Raises:
            DivergenceError: A round's loss or state is not finite.
        """
        state = self.method.initial_state(self.seed)
        clients = make_clients(self.data)
        started = time.perf_counter()
        for number, result, next_state in train_rounds(self.method, state, clients, self.engine, range(rounds), self.seed):
            state = next_state
            if on_round is not None:
                on_round(number, result, state)
        return FittedRun(self.method, state, self.data, time.perf_counter() - started, self._answers, self.split)


def train_rounds(
    method: Method, state: State, clients: Sequence[Client], engine: Engine, rounds: range, seed: int
) -> Iterator[tuple[int, RoundResult, State]]:
    """Yield each round's number, result and server state."""
    for number in rounds:
        result = engine.run_round(method, state, clients, RoundKey(seed, number))
        state = method.aggregate(state, result.updates)
        if not np.isfinite(result.loss) or not all(torch.isfinite(tensor).all() for tensor in state.values()):
            raise DivergenceError(_where_it_diverged(result, number), got=f"loss {result.loss}", hint="lower learning_rate or clip_norm")
        yield number, result, state


def _where_it_diverged(result: RoundResult, number: int) -> str:
    """Return the beginning of the sentence that tells round and device."""
    stacked = result.updates.state.values()
    finite = torch.stack([torch.isfinite(tensor).flatten(1).all(dim=1) for tensor in stacked]).all(dim=0)  # (M,)
    devices = [device for device, fine in zip(result.updates.devices, finite.tolist(), strict=True) if not fine]
    return f"training diverged in round {number}, " + (f"first on {devices[0]}" if devices else "in the mean over devices")


def make_clients(data: FederatedData) -> list[Client]:
    """Return the participants as the engines want them."""
    return [
        Client(each.device, torch.from_numpy(each.samples), torch.from_numpy(each.labels), ClassIndex(each.labels))
        for each in data.participants
    ]


def task_of(dataset: Dataset) -> Task:
    """Return what a method knows of a data set."""
    return Task(dataset.sample_shape, str(dataset.samples.dtype), dataset.minimum, dataset.maximum, dataset.classes)


def default_split(dataset: Dataset, seed: int) -> SplitSettings:
    """Return the preset cut of a data set."""
    preset = preset_for(dataset.name)
    return SplitSettings(preset.participants, preset.new_devices, preset.concentration, preset.minimum_samples, preset.support_size, seed)
