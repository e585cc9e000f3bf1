"""The training side: federated personalization methods, simulated on one machine, and the coordinator of real rounds.

from trainer import Federation, HyperFedZero, load_dataset

run = Federation(HyperFedZero(), load_dataset("fashion-mnist"), participants=10, seed=0).fit(rounds=200)
run.evaluate()
"""

from __future__ import annotations

import importlib

# Loaded when asked for: the coordinator lives in this package too and must not wait for torch.
_HOMES = {
    "Evaluation": "trainer.evaluation",
    "FedAvg": "trainer.methods.fedavg",
    "Federation": "trainer.simulation",
    "FittedRun": "trainer.simulation",
    "HyperFedZero": "trainer.methods.hyperfedzero",
    "Run": "trainer.runs",
    "load_dataset": "trainer.data.datasets",
}

__all__ = ["Evaluation", "FedAvg", "Federation", "FittedRun", "HyperFedZero", "Run", "load_dataset"]


def __getattr__(name: str) -> object:
    """Return a public name, importing the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
