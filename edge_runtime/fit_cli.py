"""``fedtailor edge fit``: train on this device with the steps that a bundle brings."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_runtime.options import PROVIDERS, THREADS, TRUSTED
from protocol.console import AS_JSON
from protocol.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SECONDS_BETWEEN = 0.5
BAR_CHARACTERS = 30


@dataclass(frozen=True)
class FitRequest:
    """What ``edge fit`` is asked to do; each field is the argument or option of the same name."""

    bundle: Path
    data: Path
    trusted: Path
    out: Path
    steps: int | None
    seconds: float | None
    resume: bool
    validation: float
    processor: float
    rate: float | None
    seed: int
    step_name: str | None
    threads: int | None
    provider: tuple[str, ...]
    as_json: bool


@click.command(epilog="Example: fedtailor edge fit bundle/ camera/ --trusted release.pub --out mine/ --steps 200 --validation 0.2")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@TRUSTED
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the state; `edge predict` takes it.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps in all.")
@click.option("--seconds", type=click.FloatRange(min=0.001), help="Wall time of this run.")
@click.option("--resume", is_flag=True, help="Go on from the state in the folder.")
@click.option(
    "--validation", type=click.FloatRange(0.0, 0.9), default=0.0, show_default=True, help="Share of the samples that chooses the state."
)
@click.option("--cpu", "processor", type=click.FloatRange(0.01, 1.0), default=1.0, show_default=True, help="Share of the time to work.")
@click.option("--rate", type=click.FloatRange(min=0.0, min_open=True), help="Learning rate in place of the bundle's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all draws.")
@click.option("--step", "step_name", help="Which of the bundle's steps, where there are several.")
@THREADS
@PROVIDERS
@AS_JSON
def fit(**options: Any) -> None:
    """Train on the labelled samples in DATA: support.npy (N, *shape) and labels.npy (N,) class indices.

    BUNDLE is a bundle exported with --training. The state is kept as it goes: whatever ends this command, --resume goes on.
    """
    request = FitRequest(**options)
    content = _fit(request)
    if request.as_json:
        click.echo(json.dumps(content))
        return
    judged = "" if content["validation"] is None else f", validation loss {content['validation']:.4f} after step {content['best_step']}"
    loss = "no new step" if content["loss"] is None else f"loss {content['loss']:.4f}"
    click.echo(f"{content['steps']} steps, {content['seconds']:.1f} s, {loss}{judged}: {request.out}")
    if content["restored"]:
        click.echo(f"the loss was not finite {content['restored']} times; the last good state was restored each time", err=True)


def _fit(request: FitRequest) -> dict[str, Any]:
    """Train and return what happened."""
    from edge_runtime.bundle import Bundle
    from edge_runtime.device_data import DeviceData
    from edge_runtime.fit_course import FitOptions
    from edge_runtime.fit_folder import RECORD_NAME
    from edge_runtime.learner import Learner
    from edge_runtime.session_settings import SessionSettings

    if request.steps is None and request.seconds is None:
        raise click.UsageError("say when to end: --steps or --seconds")
    if (request.out / RECORD_NAME).exists() and not request.resume:
        raise InputError(f"{request.out} holds a training", expected="a new folder", hint="--resume goes on from it")
    bundle = Bundle.open(request.bundle, request.trusted, settings=SessionSettings(request.threads, request.provider))
    data = DeviceData(request.data, bundle.manifest)
    samples, labels = data.support(), data.labels()
    if labels is None:
        raise InputError("there are no labels to learn from", expected=str(request.data / "labels.npy"), got="no such file")
    context = {} if request.rate is None else {"learning_rate": request.rate}
    origin = _digest(samples, labels, request.validation)
    learner = Learner(bundle, phase=request.step_name, seed=request.seed, context=context, folder=request.out, data=origin)
    rows, held = _split(len(labels), request.validation, request.seed)
    val = (samples[held], labels[held]) if len(held) else None
    options = FitOptions(processor_share=request.processor, progress=_Bar(request))
    result = learner.fit(samples[rows], labels[rows], steps=request.steps, seconds=request.seconds, val=val, options=options)
    content = asdict(result) | {"loss": None if math.isnan(result.loss) else result.loss}  # NaN is no JSON
    return {**content, "samples": len(rows), "validation_samples": len(held), "bundle": bundle.digest, "out": str(request.out)}


def _split(samples: int, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and those to choose by; the same for the same seed."""
    from edge_runtime.sampling import DrawKey

    order = DrawKey(seed, 0, "validation").stream("split").permutation(samples)
    held = round(share * samples)
    if held and held >= samples:
        raise InputError("too few samples to set some aside", expected="more samples, or a smaller --validation", got=samples)
    return order[held:], order[:held]


def _digest(samples: NDArray[np.generic], labels: NDArray[np.int64], validation: float) -> str:
    """Return what tells samples (N, *shape), labels (N,) and the share set aside from others, 64 hexadecimal digits."""
    found = hashlib.sha256(f"{samples.dtype.str} {samples.shape} {labels.dtype.str} {validation!r}".encode())
    for tensor in (samples, labels):
        for row in tensor:  # samples may be larger than memory
            found.update(row.tobytes())
    return found.hexdigest()


class _Bar:
    """A progress bar on standard error, drawn twice a second where a person looks.

    Args:
        request: What was asked for.
    """

    def __init__(self, request: FitRequest) -> None:
        self._request = request
        self._began = self._drawn = time.monotonic()

    def __call__(self, step: int, loss: float) -> None:
        """Draw."""
        now = time.monotonic()
        if now - self._drawn < SECONDS_BETWEEN or not sys.stderr.isatty():
            return
        self._drawn = now
        shares = [0.0]
        if self._request.steps is not None:
            shares.append(step / self._request.steps)
        if self._request.seconds is not None:
            shares.append((now - self._began) / self._request.seconds)
        filled = round(BAR_CHARACTERS * min(1.0, max(shares)))
        click.echo(f"\r[{'#' * filled:<{BAR_CHARACTERS}}] step {step}, loss {loss:.4f} ", nl=False, err=True)
