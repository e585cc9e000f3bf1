"""The way that a device goes from samples to labels: what a variant costs is seen on it, nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edge_runtime import Bundle
from edge_runtime.prototypes import class_statistics, nearest_prototype
from protocol.bundle import write_bundle
from protocol.keys import PrivateKey
from protocol.manifest import Manifest, Variant
from trainer.validation import MadeUpDevice

FEATURES = "features"


@dataclass(frozen=True, eq=False)
class Exchanged:
    """A variant: what the manifest says of it, and its bytes."""

    variant: Variant
    data: bytes


def open_with(manifest: Manifest, files: Mapping[str, bytes], exchanged: Mapping[str, Exchanged], precision: str) -> Bundle:
    """Return an open bundle that runs some entry points in smaller numbers; it leaves nothing on disk.

    Args:
        manifest: Of the bundle in float32.
        files: Its files by path.
        exchanged: The entry points in question.
        precision: Which precision they are in.

    Raises:
        BundleError: A device would refuse the bundle.
    """
    graphs = {
        name: replace(spec, variants={precision: exchanged[name].variant} if name in exchanged else {})
        for name, spec in manifest.graphs.items()
    }
    contents = {**files, **{each.variant.file: each.data for each in exchanged.values()}}
    key = PrivateKey.generate()
    with TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "bundle", replace(manifest, graphs=graphs, expires=None), contents, key)
        return Bundle.open(Path(folder) / "bundle", key.public, precision)  # all of its bytes are in memory


def accuracy(bundle: Bundle, entry_point: str, devices: Sequence[MadeUpDevice]) -> float:
    """Return the mean accuracy of devices on the way that an entry point serves.

    Each device personalises and labels its queries; ``features``, which no tailored classifier reads, serves the nearest prototype.

    Args:
        bundle: An open bundle.
        entry_point: The entry point whose form is judged.
        devices: Devices made up from what participants held out.
    """
    return (_by_prototypes if entry_point == FEATURES else _by_own_classifier)(bundle, devices)


def _by_own_classifier(bundle: Bundle, devices: Sequence[MadeUpDevice]) -> float:
    """Return the mean share of queries that a device's own classifier labels rightly."""
    names = np.array(bundle.manifest.classes)
    guesses = (np.array(bundle.personalize(device.support).predict(device.query)) for device in devices)
    return _mean([names[device.query_labels] == guess for device, guess in zip(devices, guesses, strict=True)])


def _by_prototypes(bundle: Bundle, devices: Sequence[MadeUpDevice]) -> float:
    """Return the mean share of queries that the nearest of all devices' prototypes labels rightly."""
    prototypes = reduce(add, (class_statistics(bundle.features(device.support), device.support_labels) for device in devices))
    return _mean([nearest_prototype(bundle.features(device.query), prototypes) == device.query_labels for device in devices])


def _mean(right: Sequence[NDArray[np.bool_]]) -> float:
    """Return the mean over devices of the share that is right."""
    return float(np.mean([each.mean() for each in right]))
