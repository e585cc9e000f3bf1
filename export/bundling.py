"""From a method's parts, or from a whole run folder, to the files and the manifest of a bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from export.card import data_entry, model_card
from export.device_statistics import with_device_statistics
from export.graphs import to_onnx
from export.parity import check_parity
from export.precision.timing import Stopwatch
from export.precision.variants import Evidence, VariantRequest, Verdict, add_variants
from export.runtimes import DEFAULT_TARGET, check_graph_versions, check_target, find_release
from export.selftest import golden_samples
from export.training_parts import training_parts
from protocol.bundle import write_bundle
from protocol.keys import PrivateKey
from protocol.manifest import FORMAT, DataEntry, GraphSpec, Manifest, MethodEntry, Personalization, RawInput, TensorSpec
from protocol.onnx_graph import inspect_graph
from trainer.data.datasets import load_dataset
from trainer.data.federation import FederatedData, split_dataset
from trainer.methods.base import Once, Phase, Task
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.parts import Part, PartTensor
from trainer.methods.registry import method_settings
from trainer.runs import Run, environment
from trainer.validation import made_up_devices

DEFAULT_SUPPORT_SIZE = 256
CALIBRATION_SAMPLES = 256
PRODUCERS = ("fedtailor", "torch", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Release:
    """What the person who releases a bundle decides.

    Attributes:
        name: Name of the bundle.
        bundle_version: Grows with every release.
        expires: Seconds since 1970 after which devices refuse it, or None.
        target: Hardware group.
        coordinator_key: Public key of the coordinator in hexadecimal, or None.
        target_runtime: Oldest ONNX Runtime on the devices, as in ``1.19``.
    """

    name: str
    bundle_version: int = 1
    expires: int | None = None
    target: str = "any"
    coordinator_key: str | None = None
    target_runtime: str = DEFAULT_TARGET


@dataclass(frozen=True)
class Origin:
    """Where the parts come from, as the manifest states it.

    Attributes:
        method: Method, settings and phases.
        task: The kind of data.
        personalization: How a device tailors its classifier, or None.
        created: Seconds since 1970, UTC.
        producer: Versions of what made the bundle.
        data: What it was trained on, or None.
    """

    method: MethodEntry
    task: Task
    personalization: Personalization | None
    created: int
    producer: dict[str, str]
    data: DataEntry | None = None


@dataclass(frozen=True)
class Extras:
    """What a bundle may hold beside its graphs in float32.

    Attributes:
        precisions: Variants in smaller numbers: of ``fp16`` and ``int8``.
        max_drop: Points of accuracy that a variant may lose.
        training: Whether the method's local steps are added, for devices that train.
    """

    precisions: tuple[str, ...] = ()
    max_drop: float = 1.0
    training: bool = False


@dataclass(frozen=True)
class Exported:
    """A written bundle: its digest, and what became of each variant that was asked for."""

    digest: str
    verdicts: tuple[Verdict, ...]


def export_run(
    run: Run, directory: Path, release: Release, key: PrivateKey, *, overwrite: bool = False, extras: Extras | None = None
) -> Exported:
    """Write the bundle of a run.

    The same run, release, key and extras give the same bytes.

    Raises:
        InputError: A module cannot be translated, or variants cannot be judged.
        RunFolderError: The run has not ended.
        IncompatibleVersionError: The target runtime cannot load what this exporter writes.
        ParityError: A graph does not compute what torch computes.
        BundleError: The target folder cannot be used.
    """
    check_target(release.target_runtime)  # before minutes of exporting
    config, versions, server = run.config, environment(), run.final_state()
    settings = method_settings(config.method, config.settings)
    method = settings.bind(config.task)
    origin = Origin(
        method=MethodEntry(config.method, config.settings, tuple(map(_phase, method.phases()))),
        task=config.task,
        personalization=_personalization(run, settings),
        created=run.ended(),
        producer={package: versions[package] for package in PRODUCERS},
        data=data_entry(run),
    )
    extras = extras or Extras()
    parts, trained = method.parts(server), method.trained_part() if extras.training else None
    manifest, files = bundle_from_parts(parts if trained is None else (*parts, trained), origin, release)
    verdicts: list[Verdict] = []
    if extras.precisions or extras.training:
        data, _ = split_dataset(load_dataset(config.data), config.split)
        if extras.precisions:
            request = VariantRequest(extras.precisions, extras.max_drop)
            manifest, verdicts = add_variants(manifest, files, request, _evidence(run, data), Stopwatch(run.path))
        if extras.training:
            steps = training_parts(method, server, data.participants[0], release.target_runtime)
            manifest = replace(manifest, graphs={**manifest.graphs, **steps.graphs})
            files.update(steps.files)
    manifest = with_device_statistics(manifest, files, run)
    files["README.md"] = model_card(manifest, files, run)  # last, for it tells of everything else
    return Exported(write_bundle(directory, manifest, files, key, overwrite=overwrite), tuple(verdicts))


def _evidence(run: Run, data: FederatedData) -> Evidence:
    """Return the participants' samples that variants are calibrated and judged on, cut as the run cut them."""
    samples = np.concatenate([client.samples[:CALIBRATION_SAMPLES] for client in data.participants])
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), CALIBRATION_SAMPLES)).astype(np.int64)
    return Evidence(samples[chosen], made_up_devices(data, run.config.split))


