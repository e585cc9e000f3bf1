"""The federation as a program sees it: choose a method and data, fit, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from edge_runtime.sampling import ClassIndex, DrawKey
from protocol.errors import DivergenceError, InputError
from trainer.calibration import CALIBRATIONS
from trainer.data.dataset import Dataset
from trainer.data.federation import Answers, FederatedData, SplitSettings, split_dataset
from trainer.data.presets import preset_for
from trainer.engine.auto import AutoEngine
from trainer.engine.base import Client, Engine, RoundKey, RoundResult
from trainer.evaluation import CPU, Evaluation, Trained, evaluate
from trainer.methods.base import Method, MethodSettings, State, Task


@dataclass(frozen=True, eq=False)
class Progress:
    """Where training stands: all that the next round depends on, beside the run's configuration.

    Attributes:
        rounds: Rounds done.
        server: Server state.
        private: What each client keeps, by device id.
    """

    rounds: int
    server: State
    private: Mapping[str, State] = field(default_factory=dict)


OnRound = Callable[[RoundResult, Progress], None]


@dataclass(frozen=True, eq=False)
class FittedRun:
    """A trained method with the devices it was trained for.

    Attributes:
        method: The method bound to its task.
        progress: Server and private states after the last round.
        data: Participants and new devices.
        seconds: Seconds that training took, data loading and evaluation aside.
    """

    method: Method
    progress: Progress
    data: FederatedData
    seconds: float
    _answers: Answers
    _split: SplitSettings
    _device: torch.device

    @property
    def state(self) -> State:
        """Return the server state after the last round."""
        return self.progress.server

    @property
    def trained(self) -> Trained:
        """Return the method as it can be put to work on devices."""
        return Trained(self.method, self.progress.server, self.progress.private, self._split.seed, self._device)

    def evaluate(self, correction: tuple[str, ...] = CALIBRATIONS) -> Evaluation:
        """Return gACC, pACC and zACC after the last round, plain and with label-shift correction."""
        return evaluate(self.trained, self.data, self._answers, self._split, correction)


@dataclass(frozen=True, eq=False)
class Execution:
    """How rounds are run.

    Attributes:
        engine: How steps run; when None, one is chosen by timing.
        fraction: Share of the participants that each round selects.
        device: Where tensors live.
    """

    engine: Engine | None = None
    fraction: float = 1.0
    device: torch.device = CPU

    def __post_init__(self) -> None:
        """Refuse a share that selects nobody, or more than there are."""
        if not 0 < self.fraction <= 1:
            raise InputError("fraction is out of range", expected="more than 0, at most 1", got=self.fraction)


class Federation:
    """A simulated federation.

    Args:
        settings: The method's settings.
        dataset: The data.
        participants: Clients that take part; the cut's number when None.
        seed: Seed of the cut, the initialisation and every draw.
        split: How the data become devices; the data set's preset when None.
        execution: How rounds are run; everybody on the CPU when None.
    """

    def __init__(
        self,
        settings: MethodSettings,
        dataset: Dataset,
        *,
        participants: int | None = None,
        seed: int = 0,
        split: SplitSettings | None = None,
        execution: Execution | None = None,
    ) -> None:
        chosen, how = split or default_split(dataset, seed), execution or Execution()
        self.split = replace(chosen, participants=chosen.participants if participants is None else participants, seed=seed)
        self.task = task_of(dataset)
        self.method = placed(settings.bind(self.task), how.device)
        self.data, self.answers = split_dataset(dataset, self.split)
        self.seed = seed
        self.fraction = how.fraction
        self.device = how.device
        self.engine = how.engine or AutoEngine()
        self.clients = make_clients(self.data, self.device)

    def begin(self) -> Progress:
        """Return the state before the first round: participants enrol, the server draws its weights."""
        enrolled = {client.device: self.method.enrol(client.samples, client.labels) for client in self.clients}
        state = self.method.initial_state(self.seed, enrolled)
        return Progress(0, {name: tensor.to(self.device) for name, tensor in state.items()})

    def fit(self, rounds: int, on_round: OnRound | None = None, start: Progress | None = None) -> FittedRun:
        """Train until ``rounds`` rounds are done.

        Args:
            rounds: Rounds in all.
            on_round: Called after each round with its result and the new states.
            start: Where an interrupted run stood; the beginning when None.

        Raises:
            DivergenceError: A round's loss or state is not finite.
        """
        progress = start or self.begin()
        started = time.perf_counter()
        for result, after in self.rounds(progress, rounds):
            progress = after
            if on_round is not None:
                on_round(result, progress)
        seconds = time.perf_counter() - started
        return FittedRun(self.method, progress, self.data, seconds, self.answers, self.split, self.device)

    def rounds(self, progress: Progress, until: int) -> Iterator[tuple[RoundResult, Progress]]:
        """Yield each round's result and the states after it."""
        for number in range(progress.rounds, until):
            cohort = select_cohort(self.clients, self.fraction, self.seed, number)
            result = self.engine.run_round(self.method, progress.server, cohort, RoundKey(self.seed, number), progress.private)
            check_finite(result, (*result.updates.chunks, *result.private.values()), number)  # before anything is made of them
            server = self.method.aggregate(progress.server, result.updates)
            check_finite(result, (server,), number)
            progress = Progress(number + 1, server, {**progress.private, **result.private})
            yield result, progress


