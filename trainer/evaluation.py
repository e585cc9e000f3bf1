"""Accuracy of a trained method: gACC, pACC and zACC, each with its spread over devices, with and without label-shift correction.

- gACC: one model on the pooled held-out parts of all clients; the model is tailored to pooled unlabelled samples.
- pACC: mean accuracy of participants on their own test data.
- zACC: mean accuracy of new devices on their query data, of which nothing is used for personalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from edge_runtime.label_shift import Calibration, corrected, estimate_prior
from trainer.calibration import CALIBRATIONS, CalibrationData, candidates
from trainer.data.federation import Answers, FederatedData, NewDevice, Participant, SplitSettings
from trainer.methods.base import DeviceView, Method, Predictor, PriorPredictor, State
from trainer.validation import MadeUpDevice, for_calibration, made_up_devices

POOLED_SUPPORT = 256
ROWS_AT_A_TIME = 4096
POOLED_DEVICE = "pooled"
STRANGER = "stranger"  # a device id that no participant has: nothing private is known of it
CPU = torch.device("cpu")

Logits = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Trained:
    """A method after its last round.

    Attributes:
        method: The method.
        server: Server state.
        private: What each participant kept, by device id.
        seed: Seed of the run.
        device: Where tensors live.
    """

    method: Method
    server: State
    private: Mapping[str, State]
    seed: int
    device: torch.device = CPU

    def predictor(self, name: str, support: NDArray[np.generic], labels: NDArray[np.int64] | None) -> Predictor:
        """Return the predictor of a device from its support (N, *shape) and, if the method may see them, its labels (N,)."""
        on_device = torch.from_numpy(support).to(self.device)
        known = None if labels is None else torch.from_numpy(labels).to(self.device)
        return self.method.predictor(self.server, DeviceView(name, on_device, known, self.private.get(name, {}), self.seed))

    def logits(self, predictor: Predictor, samples: NDArray[np.generic]) -> Logits:
        """Return logits (B, C) of raw samples (B, *shape)."""
        with torch.no_grad():
            pieces = [predictor(torch.from_numpy(piece).to(self.device)).cpu().numpy() for piece in _pieces(samples)]
        return np.concatenate(pieces)


def _pieces(samples: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    """Yield samples a few thousand at a time."""
    for start in range(0, len(samples), ROWS_AT_A_TIME):
        yield np.ascontiguousarray(samples[start : start + ROWS_AT_A_TIME])


@dataclass(frozen=True)
class Accuracies:
    """Accuracies as shares from 0 to 1.

    Attributes:
        gacc: Global accuracy.
        pacc: Mean over participants.
        zacc: Mean over new devices.
        worst_tenth: Mean over the worst tenth of the new devices, at least one.
        deviation: Standard deviation over the new devices.
        participants: Accuracy of each participant by device id.
        new_devices: Accuracy of each new device by device id.
        groups: Mean accuracy of the participants of each group, where devices are of several kinds.
    """

    gacc: float
    pacc: float
    zacc: float
    worst_tenth: float
    deviation: float
    participants: dict[str, float]
    new_devices: dict[str, float]
    groups: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """What the last round reached.

    Attributes:
        plain: As the method stands.
        shifted: With each device's class prior estimated from its unlabelled samples.
        calibration: Name of the calibration that correction uses, one of ``CALIBRATIONS``.
        calibration_values: Its ``scale``, and its ``bias``, one number a class: what a bundle carries to devices.
        new_device_uses: What the method reads of a new device: ``nothing``, ``samples`` or ``labels``.
        candidates: For every calibration ``judged``, what the choice rests on, and ``zacc``, for information.
        validation: Mean accuracy on made-up devices from participants' validation samples, plain; None without such samples.
        validation_shifted: The same with label shift corrected.
        confusion: Of all new devices' query samples, [true class][predicted class].
    """

    plain: Accuracies
    shifted: Accuracies
    calibration: str
    calibration_values: dict[str, float | list[float]]
    new_device_uses: str
    candidates: dict[str, dict[str, float]]
    validation: float | None
    validation_shifted: float | None
    confusion: list[list[int]]


@dataclass(frozen=True, eq=False)
class Scored:
    """One device.

    Attributes:
        device: Device id.
        support: Logits of its support, (N, C), without the prior that the method itself may have read.
        held_out: Logits of its held-out samples, (B, C), likewise.
        labels: Their classes, (B,).
        own_log_prior: Logarithms of the prior that the method read, (C,), or 0 where it reads none.
    """

    device: str
    support: Logits
    held_out: Logits
    labels: NDArray[np.int64]
    own_log_prior: NDArray[np.floating] | float = 0.0

    def predictions(self, calibration: Calibration | None) -> NDArray[np.int64]:
        """Return class indices (B,), corrected by the device's own class prior if there is a calibration."""
        scores = self.held_out + self.own_log_prior  # (B, C)
        if calibration is not None:
            scores = corrected(self.held_out, calibration, estimate_prior(self.support, calibration))  # (B, C)
        found: NDArray[np.int64] = scores.argmax(axis=1)
        return found

    def accuracy(self, calibration: Calibration | None) -> float:
        """Return the share of right labels."""
        return float(np.mean(self.predictions(calibration) == self.labels))