def bundle_from_parts(parts: tuple[Part, ...], origin: Origin, release: Release) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest, still without its list of files, and the files by path: graphs and golden samples.

    Args:
        parts: One for each entry point.
        origin: Where they come from.
        release: What the person who releases the bundle decides.

    Raises:
        InputError: A module uses what cannot be translated.
        ParityError: A graph does not compute what torch computes.
    """
    files, graphs = export_parts(parts, release.target_runtime)
    manifest = _manifest(origin, graphs, release)
    files["selftest.safetensors"] = golden_samples(manifest, files)
    return manifest, files


def export_parts(parts: tuple[Part, ...], target_runtime: str = DEFAULT_TARGET) -> tuple[dict[str, bytes], dict[str, GraphSpec]]:
    """Return the graph files by path and what the manifest says of them, each having passed the parity gate.

    Raises:
        IncompatibleVersionError: The target runtime cannot load such graphs.
        InputError: A module uses what cannot be translated.
        ParityError: A graph does not compute what torch computes.
    """
    minimum, runtime = check_target(target_runtime), find_release(target_runtime)
    files, graphs = {}, {}
    for part in parts:
        path = f"graphs/{part.entry_point}.onnx"
        graph = to_onnx(part)
        parity = check_parity(part, graph, minimum)
        facts = inspect_graph(graph)
        check_graph_versions(runtime, facts.opsets[""], facts.ir_version)
        files[path] = graph
        graphs[part.entry_point] = GraphSpec(
            file=path,
            inputs=tuple(map(tensor_spec, part.inputs)),
            outputs=tuple(map(tensor_spec, part.outputs)),
            opset=facts.opsets[""],
            ir_version=facts.ir_version,
            operators=tuple(sorted(facts.operators)),
            parity=parity,
        )
    return files, graphs


def tensor_spec(tensor: PartTensor) -> TensorSpec:
    """Return a part's tensor as the manifest writes it."""
    return TensorSpec(tensor.name, tensor.dtype, tensor.shape, tensor.meaning, tensor.optional)


def _manifest(origin: Origin, graphs: dict[str, GraphSpec], release: Release) -> Manifest:
    """Return the manifest without its list of files."""
    task = origin.task
    return Manifest(
        format=FORMAT,
        name=release.name,
        bundle_version=release.bundle_version,
        created=origin.created,
        expires=release.expires,
        method=origin.method,
        classes=task.classes,
        raw_input=RawInput(task.dtype, task.sample_shape, task.minimum, task.maximum, "one raw sample; the graphs normalise it"),
        graphs=graphs,
        files={},
        personalization=origin.personalization,
        minimum_onnxruntime=check_target(release.target_runtime),
        target=release.target,
        coordinator_key=release.coordinator_key,
        producer=origin.producer,
        data=origin.data,
    )


def _personalization(run: Run, settings: object) -> Personalization | None:
    """Return how a device tailors its classifier, if the method can."""
    if not isinstance(settings, HyperFedZero):
        return None
    size = run.config.split.support_size or DEFAULT_SUPPORT_SIZE
    return Personalization(settings.scope, size, settings.bind(run.config.task).embedding_size, settings.tailored)


def _phase(phase: Phase) -> dict[str, Any]:
    """Return a phase as plain data, which an agent can follow without the method's code."""
    if isinstance(phase, Once):
        return {"once": phase.step_name}
    policy = {"policy": type(phase.draw).__name__, **vars(phase.draw)}
    inputs = {kind: {each.name: list(each.shape) for each in phase.random_inputs if each.kind == kind} for kind in ("normal", "bytes")}
    named = {f"{kind}_inputs": own for kind, own in inputs.items() if own or kind == "normal"}
    return {"repeat": phase.step_name, "count": phase.count, "draw": policy, **named}