def placed(method: Method, device: torch.device) -> Method:
    """Return a method whose networks live on a device: their buffers take part in every step."""
    for value in vars(method).values():
        if isinstance(value, nn.Module):
            value.to(device)
    return method


def select_cohort(clients: Sequence[Client], fraction: float, seed: int, number: int) -> list[Client]:
    """Return the clients of a round: a random share of them, at least one, the same for the same seed and round."""
    if fraction >= 1:
        return list(clients)
    ordered = sorted(clients, key=lambda client: client.device)
    chosen = DrawKey(seed, number, "server").stream("cohort").permutation(len(ordered))[: max(1, round(fraction * len(ordered)))]
    return [ordered[place] for place in sorted(chosen)]


def check_finite(result: RoundResult, states: Sequence[State], number: int) -> None:
    """Refuse a round whose losses, or one of whose states, are not finite.

    Raises:
        DivergenceError: With round, client and what to lower.
    """
    if np.isfinite(result.loss) and all(map(_all_finite, states)):
        return
    hint = "lower learning_rate or clip_norm"
    raise DivergenceError(_where_it_diverged(result, number), got=f"loss {result.loss}", hint=hint)


def _all_finite(state: State) -> bool:
    """Tell whether a state holds neither NaN nor infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values() if tensor.is_floating_point())


def _where_it_diverged(result: RoundResult, number: int) -> str:
    """Return the beginning of the sentence that tells round and client."""
    finite = torch.isfinite(result.losses)  # (M,)
    for place, device in enumerate(result.updates.devices):
        if not finite[place] or not _is_finite(result, place) or not _all_finite(result.private.get(device, {})):
            return f"training diverged in round {number}, first on {device}"
    return f"training diverged in round {number}, in the aggregate"


def _is_finite(result: RoundResult, place: int) -> bool:
    """Tell whether all that one client sent is finite."""
    for chunk in result.updates.chunks:
        size = len(next(iter(chunk.values()), ()))  # 0 where nothing travels
        if place < size:
            return all(bool(torch.isfinite(tensor[place]).all()) for tensor in chunk.values())
        place -= size
    return True


def make_clients(data: FederatedData, device: torch.device | None = None) -> list[Client]:
    """Return the participants as the engines want them, their data on ``device``."""
    where = device or torch.device("cpu")
    return [
        Client(each.device, torch.from_numpy(each.samples).to(where), torch.from_numpy(each.labels).to(where), ClassIndex(each.labels))
        for each in data.participants
    ]


def task_of(dataset: Dataset) -> Task:
    """Return what a method knows of a data set."""
    return Task(dataset.sample_shape, str(dataset.samples.dtype), dataset.minimum, dataset.maximum, dataset.classes)


def default_split(dataset: Dataset, seed: int) -> SplitSettings:
    """Return the preset cut of a data set."""
    preset = preset_for(dataset.name)
    numbers = preset.participants, preset.new_devices, preset.concentration, preset.minimum_samples, preset.support_size
    return SplitSettings(*numbers, seed, **preset.split)
