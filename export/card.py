"""The model card that a bundle carries, written from the run alone: the same run gives the same card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from export.markdown import escape, table
from protocol.manifest import DataEntry, Manifest
from trainer.runs import Run

MOST_CLASSES_SHOWN = 50
HEAD = ["---", "library_name: fedtailor", "tags: [federated-learning, personalization, onnx]", "---", ""]
PERSONALIZE = [
    "    fedtailor edge personalize bundle/ unlabelled.npy --trusted release.pub --out mine/",
    "    fedtailor edge predict mine/ samples.npy",
]


def model_card(manifest: Manifest, files: Mapping[str, bytes], run: Run) -> bytes:
    """Return the card as Markdown in UTF-8.

    Args:
        manifest: The bundle's manifest.
        files: Its files by path, the card aside.
        run: The run that was exported.

    Raises:
        RunFolderError: The run was not evaluated.
    """
    evaluation = run.evaluation()
    sections = [
        [*HEAD, f"# {escape(manifest.name)}", "", *_summary(manifest, run)],
        ["## Use on a device", "", *_use(manifest)],
        ["## Accuracy", "", *_accuracy(evaluation)],
        ["## Data", "", *_data(manifest, run)],
        ["## Method", "", *_method(manifest, run)],
        ["## Graphs", "", *_graphs(manifest, files)],
        ["## Cost of training", "", *_cost(run, evaluation)],
        ["## Limits", "", *_limits(manifest, run, evaluation)],
        ["## Made with", "", *table(("package", "version"), sorted(manifest.producer.items()))],
    ]
    return ("\n\n".join("\n".join(lines) for lines in sections) + "\n").encode()


def _summary(manifest: Manifest, run: Run) -> list[str]:
    """Return what this is in two sentences."""
    way = manifest.personalization
    makes = f"a classifier for each {way.scope}, from unlabelled samples alone" if way else "one classifier for all"
    trained = f"{escape(manifest.method.name)}, trained on {escape(data_entry(run).name)}"
    return [f"{trained}: {makes}. No training data is in the bundle."]


def _use(manifest: Manifest) -> list[str]:
    """Return how a device uses the bundle."""
    raw, way = manifest.raw_input, manifest.personalization
    needs = f"About {way.support_size} unlabelled samples of the device suffice." if way else "Every device gets the same classifier."
    return [
        *PERSONALIZE,
        "",
        f"Feed raw samples: {raw.dtype}, shape {escape(list(raw.shape))}, {raw.minimum:g} to {raw.maximum:g}; the graphs normalise them.",
        needs,
        f"ONNX Runtime {escape(manifest.minimum_onnxruntime)} or newer.",
    ]


def _accuracy(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the accuracies, as the method stands and with label shift corrected."""
    shifted = evaluation.get("shifted")
    columns = [evaluation, *([shifted] if shifted else [])]
    head = ("share of right labels", "as it is", *(["label shift corrected"] if shifted else []))
    uses = {"nothing": "nothing of theirs used", "samples": "only their unlabelled samples used", "labels": "their labelled samples used"}
    new_devices = f"new devices, {uses[evaluation['new_device_uses']]} (zACC)"
    rows: list[tuple[str, list[float]]] = [
        (new_devices, [each["zacc"] for each in columns]),
        ("the worst new device", [min(each["new_devices"].values(), default=float("nan")) for each in columns]),
        ("the worst tenth of the new devices", [each["worst_tenth"] for each in columns]),
        ("standard deviation over new devices", [each["deviation"] for each in columns]),
        ("participants (pACC)", [each["pacc"] for each in columns]),
        ("one model for all (gACC)", [each["gacc"] for each in columns]),
    ]
    calibration = escape(evaluation.get("calibration"))
    note = f"Corrected: each device's class prior is estimated from its unlabelled samples, calibration {calibration}."
    return [*table(head, ((name, *(f"{value:.1%}" for value in values)) for name, values in rows)), *(["", note] if shifted else [])]


def data_entry(run: Run) -> DataEntry:
    """Return what a run was trained on, as the manifest states it.

    Of a path only the last part is named: the rest tells about somebody's machine.

    Raises:
        RunFolderError: The run has not ended.
    """
    split = run.config.split
    name = run.config.data.replace("\\", "/").rstrip("/").rpartition("/")[2]
    concentration = f", concentration {split.concentration:g}" if split.partition == "dirichlet" else ""
    shown = "".join(each if each.isprintable() else "?" for each in name)[:200]
    return DataEntry(shown, split.participants, sum(_sizes(run, participants=True)), split.new_devices, f"{split.partition}{concentration}")


