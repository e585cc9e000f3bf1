"""Every partition by its name in settings."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.data.partitions.base import Partition
from trainer.data.partitions.classes import classes_partition
from trainer.data.partitions.dirichlet import dirichlet_partition
from trainer.data.partitions.domains import domain_dirichlet_partition, domain_partition
from trainer.data.partitions.iid import iid_partition
from trainer.data.partitions.quantity import quantity_partition

PARTITIONS: Mapping[str, Partition] = {
    "iid": iid_partition,
    "dirichlet": dirichlet_partition,
    "classes": classes_partition,
    "quantity": quantity_partition,
    "domain": domain_partition,
    "domain-dirichlet": domain_dirichlet_partition,
}
