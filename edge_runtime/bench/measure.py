"""Everything that ``fedtailor edge bench`` measures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bench.cold_start import ColdStart, cold_start
from edge_runtime.bench.timing import Call, Quantiles, in_turn, paced_cpu_milliseconds, resident_megabytes
from edge_runtime.bundle import Bundle
from edge_runtime.classifier import Classifier
from edge_runtime.personalizer import regenerate
from edge_runtime.session_settings import usable_cores
from protocol.manifest import RawInput

Array = NDArray[np.generic]

SUPPORT = 256
BATCHES = (1, 32)
PACE_SECONDS = 0.02
MOST_THREADS = 8
SLOWER = 1.05  # what counts as slower, and what counts as no faster
SEED = 5


@dataclass(frozen=True)
class Predictions:
    """Predictions of one batch size.

    Attributes:
        batch: Samples in a call.
        microseconds: For ``bare`` (a session of ONNX Runtime with constant weights, called directly), ``baked``, ``fed`` and
            ``bare_fed`` (ONNX Runtime called directly with fed weights).
        ratios: Of ``baked``, ``fed`` and ``bare_fed`` to ``bare``, the median over rounds.
        overheads: What each of the three takes more than ``bare``, the median over rounds.
        fed_overhead: What ``fed`` takes more than ``bare_fed``, which is ours; None where weights cannot be constants.
    """

    batch: int
    microseconds: Mapping[str, Quantiles]
    ratios: Mapping[str, float]
    overheads: Mapping[str, float]
    fed_overhead: float | None


@dataclass(frozen=True)
class Threads:
    """Median microseconds of a baked prediction by threads of a session, for each batch size, and which number to take."""

    by_batch: Mapping[int, Mapping[int, float]]
    recommended: int
    configured: int


@dataclass(frozen=True)
class BenchReport:
    """What a bundle costs on this device.

    Attributes:
        bundle: Its digest.
        providers: Execution providers in use.
        cores: Cores that this process may use.
        cold_start: From an empty process to the first label.
        personalise: From 256 samples, the bundle open, in microseconds.
        regenerate: Weights from an embedding, in microseconds; None where none are generated.
        predictions: By batch size.
        paced_cpu_milliseconds: CPU of each prediction at one every 20 ms.
        megabytes: Resident memory of this process after all of that.
        threads: The sweep.
        warnings: What to change.
    """

    bundle: str
    providers: tuple[str, ...]
    cores: int
    cold_start: ColdStart
    personalise: Quantiles
    regenerate: Quantiles | None
    predictions: tuple[Predictions, ...]
    paced_cpu_milliseconds: float
    megabytes: float | None
    threads: Threads
    warnings: tuple[str, ...]


def measure(bundle: Bundle, repeats: int = 300) -> BenchReport:
    """Return what a bundle costs here, measured on made-up samples.

    Args:
        bundle: An open bundle, whose settings say how sessions run.
        repeats: Calls of each contestant.
    """
    support = made_up(bundle.manifest.raw_input, SUPPORT)
    classifier = bundle.personalize(support)
    personalise = in_turn({"personalise": lambda: bundle.personalize(support)}, max(repeats // 10, 5)).quantiles()["personalise"]
    predictions = tuple(_predictions(classifier, support[:batch], repeats) for batch in BATCHES)
    best = _baked(classifier)
    one = support[:1]
    paced = paced_cpu_milliseconds(lambda: best.predict(one), max(repeats // 4, 25), PACE_SECONDS)
    threads = _sweep(classifier, support, repeats)
    with tempfile.TemporaryDirectory() as folder:
        cold = cold_start(bundle.path, bundle.trusted, Path(folder), support)
    return BenchReport(
        bundle=bundle.digest,
        providers=bundle.session("classify").providers,
        cores=usable_cores(),
        cold_start=cold,
        personalise=personalise,
        regenerate=_regenerate(classifier, repeats),
        predictions=predictions,
        paced_cpu_milliseconds=round(paced, 3),
        megabytes=resident_megabytes(),
        threads=threads,
        warnings=advise(threads),
    )


def made_up(raw: RawInput, count: int) -> Array:
    """Return random raw samples (count, *shape)."""
    samples: Array = np.random.default_rng(SEED).uniform(raw.minimum, raw.maximum, (count, *raw.shape)).astype(raw.dtype)
    return samples


def can_bake(classifier: Classifier) -> bool:
    """Tell whether a classifier's weights can be constants."""
    way = classifier.bundle.manifest.personalization
    return way is None or way.scope == "device"


