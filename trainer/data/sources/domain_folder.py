"""A folder of domains, each with one folder of images for each class: DomainNet, NICO++, PACS, Office-Home."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.files import subfolders
from trainer.data.sources.image_folder import are_splits, holds_images, images_by_class
from trainer.data.sources.images import read_images
from trainer.data.sources.names import dataset_name, ordered_names


def load_domain_folder(folder: Path, options: LoadOptions) -> Dataset:
    """Return all images, (N, H, W) or (N, 3, H, W) uint8, with the domain of each.

    A domain may lack some classes; a class is the same wherever its folder has the same name.

    Raises:
        DatasetError: A class of a domain holds no image, or one cannot be read.
    """
    found = [(path, name, domain.name) for domain in subfolders(folder) for path, name in images_by_class(domain)]
    if not found:
        raise DatasetError(f"{folder} holds no images", expected="domain/class/image", hint="pass the folder that holds the domains")
    classes, domains = ordered_names(name for _, name, _ in found), ordered_names(domain for _, _, domain in found)
    class_places = {name: place for place, name in enumerate(classes)}
    domain_places = {name: place for place, name in enumerate(domains)}
    labels = np.array([class_places[name] for _, name, _ in found], np.int64)  # (N,)
    origins = np.array([domain_places[domain] for _, _, domain in found], np.int64)  # (N,)
    samples = read_images(folder, [path for path, _, _ in found], options)
    return Dataset(dataset_name(folder), samples, labels, classes, 0.0, 255.0, origins, domains)


def _recognises(path: Path) -> bool:
    """Return whether a path is a folder of domains: images lie two folders below it."""
    if not path.is_dir():
        return False
    domains = subfolders(path)
    return not are_splits(domains) and any(holds_images(each) for domain in domains for each in subfolders(domain))


DOMAINS = SourceKind(
    name="domains",
    accepts="a folder of domain/class/image",
    recognises=_recognises,
    load=load_domain_folder,
    options=frozenset({"size", "mode"}),
)
