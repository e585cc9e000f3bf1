"""Accuracy of a trained method: gACC, pACC and zACC, each with its spread over devices.

- gACC: one model on the pooled held-out parts of all clients; the model is tailored to pooled unlabelled samples.
- pACC: mean accuracy of participants on their own test data.
- zACC: mean accuracy of new devices, of which nothing but unlabelled support samples is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.federation import Answers, FederatedData, Participant
from trainer.methods.base import Predictor

POOLED_SUPPORT = 256


@dataclass(frozen=True)
class Evaluation:
    """Accuracies as shares from 0 to 1.

    Attributes:
        gacc: Global accuracy.
        pacc: Mean over participants.
        zacc: Mean over new devices.
        participants: Accuracy of each participant by device id.
        new_devices: Accuracy of each new device by device id.
    """

    gacc: float
    pacc: float
    zacc: float
    participants: dict[str, float]
    new_devices: dict[str, float]


def predict(predictor: Predictor, support: NDArray[np.generic], query: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return class indices (Q,) int64 of raw query samples (Q, *shape), given raw unlabelled support (N, *shape)."""
    with torch.no_grad():
        logits = predictor.logits(torch.from_numpy(support), torch.from_numpy(query))  # (Q, C)
    labels: NDArray[np.int64] = logits.argmax(dim=1).numpy()
    return labels


def evaluate(predictor: Predictor, data: FederatedData, answers: Answers, support_size: int | None, seed: int) -> Evaluation:
    """Return the accuracies of a trained method.

    Args:
        predictor: The method at work.
        data: Participants and new devices.
        answers: Labels of the new devices' query sets.
        support_size: Unlabelled samples that a participant is tailored to, at most; None for all.
        seed: Seed of the draw of the pooled support set.
    """
    participants = {client.device: _participant_accuracy(predictor, client, support_size) for client in data.participants}
    predictions = {device.device: predict(predictor, device.support, device.query) for device in data.new_devices}
    new_devices = {name: float(np.mean(labels == answers.query_labels[name])) for name, labels in predictions.items()}
    return Evaluation(
        gacc=_global_accuracy(predictor, data, answers, seed),
        pacc=float(np.mean(list(participants.values()))),
        zacc=float(np.mean(list(new_devices.values()))),
        participants=participants,
        new_devices=new_devices,
    )


def _participant_accuracy(predictor: Predictor, client: Participant, support_size: int | None) -> float:
    """Return a participant's accuracy on its own test data, tailored to its own training samples."""
    labels = predict(predictor, client.samples[:support_size], client.test_samples)
    return float(np.mean(labels == client.test_labels))


def _global_accuracy(predictor: Predictor, data: FederatedData, answers: Answers, seed: int) -> float:
    """Return the accuracy of one model on all held-out parts, tailored to a random pooled support set."""
    unlabelled = np.concatenate([c.samples for c in data.participants] + [d.support for d in data.new_devices])
    generator = np.random.Generator(np.random.Philox(key=np.uint64(seed), counter=[0, 0, 0, 2]))
    support = unlabelled[generator.permutation(len(unlabelled))[:POOLED_SUPPORT]]
    query = np.concatenate([c.test_samples for c in data.participants] + [d.query for d in data.new_devices])
    truth = np.concatenate([c.test_labels for c in data.participants] + [answers.query_labels[d.device] for d in data.new_devices])
    return float(np.mean(predict(predictor, support, query) == truth))