def evaluate(
    trained: Trained, data: FederatedData, answers: Answers, split: SplitSettings, correction: tuple[str, ...] = CALIBRATIONS
) -> Evaluation:
    """Return the accuracies of a trained method.

    Args:
        trained: The method at work.
        data: Participants and new devices.
        answers: Labels of the new devices; those of the support reach a method only if it declares that it uses labels.
        split: The cut; its support size bounds what a participant is tailored to.
        correction: Calibrations that label-shift correction may choose from, on participants' data.
    """
    sees_labels = trained.method.new_device_uses == "labels"
    participants = [_score_participant(trained, client, split.support_size) for client in data.participants]
    new = [_score_new(trained, device, answers, sees_labels=sees_labels) for device in data.new_devices]
    made_up = [_score_made_up(trained, device, sees_labels=sees_labels) for device in made_up_devices(data, split)]
    pooled = _score_pooled(trained, data, answers)
    found = candidates([_calibration_data(trained, client, split.support_size, sees_labels=sees_labels) for client in data.participants])
    judged = {each: _mean_accuracy(made_up, own) for each, own in found.calibrations.items()} if made_up else found.scores
    name, calibration = found.choose(correction, judged)
    return Evaluation(
        plain=_accuracies(trained.method, participants, new, pooled, None),
        shifted=_accuracies(trained.method, participants, new, pooled, calibration),
        calibration=name,
        calibration_values={"scale": calibration.scale, "bias": calibration.bias.tolist()},
        new_device_uses=trained.method.new_device_uses,
        candidates={each: {"judged": judged[each], "zacc": _mean_accuracy(new, own)} for each, own in found.calibrations.items()},
        validation=_mean_accuracy(made_up, None) if made_up else None,
        validation_shifted=_mean_accuracy(made_up, calibration) if made_up else None,
        confusion=_confusion(new),
    )


def _mean_accuracy(devices: list[Scored], calibration: Calibration | None) -> float:
    """Return the mean accuracy over devices; NaN over none."""
    return float(np.mean([each.accuracy(calibration) for each in devices])) if devices else float("nan")


