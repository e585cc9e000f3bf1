"""The model card that a bundle carries."""

from __future__ import annotations

from protocol.manifest import Manifest
from trainer.runs import Run


def model_card(manifest: Manifest, run: Run) -> bytes:
    """Return the card as Markdown, from the manifest and the run's evaluation."""
    evaluation, split, raw = run.evaluation(), run.config.split, manifest.raw_input
    way = manifest.personalization
    use = f"about {way.support_size} unlabelled samples of one device" if way else "nothing: every device runs the same model"
    lines = [
        f"# {manifest.name}",
        "",
        f"Method {manifest.method.name}, {run.config.rounds} rounds on {run.config.data}, seed {run.config.seed}.",
        f"{split.participants} participants, {split.new_devices} new devices, Dirichlet {split.concentration:g}.",
        "",
        f"- feed: {raw.dtype} samples of shape {list(raw.shape)}, raw values {raw.minimum:g} to {raw.maximum:g}",
        f"- personalization uses {use}",
        f"- classes: {', '.join(manifest.classes)}",
        "",
        "| accuracy | |",
        "| --- | --- |",
        f"| new devices, nothing but unlabelled samples used (zACC) | {evaluation['zacc']:.1%} |",
        f"| participants (pACC) | {evaluation['pacc']:.1%} |",
        f"| one model for all (gACC) | {evaluation['gacc']:.1%} |",
        "",
        f"The worst new device reached {min(evaluation['new_devices'].values()):.1%}.",
        "Data of another kind than trained on was not tested.",
    ]
    return ("\n".join(lines) + "\n").encode()
