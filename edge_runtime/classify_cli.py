"""``fedtailor edge personalize`` and ``fedtailor edge predict``: results on standard output, progress and advice on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_runtime.options import PRECISION, PROVIDERS, THREADS, TRUSTED
from protocol.errors import InputError
from protocol.trust import open_trusted

if TYPE_CHECKING:  # a device whose ONNX Runtime is broken can still ask for help
    from edge_runtime.bundle import Bundle
    from edge_runtime.sources import NamedBatch

STANDARD_INPUT = Path("-")
SECONDS_BETWEEN = 1.0
FIT_RECORD = "fit.json"
PERSONAL = ("embed", "generate", "classify")  # entry points on the way to a label


@dataclass(frozen=True)
class PersonalizeRequest:
    """What ``edge personalize`` is asked to do; each field is the argument or option of the same name."""

    bundle: Path
    support: Path
    trusted: Path
    out: Path
    correct: bool
    threads: int | None
    provider: tuple[str, ...]
    precision: str
    as_json: bool


@click.command(epilog="Example: fedtailor edge personalize bundle/ unlabelled.npy --trusted release.pub --out mine/")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("support", type=click.Path(path_type=Path, allow_dash=True))
@TRUSTED
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the classifier.")
@click.option("--correct", is_flag=True, help="Correct predictions for this device's class prior, estimated from SUPPORT.")
@THREADS
@PROVIDERS
@PRECISION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def personalize(**options: Any) -> None:
    """Make a classifier for this device from the unlabelled samples in SUPPORT.

    BUNDLE is a bundle's folder, or that of a store, whose bundle in use is taken.
    SUPPORT is an .npy or .npz file, an image, a folder of these, or - for JSON lines on standard input.
    """
    from edge_runtime.opened import opened_bundle
    from edge_runtime.session_settings import SessionSettings

    request = PersonalizeRequest(**options)
    settings = SessionSettings(request.threads, request.provider)
    with opened_bundle(request.bundle, request.trusted, settings, request.precision) as opened:
        started = time.perf_counter()
        pieces = (piece.samples for piece in _with_progress(_batches(request.support, opened)))
        classifier = opened.personalize(pieces, correct=request.correct)
        milliseconds = 1000 * (time.perf_counter() - started)
        classifier.save(request.out)
    count = classifier.tailored.support_size
    content = {
        "samples": count,
        "milliseconds": round(milliseconds, 2),
        "bundle": opened.digest,
        "out": str(request.out),
        "corrected": request.correct,
        "advice": list(classifier.advice),
        "providers": list(opened.session("classify").providers),
        "precisions": {name: opened.precision(name) for name in opened.manifest.graphs if name in PERSONAL},
    }
    text = f"made a classifier from {count} unlabelled samples in {milliseconds:.0f} ms: {request.out}"
    click.echo(json.dumps(content) if request.as_json else text)


@dataclass(frozen=True)
class PredictRequest:
    """What ``edge predict`` is asked to do; each field is the argument or option of the same name."""

    directory: Path
    samples: tuple[Path, ...]
    bundle: Path | None
    trusted: Path | None
    top: int
    bake: bool
    adapt: bool
    adapter: Path | None
    threads: int | None
    provider: tuple[str, ...]
    precision: str


@click.command(epilog="Example: fedtailor edge predict mine/ camera/1.png camera/2.png")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("samples", type=click.Path(path_type=Path, allow_dash=True), nargs=-1, required=True)
@click.option(
    "--bundle", type=click.Path(path_type=Path), help="The bundle, or a store that holds it, if it lies elsewhere now; needs --trusted."
)
@click.option(
    "--trusted",
    type=click.Path(path_type=Path),
    envvar="FEDTAILOR_TRUSTED_KEY",
    help="Key that must have signed the bundle; if left out, the one personalised with.",
)
@click.option("--top", type=click.IntRange(min=1), default=1, show_default=True, help="Likeliest classes to print for each sample.")
@click.option("--bake", is_flag=True, help="Make the weights constants first: pays for itself over some hundred batches.")
@click.option("--adapter", type=click.Path(path_type=Path), help="Safetensors file of LoRA factors to predict with.")
@click.option("--adapt", is_flag=True, help="Make the classifier again when the distribution has moved, and save it at the end.")
@THREADS
@PROVIDERS
@PRECISION
@click.option("--json", is_flag=True, expose_value=False, help="JSON lines are what this command always prints.")
def predict(**options: Any) -> None:
    """Print one JSON line for each sample: its name, its label, the label's probability.

    DIRECTORY is what `edge personalize` or `edge fit` made; SAMPLES are .npy or .npz files, images, folders of these, or - for
    JSON lines on standard input. A line is printed as soon as it is known: before a bad sample the lines of good ones may stand.
    """
    request = PredictRequest(**options)
    if _is_trained(request.directory) and (request.bake or request.adapt or request.adapter):
        raise click.UsageError("--bake, --adapt and --adapter are for what `edge personalize` made")
    if request.adapt and request.adapter:
        raise click.UsageError("--adapt makes the classifier again and would lose the --adapter")
    if request.bundle is not None and request.trusted is None:
        raise click.UsageError("--bundle needs --trusted")
    missing = [str(path) for path in request.samples if path != STANDARD_INPUT and not path.exists()]
    if missing:
        raise InputError("no samples found", expected="files, folders, or -", got=missing[0])
    with _opened(request) as bundle:
        _predict(request, bundle)


def _predict(request: PredictRequest, bundle: Bundle) -> None:
    """Print a line for each sample, and save the classifier if it may have changed."""
    from edge_runtime.adaptive import AdaptiveClassifier
    from edge_runtime.classifier import Classifier
    from edge_runtime.trained_classifier import TrainedClassifier

    folder = request.directory
    adaptive = AdaptiveClassifier.open(folder, bundle, bake=request.bake) if request.adapt else None
    classifier: Classifier | TrainedClassifier
    if _is_trained(folder):
        classifier = TrainedClassifier.open(folder, bundle)
    else:
        classifier = Classifier.open(folder, bundle, bake=request.bake) if adaptive is None else adaptive.classifier
        if request.adapter is not None:
            classifier.use_adapter(request.adapter)
    for path in request.samples:
        for names, samples in _with_progress(_batches(path, bundle)):
            found = (classifier if adaptive is None else adaptive.classifier).top_k(samples, request.top)
            for name, classes, shares in zip(names, found.classes.tolist(), found.probabilities.tolist(), strict=True):
                click.echo(json.dumps(_line(name, classes, shares)))
            if adaptive is not None and (event := adaptive.observe(samples).event):
                click.echo(f"the distribution has {'settled' if event == 'settled' else 'moved'}; made the classifier again", err=True)
    if adaptive is not None:
        adaptive.save(folder)


def _is_trained(folder: Path) -> bool:
    """Tell whether a folder holds what ``edge fit`` made, and not ``edge personalize``."""
    return (folder / FIT_RECORD).exists()


def _line(name: str, classes: list[str], shares: list[float]) -> dict[str, Any]:
    """Return what is printed for one sample."""
    line: dict[str, Any] = {"sample": name, "label": classes[0], "probability": round(shares[0], 6)}
    if len(classes) > 1:
        line["top"] = [{"label": each, "probability": round(share, 6)} for each, share in zip(classes, shares, strict=True)]
    return line


@contextmanager
def _opened(request: PredictRequest) -> Iterator[Bundle]:
    """Open the bundle that a saved classifier was made with."""
    from edge_runtime.bundle import Bundle
    from edge_runtime.fit_folder import read_fit
    from edge_runtime.opened import opened_bundle
    from edge_runtime.personal_folder import read_record
    from edge_runtime.session_settings import SessionSettings

    settings = SessionSettings(request.threads, request.provider)
    record = read_fit(request.directory) if _is_trained(request.directory) else read_record(request.directory)
    trusted = record.trust if request.trusted is None else open_trusted(request.trusted)
    if request.bundle is None:
        yield Bundle.open(record.bundle_path, trusted, request.precision, settings)
        return
    with opened_bundle(request.bundle, trusted, settings, request.precision) as bundle:
        yield bundle


def _batches(path: Path, bundle: Bundle) -> Iterator[NamedBatch]:
    """Yield the samples of a path, or of standard input."""
    from edge_runtime.json_lines import json_batches
    from edge_runtime.sources import batches

    if path == STANDARD_INPUT:
        return json_batches(sys.stdin.buffer, bundle.manifest.raw_input)
    return batches(path, bundle.manifest.raw_input)


def _with_progress(pieces: Iterator[NamedBatch]) -> Iterator[NamedBatch]:
    """Yield the same batches, and say on standard error how many samples came, about once a second."""
    count, said = 0, time.monotonic()
    for piece in pieces:
        yield piece
        count += len(piece.samples)
        if time.monotonic() - said >= SECONDS_BETWEEN:
            said = time.monotonic()
            click.echo(f"{count:,} samples", err=True)