def _sizes(run: Run, *, participants: bool) -> list[int]:
    """Return the samples of each participant for training, or of each new device for scoring."""
    return [sum(each["class_counts"]) for each in run.devices()["devices"].values() if each["participant"] is participants]


def _data(manifest: Manifest, run: Run) -> list[str]:
    """Return what was trained and scored on."""
    split, entry = run.config.split, data_entry(run)
    shown = ", ".join(manifest.classes[:MOST_CLASSES_SHOWN])
    more = len(manifest.classes) - MOST_CLASSES_SHOWN
    rows = [
        ("name", entry.name),
        ("kind", f"{manifest.raw_input.dtype} samples of shape {list(manifest.raw_input.shape)}, {len(manifest.classes)} classes"),
        ("participants", f"{split.participants}, with {_spread(_sizes(run, participants=True))} training samples"),
        ("new devices", f"{split.new_devices}, scored on {_spread(_sizes(run, participants=False))} samples"),
        ("partition", f"{entry.partition}, seed {split.seed}"),
        ("set aside for validation", f"{split.validation_share:.0%} of each participant's training samples"),
        ("digest", run.config.environment.get("data", "unknown")),
        ("classes", shown + (f" and {more} more" if more > 0 else "")),
    ]
    return table(("", ""), rows)


def _spread(sizes: list[int]) -> str:
    """Return a total and its range over devices."""
    return f"{sum(sizes):,} ({min(sizes)} to {max(sizes)} each)" if sizes else "no"


def _method(manifest: Manifest, run: Run) -> list[str]:
    """Return the method with every setting."""
    own = [("method", manifest.method.name), ("rounds", run.config.rounds), ("seed", run.config.seed)]
    own += [("share of participants in a round", f"{run.config.fraction:.0%}"), ("backbone", run.config.backbone or "none")]
    return table(("setting", "value"), [*own, *_flat("", manifest.method.settings)])


def _flat(where: str, values: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield settings by their whole name."""
    for name, value in sorted(values.items()):
        if isinstance(value, Mapping):
            yield from _flat(f"{where}{name}.", value)
        else:
            yield f"{where}{name}", value


def _graphs(manifest: Manifest, files: Mapping[str, bytes]) -> list[str]:
    """Return each graph's size and how closely it follows torch."""
    rows: list[tuple[object, ...]] = []
    for name, graph in sorted(manifest.graphs.items()):
        parity = graph.parity
        allowed = f"{parity.absolute_tolerance:g} + {parity.relative_tolerance:g} of the value"
        rows.append((name, f"{len(files[graph.file]):,}", len(graph.operators), f"{parity.worst_absolute_difference:.1e}", allowed))
        for precision, each in sorted(graph.variants.items()):
            against = f"{each.accuracy:.1%} right against {each.accuracy_float32:.1%}"
            rows.append(
                (
                    f"{name}, {precision}",
                    f"{len(files[each.file]):,}",
                    len(each.operators),
                    f"{each.worst_absolute_difference:.1e}",
                    against,
                )
            )
    return table(("entry point", "bytes", "operators", "largest difference", "allowed"), rows)


def _cost(run: Run, evaluation: Mapping[str, Any]) -> list[str]:
    """Return what the training took."""
    rows = [
        ("local steps, all participants", f"{evaluation['local_steps']:,}"),
        ("bytes sent by participants", f"{evaluation['bytes_up']:,}"),
        ("bytes sent to participants", f"{evaluation['bytes_down']:,}"),
        ("seconds", f"{evaluation['train_seconds']:.0f}, on {run.config.device}"),
        ("parameters", f"{evaluation['parameters']:,}" if "parameters" in evaluation else "unknown"),
    ]
    return table(("", ""), rows)


def _limits(manifest: Manifest, run: Run, evaluation: Mapping[str, Any]) -> list[str]:
    """Return what was not tested, and where it is weak."""
    way, split = manifest.personalization, run.config.split
    worst = min(evaluation["new_devices"].values(), default=None)
    lines = [
        f"- Accuracies come from {split.new_devices} new devices cut out of the same data set, one seed; other data were not tested.",
        f"- Only these {len(manifest.classes)} classes are known: a sample of another kind gets one of their names.",
        "- Differences from torch were measured on one processor; a device checks its own with the golden samples.",
    ]
    if worst is not None:
        lines.append(f"- The worst new device had {worst:.1%} right: look at the spread, not at the mean, before relying on one device.")
    if way is not None:
        lines.append(f"- With fewer than {way.support_size} samples, or samples of a passing moment, the classifier fits worse.")
    return lines
