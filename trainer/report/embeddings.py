"""The map of device embeddings: do devices with like classes lie together, do they lie apart at all?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.data.picture import class_colour
from trainer.health import EmbeddingHealth
from trainer.report.blocks import cell, class_keys, row_heading, row_of, section, table
from trainer.report.comparison import Comparison
from trainer.report.devices import DeviceRecord
from trainer.report.drawing import Scale, area, drawing, frame
from trainer.report.figures import rounded
from trainer.report.markup import Markup, element
from trainer.report.records import Record

WIDTH, HEIGHT = 420, 340
LEAST_DEVIATION = 1e-3
LEAST_DIMENSIONS = 1.5
NOTE = (
    "Circles are participants, diamonds new devices; the colour is the class that a device has most of, and the larger and fuller "
    "the mark, the more it dominates. The map shows the two directions in which embeddings differ most."
)


def embeddings_section(comparison: Comparison) -> Markup:
    """Return a map for each run whose method embeds devices."""
    parts = []
    for name, record in comparison.named():
        known = [each for each in record.devices if each.embedding is not None]
        if known:
            parts.append(_map(name, record, known))
    return section("Device embeddings", element("p", NOTE), row_of(parts)) if parts else Markup()


def collapse_sentence(health: EmbeddingHealth) -> str | None:
    """Return what is wrong with embeddings in plain words, or None."""
    if health.deviation < LEAST_DEVIATION:
        return (
            f"The embeddings have collapsed: all devices look alike to the method (deviation {rounded(health.deviation)}, below "
            f"{LEAST_DEVIATION:g}), so every device gets practically the same model."
        )
    if health.effective_dimensions < LEAST_DIMENSIONS:
        return (
            f"The embeddings have nearly collapsed: devices differ along one direction only (effective dimensions "
            f"{rounded(health.effective_dimensions)}, below {LEAST_DIMENSIONS:g})."
        )
    return None


def principal_components(embeddings: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates (M, 2) along the two directions of largest variance, and their shares of the variance (2,).

    Args:
        embeddings: One row a device, (M, E).
    """
    centred = embeddings - embeddings.mean(axis=0)  # (M, E)
    _, scales, directions = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.where(directions[np.arange(len(directions)), largest] < 0, -1, 1)[:, None]  # a sign that stays
    coordinates = np.zeros((len(embeddings), 2))
    coordinates[:, : min(2, len(directions))] = (centred @ directions.T)[:, :2]
    shares = np.zeros(2)
    relative = (scales / max(float(scales[0]), 1e-300)) ** 2
    shares[: min(2, len(scales))] = (relative / max(float(relative.sum()), 1e-300))[:2]
    return coordinates, shares


def _map(name: str, record: Record, devices: list[DeviceRecord]) -> Markup:
    """Return one run's map, its health and its legend."""
    coordinates, shares = principal_components(np.stack([each.embedding for each in devices if each.embedding is not None]))
    radius = max(float(np.abs(coordinates).max()), 1e-9) * 1.08  # one scale for both sides, so that distances are true
    x, y = Scale(-radius, radius, 64, WIDTH - 16), Scale(-radius, radius, HEIGHT - 46, 28)
    names = (f"first component, {shares[0]:.0%} of the variance", f"second component, {shares[1]:.0%}")
    marks = [
        _mark(each, x.at(place[0]), y.at(place[1]), record.config.task.classes) for each, place in zip(devices, coordinates, strict=True)
    ]
    drawn = drawing(WIDTH, HEIGHT, f"Map of {len(devices)} device embeddings of {name}", frame(x, y, names, (_tick, _tick)), *marks)
    keys = class_keys(record.config.task.classes, (each.dominant for each in devices))
    return element("figure", element("h3", name), drawn, keys, _health(record.health), style=f"width:{WIDTH}px")


def _tick(value: float) -> str:
    """Return a coordinate."""
    return f"{value:.2g}"


def _mark(device: DeviceRecord, across: float, up: float, classes: tuple[str, ...]) -> Markup:
    """Return a device's mark."""
    size = 3 + 5 * device.dominance
    kind = "participant" if device.participates else "new device"
    title = element("title", f"{device.device}, {kind}: {device.dominance:.0%} {classes[device.dominant]}")
    opacity, colour = 0.3 + 0.65 * device.dominance, class_colour(device.dominant)
    if device.participates:
        return element("circle", title, cx=across, cy=up, r=size, fill=colour, fill_opacity=opacity, class_="mark")
    reach = size * 1.25
    corners = [(across, up - reach), (across + reach, up), (across, up + reach), (across - reach, up)]
    return area(corners, "mark", title, fill=colour, fill_opacity=opacity)


def _health(health: EmbeddingHealth | None) -> Markup:
    """Return the health numbers and, if there is one, the warning."""
    if health is None:
        return element("p", "Too few devices to tell how healthy the embeddings are.", class_="quiet")
    rows = (
        ("deviation over devices", rounded(health.deviation)),
        ("effective dimensions", rounded(health.effective_dimensions)),
        ("class mix read from the embedding, R²", rounded(health.class_mix_probe)),
    )
    numbers = table("Health of the embeddings", [], [[row_heading(name), cell(value)] for name, value in rows])
    warning = collapse_sentence(health)
    return Markup(numbers + (element("p", warning, class_="warning") if warning else ""))