def _baked(classifier: Classifier) -> Classifier:
    """Return the same classifier with constant weights, if it can have them."""
    return Classifier(classifier.bundle, classifier.tailored, bake=can_bake(classifier))


def _predictions(classifier: Classifier, samples: Array, repeats: int) -> Predictions:
    """Return how long predictions of a batch (B, *shape) take, the contestants in turn."""
    contestants: dict[str, Call] = {"fed": lambda: classifier.predict(samples)}
    if can_bake(classifier):
        baked = _baked(classifier)
        bare, feeds = baked.bare_session(), {"samples": samples}
        contestants |= {"bare": lambda: bare(feeds), "baked": lambda: baked.predict(samples), "bare_fed": classifier.bare_fed_call(samples)}
    found = in_turn(contestants, repeats)
    others = [name for name in ("baked", "fed", "bare_fed") if "bare" in contestants]
    ratios, overheads = ({name: of(name, "bare") for name in others} for of in (found.ratio, found.overhead))
    ours = found.overhead("fed", "bare_fed") if others else None
    return Predictions(len(samples), found.quantiles(), ratios, overheads, ours)


def _regenerate(classifier: Classifier, repeats: int) -> Quantiles | None:
    """Return how long it takes to make the weights from the embedding."""
    bundle, tailored = classifier.bundle, classifier.tailored
    if not tailored.weights:
        return None
    return in_turn({"regenerate": lambda: regenerate(bundle, tailored)}, max(repeats // 3, 5)).quantiles()["regenerate"]


def _sweep(classifier: Classifier, support: Array, repeats: int) -> Threads:
    """Return medians by number of threads, all numbers in turn."""
    counts = range(1, min(usable_cores(), MOST_THREADS) + 1)
    configured = classifier.session_threads
    by_count = {count: _with_threads(classifier, count) for count in sorted({*counts, configured})}
    by_batch = {}
    for batch in BATCHES:
        contestants: dict[str, Call] = {str(count): _call(each, support[:batch]) for count, each in by_count.items()}
        by_batch[batch] = {int(count): found.p50 for count, found in in_turn(contestants, max(repeats // 2, 5)).quantiles().items()}
    alone = by_batch[1]
    best = min(alone.values())
    recommended = min(count for count, median in alone.items() if median <= SLOWER * best)
    return Threads(by_batch, recommended, configured)


def _with_threads(classifier: Classifier, count: int) -> Classifier:
    """Return the same classifier, baked if it can be, on sessions with so many threads."""
    old = classifier.bundle
    bundle = Bundle(old.path, old.trusted, settings=replace(old.settings, threads=count))
    return Classifier(bundle, classifier.tailored, bake=can_bake(classifier))


def _call(classifier: Classifier, samples: Array) -> Call:
    """Return the prediction of a batch (B, *shape) as a call."""
    return lambda: classifier.predict(samples)


def advise(threads: Threads) -> tuple[str, ...]:
    """Return what to change."""
    return tuple(
        f"{threads.configured} threads are slower than one at batch {batch}: {medians[threads.configured]:.0f} against {medians[1]:.0f} us"
        for batch, medians in threads.by_batch.items()
        if medians[threads.configured] > SLOWER * medians[1]
    )
