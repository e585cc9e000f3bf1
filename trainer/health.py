"""What the devices look like to a trained method: class mixes, embeddings, and whether the embeddings say anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.data.federation import Answers, FederatedData
from trainer.evaluation import Trained


@dataclass(frozen=True)
class EmbeddingHealth:
    """Whether embeddings tell devices apart.

    Attributes:
        deviation: Standard deviation over devices, mean over dimensions; 0 when all devices look alike.
        effective_dimensions: exp of the entropy of the covariance's normalised eigenvalues, 1 to E.
        class_mix_probe: R² of a ridge regression from embedding to class mix, left one device out; 1 is perfect, 0 or
            below says nothing.
    """

    deviation: float
    effective_dimensions: float
    class_mix_probe: float


def device_table(trained: Trained, data: FederatedData, answers: Answers) -> dict[str, Any]:
    """Return class counts and embedding of every device, and the embeddings' health, as plain values.

    The new devices' counts come from their answers: they are for the report alone.
    """
    labels = {client.device: client.labels for client in data.participants} | dict(answers.query_labels)
    supports = {client.device: client.samples for client in data.participants} | {each.device: each.support for each in data.new_devices}
    participants = {client.device for client in data.participants}
    classes = 1 + max(int(each.max(initial=0)) for each in labels.values())
    counts = {name: np.bincount(each, minlength=classes) for name, each in labels.items()}
    embeddings = {name: _embedding(trained, support) for name, support in supports.items()}
    devices = {
        name: {
            "participant": name in participants,
            "class_counts": counts[name].tolist(),
            "embedding": None if (own := embeddings[name]) is None else own.tolist(),
        }
        for name in sorted(supports)
    }
    seen = {name: own for name, own in embeddings.items() if name in participants}  # a choice may rest on health: no answers here
    known = [(own, counts[name] / max(1, counts[name].sum())) for name, own in seen.items() if own is not None]
    health = embedding_health(*map(np.stack, zip(*known, strict=True))) if len(known) > 2 else None
    return {"devices": devices, "embedding_health": None if health is None else vars(health)}


def _embedding(trained: Trained, support: NDArray[np.generic]) -> NDArray[np.float64] | None:
    """Return a device's embedding (E,), or None."""
    with torch.no_grad():
        found = trained.method.device_embedding(trained.server, torch.from_numpy(support).to(trained.device))
    return None if found is None else found.cpu().numpy().astype(np.float64)


def embedding_health(embeddings: NDArray[np.float64], class_mixes: NDArray[np.float64]) -> EmbeddingHealth:
    """Return the health of embeddings (M, E) of devices with class mixes (M, C), M at least 3."""
    centred = embeddings - embeddings.mean(axis=0)  # (M, E)
    eigenvalues = np.linalg.svd(centred, compute_uv=False) ** 2
    shares = eigenvalues / max(eigenvalues.sum(), 1e-30)
    entropy = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    return EmbeddingHealth(float(embeddings.std(axis=0).mean()), float(np.exp(entropy)), _probe(embeddings, class_mixes))


def _probe(embeddings: NDArray[np.float64], class_mixes: NDArray[np.float64]) -> float:
    """Return the leave-one-out R² of a ridge regression from embeddings (M, E) to class mixes (M, C)."""
    scale = float(embeddings.std())
    if scale < 1e-9:  # all devices look alike: nothing can be read
        return 0.0
    inputs = np.column_stack([embeddings / scale, np.ones(len(embeddings))])  # (M, E + 1)
    hat = inputs @ np.linalg.solve(inputs.T @ inputs + 0.1 * np.eye(inputs.shape[1]), inputs.T)  # (M, M)
    residual = (class_mixes - hat @ class_mixes) / (1 - np.diag(hat))[:, None]  # (M, C), exact for ridge
    spread = class_mixes - class_mixes.mean(axis=0)
    return float(1 - (residual**2).sum() / max((spread**2).sum(), 1e-30))
