"""One domain for each client, its classes alike or skewed.

Client number i holds domain number i modulo the number of domains. So with as many participants as domains each of them
has its own, and with fewer the new devices come from domains that nobody trained on. Where a cut names the number of
training domains, participants go round in those, and new devices round in all, beginning again at the first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray, check_enough
from trainer.data.partitions.dirichlet import dirichlet_shares
from trainer.data.partitions.minimum import raise_to_minimum

# Cuts one domain: labels of its samples (N,), number of its clients -> positions among them.
DomainCut = Callable[[IndexArray, int], list[IndexArray]]


def domain_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares of one domain each; clients of the same domain share it equally."""
    return _by_domain(dataset, cut, lambda labels, clients: np.array_split(generator.permutation(len(labels)), clients))


def domain_dirichlet_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares of one domain each; clients of the same domain differ in their class mixes."""
    return _by_domain(dataset, cut, lambda labels, clients: dirichlet_shares(labels, clients, cut.concentration, generator))


def _by_domain(dataset: Dataset, cut: Cut, cut_domain: DomainCut) -> list[IndexArray]:
    """Cut each domain among its clients; only a minimum that a domain cannot meet brings in samples of others.

    Raises:
        DatasetError: The data set has no domains, or more than clients.
    """
    check_enough(len(dataset.labels), cut)
    if dataset.domains is None:
        raise DatasetError(f"{dataset.name} has no domains", hint="load a folder of domain/class/image, or choose another partition")
    present = np.unique(dataset.domains)
    held = _domains_held(cut, len(present))
    if len(set(held)) < len(present):
        expected = f"every one of {len(present)} domains on at least one device"
        raise DatasetError("some domains would belong to no device", expected=expected, got=f"{cut.clients} devices")
    shares: list[IndexArray] = [np.empty(0, np.int64)] * cut.clients
    for place, domain in enumerate(present):
        members = np.flatnonzero(dataset.domains == domain)
        clients = [client for client, own in enumerate(held) if own == place]
        for client, piece in zip(clients, cut_domain(dataset.labels[members], len(clients)), strict=True):
            shares[client] = members[piece]
    return raise_to_minimum(shares, cut.minimum, dataset.domains)


def _domains_held(cut: Cut, domains: int) -> list[int]:
    """Return the domain of each client.

    Raises:
        DatasetError: More training domains are named than there are.
    """
    if not cut.training_domains:
        return [client % domains for client in range(cut.clients)]
    if cut.training_domains > domains:
        raise DatasetError("there are too few domains to train on", expected=f"training_domains up to {domains}", got=cut.training_domains)
    participants = [client % cut.training_domains for client in range(cut.participants)]
    return participants + [client % domains for client in range(cut.clients - cut.participants)]