def _accuracies(
    method: Method, participants: list[Scored], new: list[Scored], pooled: Scored, calibration: Calibration | None
) -> Accuracies:
    """Return all accuracies, corrected or not."""
    own = {each.device: each.accuracy(calibration) for each in participants}
    unseen = {each.device: each.accuracy(calibration) for each in new}
    values = sorted(unseen.values()) or [float("nan")]
    return Accuracies(
        gacc=pooled.accuracy(calibration),
        pacc=float(np.mean(list(own.values()))),
        zacc=float(np.mean(values)),
        worst_tenth=float(np.mean(values[: max(1, len(values) // 10)])),
        deviation=float(np.std(values)),
        participants=own,
        new_devices=unseen,
        groups=_by_group(method, own),
    )


def _by_group(method: Method, accuracies: Mapping[str, float]) -> dict[str, float]:
    """Return the mean accuracy of each group of devices; nothing where all are alike."""
    groups: dict[str, list[float]] = {}
    for device, accuracy in accuracies.items():
        groups.setdefault(method.group(device), []).append(accuracy)
    return {name: float(np.mean(values)) for name, values in sorted(groups.items()) if name}


def _score_participant(trained: Trained, client: Participant, support_size: int | None) -> Scored:
    """Return a participant scored on its test data, tailored to its own training samples."""
    support = client.samples[:support_size]
    predictor = trained.predictor(client.device, support, client.labels[:support_size])
    return _score(trained, client.device, predictor, support, (client.test_samples, client.test_labels))


def _score(
    trained: Trained,
    name: str,
    predictor: Predictor,
    support: NDArray[np.generic],
    held_out: tuple[NDArray[np.generic], NDArray[np.int64]],
) -> Scored:
    """Return a device scored on held-out samples (B, *shape) with labels (B,)."""
    samples, labels = held_out
    if not isinstance(predictor, PriorPredictor):
        return Scored(name, trained.logits(predictor, support), trained.logits(predictor, samples), labels)
    scores, own = predictor.scores, predictor.log_prior.cpu().numpy()
    return Scored(name, trained.logits(scores, support), trained.logits(scores, samples), labels, own)


def _calibration_data(trained: Trained, client: Participant, support_size: int | None, *, sees_labels: bool) -> CalibrationData:
    """Return a participant's logits for calibration, from the classifier that a new device in its place would run."""
    support = client.samples[:support_size]
    predictor = trained.predictor(STRANGER, support, client.labels[:support_size] if sees_labels else None)
    predictor = predictor.scores if isinstance(predictor, PriorPredictor) else predictor
    samples, labels = for_calibration(client)
    classes = trained.logits(predictor, support[:1]).shape[1]
    counts = np.bincount(client.labels, minlength=classes)
    return CalibrationData(trained.logits(predictor, support), trained.logits(predictor, samples), labels, counts)


def _score_new(trained: Trained, device: NewDevice, answers: Answers, *, sees_labels: bool) -> Scored:
    """Return a new device scored on its query data."""
    labels = answers.support_labels[device.device] if sees_labels else None
    predictor = trained.predictor(device.device, device.support, labels)
    return _score(trained, device.device, predictor, device.support, (device.query, answers.query_labels[device.device]))


def _score_made_up(trained: Trained, device: MadeUpDevice, *, sees_labels: bool) -> Scored:
    """Return a made-up device scored on its query data."""
    predictor = trained.predictor(device.device, device.support, device.support_labels if sees_labels else None)
    return _score(trained, device.device, predictor, device.support, (device.query, device.query_labels))


def _score_pooled(trained: Trained, data: FederatedData, answers: Answers) -> Scored:
    """Return one model scored on all held-out parts, tailored to a random pooled support set."""
    unlabelled = np.concatenate([c.samples for c in data.participants] + [d.support for d in data.new_devices])
    generator = np.random.Generator(np.random.Philox(key=np.uint64(trained.seed), counter=[0, 0, 0, 2]))
    support = unlabelled[generator.permutation(len(unlabelled))[:POOLED_SUPPORT]]
    query = np.concatenate([c.test_samples for c in data.participants] + [d.query for d in data.new_devices])
    truth = np.concatenate([c.test_labels for c in data.participants] + [answers.query_labels[d.device] for d in data.new_devices])
    predictor = trained.predictor(POOLED_DEVICE, support, None)
    return _score(trained, POOLED_DEVICE, predictor, support, (query, truth))


def _confusion(new: list[Scored]) -> list[list[int]]:
    """Return the confusion matrix of the new devices' query samples, (C, C)."""
    classes = new[0].held_out.shape[1] if new else 0
    matrix = np.zeros((classes, classes), np.int64)
    for each in new:
        np.add.at(matrix, (each.labels, each.predictions(None)), 1)
    return [list(map(int, row)) for row in matrix]
