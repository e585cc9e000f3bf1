"""Every source by name, in the order in which a path's kind is guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.cifar import CIFAR10, CIFAR100
from trainer.data.sources.csv_table import CSV
from trainer.data.sources.digits import load_digits
from trainer.data.sources.domain_folder import DOMAINS
from trainer.data.sources.fashion_domains import load_fashion_backbone, load_fashion_domains
from trainer.data.sources.idx_folder import IDX, load_fashion_mnist
from trainer.data.sources.image_folder import IMAGES
from trainer.data.sources.npz import NPZ
from trainer.data.sources.parquet_table import PARQUET
from trainer.data.sources.svhn import SVHN
from trainer.data.sources.tiny_imagenet import TINY_IMAGENET

NAMED: Mapping[str, Callable[[], Dataset]] = {
    "digits": load_digits,
    "fashion-mnist": load_fashion_mnist,
    "fashion-mnist-backbone": load_fashion_backbone,
    "fashion-mnist-domains": load_fashion_domains,
}
KINDS: Mapping[str, SourceKind] = {
    kind.name: kind for kind in (CIFAR10, CIFAR100, SVHN, TINY_IMAGENET, IDX, NPZ, CSV, PARQUET, IMAGES, DOMAINS)
}
