"""What devices need to know of the training data, for the manifest: when a distribution has moved, how to scale a signature.

Computed from the participants' training samples without their labels, with the very graphs that devices run. No sample
leaves: a threshold, a ridge, means and deviations over participants do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_runtime.distribution_signature import SignatureMeter, SignatureParts, freeze
from edge_runtime.drift import STRIDE, DriftStatistic
from edge_runtime.sessions import Session, open_session
from edge_runtime.sources import ROWS_AT_A_TIME
from protocol.device_blocks import CalibrationBlock, DriftBlock
from protocol.errors import DatasetError, FedtailorError
from protocol.manifest import Manifest
from trainer.data.federation import FederatedData, split_dataset
from trainer.experiments import Experiment
from trainer.runs import DATA, Run
from trainer.training import data_digest

WINDOW = 150  # samples: large enough for a class mix to show, small enough to see a move within two hundred
RIDGE_SHARE = 2.0  # of the embedding's mean variance within a participant
RELEASE_SHARE = 0.5
STREAMS = 200  # stationary streams of each participant
STREAM_SAMPLES = 2000
QUANTILE = 0.99
MARGIN = 1.2  # on that quantile: new devices differ from participants
MOST_PARTICIPANTS = 20
SAMPLES_EACH = 4096  # of a participant, at most
FEWEST_SAMPLES = 64
SEED = 11

Samples = NDArray[np.generic]
Exact = NDArray[np.float64]

logger = logging.getLogger(__name__)


def with_device_statistics(manifest: Manifest, files: Mapping[str, bytes], run: Run) -> Manifest:
    """Return the manifest with the blocks that the run can fill: calibration, drift, distribution signature."""
    manifest = replace(manifest, calibration=calibration_block(run))
    way = manifest.personalization
    watched = way is not None and way.scope == "device"
    if not watched and "features" not in manifest.graphs:
        return manifest
    data = federation_of(run)
    samples = [] if data is None else training_samples(data)
    if data is not None and way is not None and run.config.split.support_size is None and data.new_devices:
        typical = int(np.median([len(device.support) for device in data.new_devices]))
        way = replace(way, support_size=min(way.support_size, typical))
        manifest = replace(manifest, personalization=way)
    if watched and way is not None and samples:
        embed = _session(manifest, files, "embed")
        embeddings = [_rows(embed, each) for each in samples]
        manifest = replace(manifest, drift=drift_block(embeddings, way.support_size))
    if "features" in manifest.graphs and len(samples) > 1:
        manifest = replace(manifest, distribution_signature=freeze(*_signatures(manifest, files, samples)))
    return manifest


def calibration_block(run: Run) -> CalibrationBlock | None:
    """Return the calibration that the run's evaluation chose, or None where it was not written down."""
    evaluation = run.evaluation()
    values = evaluation.get("calibration_values")
    if values is None:
        return None
    return CalibrationBlock(str(evaluation["calibration"]), float(values["scale"]), tuple(map(float, values["bias"])))


def federation_of(run: Run) -> FederatedData | None:
    """Return the devices of a run, or None where its data are gone or others."""
    config = run.config
    experiment = Experiment(data=config.data, backbone=config.backbone, device="cpu")
    try:
        dataset = experiment.dataset()
        if config.environment.get(DATA) not in (None, data_digest(dataset, experiment)):
            raise DatasetError("the data are not those that the run saw", hint="restore them")
        return split_dataset(dataset, config.split)[0]
    except FedtailorError as error:
        logger.warning("devices will not notice when their distribution moves: %s", error.sentence())
        return None


def training_samples(data: FederatedData) -> list[Samples]:
    """Return the training samples of up to twenty participants that have enough of them."""
    enough = [client.samples[:SAMPLES_EACH] for client in data.participants if len(client.samples) >= FEWEST_SAMPLES]
    return enough[:: max(1, -(-len(enough) // MOST_PARTICIPANTS))]


def drift_block(embeddings: Sequence[Exact], support_size: int) -> DriftBlock:
    """Return when a distribution has moved: a fifth beyond what 99 % of the participants' stationary streams of 2,000 samples reach.

    Args:
        embeddings: Of each participant's samples, (N, E).
        support_size: Samples that a device personalises from.
    """
    variance = float(np.mean([each.var(axis=0).mean() for each in embeddings]))
    block = DriftBlock("mahalanobis", WINDOW, 1.0, RELEASE_SHARE, max(RIDGE_SHARE * variance, 1e-9))
    random = np.random.default_rng(SEED)
    largest = np.concatenate([_largest(each, support_size, block, random) for each in embeddings])
    threshold = MARGIN * float(np.quantile(largest, QUANTILE))
    return replace(block, threshold=threshold, release=RELEASE_SHARE * threshold)


def _largest(embeddings: Exact, support_size: int, block: DriftBlock, random: np.random.Generator) -> Exact:
    """Return the largest statistic of each of many streams of one participant, (STREAMS,): support and stream share no sample."""
    size = min(support_size, len(embeddings) // 2)
    order = np.argsort(random.random((STREAMS, len(embeddings))), axis=1)  # (M, N)
    support = embeddings[order[:, :size]]  # (M, n, E)
    centred = support - support.mean(axis=1, keepdims=True)  # (M, n, E)
    covariances = np.matmul(centred.transpose(0, 2, 1), centred) / size  # (M, E, E)
    rows, rest, largest = np.arange(STREAMS)[:, None], order[:, size:], np.zeros(STREAMS)
    behind = np.full(STREAMS, 1.0 / (1.0 / size + 1.0 / rest.shape[1]))  # what a stream is drawn from is a sample itself
    statistic = DriftStatistic(support.mean(axis=1), covariances, behind, block)
    for _ in range(STREAM_SAMPLES // STRIDE):
        places = rest[rows, random.integers(0, rest.shape[1], (STREAMS, STRIDE))]  # (M, STRIDE)
        largest = np.maximum(largest, statistic.step(embeddings[places]))
    return largest


def _signatures(manifest: Manifest, files: Mapping[str, bytes], samples: Sequence[Samples]) -> tuple[SignatureParts, list[Exact]]:
    """Return the parts of a distribution signature, and that of each participant, (S,)."""
    parts, session = SignatureParts(), _session(manifest, files, "features")
    measured = []
    for each in samples:
        meter = SignatureMeter(parts, manifest.raw_input, len(manifest.classes))
        meter.add(each, _rows(session, each))
        measured.append(meter.measure())
    return parts, measured


def _session(manifest: Manifest, files: Mapping[str, bytes], entry_point: str) -> Session:
    """Return a graph of the bundle, loaded."""
    return open_session(files[manifest.graphs[entry_point].file], manifest.minimum_onnxruntime)


def _rows(session: Session, samples: Samples) -> Exact:
    """Return what a graph makes of samples (N, *shape), (N, width)."""
    pieces = [
        session.run({"samples": np.ascontiguousarray(samples[at : at + ROWS_AT_A_TIME])})[0]
        for at in range(0, len(samples), ROWS_AT_A_TIME)
    ]
    return np.concatenate(pieces).astype(np.float64)
