"""What is timed: each contestant is a function that runs one round of the work."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from trainer.bench.work import BATCH, COHORT, RATE, SAMPLES, USERS, Work, plain_network
from trainer.engine.base import Engine, RoundKey
from trainer.simulation import select_cohort

Round = Callable[[int], None]


def plain_loop(work: Work) -> Round:
    """Return a round as a PyTorch user would write it: the floor of a sequential simulator."""
    server = plain_network(work.name)
    model = copy.deepcopy(server)

    def run(_: int) -> None:
        totals = [torch.zeros_like(weight) for weight in server.parameters()]
        for user in torch.randperm(USERS)[:COHORT]:
            model.load_state_dict(server.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), RATE)
            for start in range(0, SAMPLES, BATCH):
                optimizer.zero_grad()
                logits = model(work.samples[user, start : start + BATCH])  # (B, C)
                torch.nn.functional.cross_entropy(logits, work.labels[user, start : start + BATCH]).backward()
                optimizer.step()
            for total, weight in zip(totals, model.parameters(), strict=True):
                total.add_(weight.detach() / COHORT)
        with torch.no_grad():
            for weight, total in zip(server.parameters(), totals, strict=True):
                weight.copy_(total)

    return run


def federated(work: Work, engine: Engine) -> Round:
    """Return a round of our FedAvg on an engine: selection, draws, local steps, aggregation."""
    method, clients = work.method(), work.clients()
    state = method.initial_state(0)

    def run(number: int) -> None:
        nonlocal state
        cohort = select_cohort(clients, COHORT / USERS, 0, number)
        state = method.aggregate(state, engine.run_round(method, state, cohort, RoundKey(0, number)).updates)

    return run
