"""Which form of a graph a device runs: float32, or a variant in smaller numbers that was measured to be quicker."""

from __future__ import annotations

from edge_runtime.precision_words import AUTO
from edge_runtime.sessions import runtime_at_least
from protocol.manifest import FLOAT32, GraphSpec


def choose_form(graph: GraphSpec, wanted: str) -> str:
    """Return the precision in which a graph is run.

    ``auto`` takes the form that was quickest where the bundle was made, among those that this ONNX Runtime loads; a precision that the
    graph has no variant of leaves it in float32, for most graphs have none.

    Args:
        graph: What the manifest says of the graph and its variants.
        wanted: ``auto``, ``fp32``, ``fp16`` or ``int8``.
    """
    usable = {name: variant for name, variant in graph.variants.items() if runtime_at_least(variant.minimum_onnxruntime)}
    if wanted != AUTO:
        return wanted if wanted in usable else FLOAT32
    quicker = {name: variant.seconds / variant.seconds_float32 for name, variant in usable.items()}
    best = min(quicker, key=lambda name: quicker[name], default=FLOAT32)
    return best if quicker.get(best, 1.0) < 1.0 else FLOAT32
