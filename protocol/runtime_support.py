"""Which operator sets and file versions each ONNX Runtime loads, as far as a device must know.

Measured by loading one-node models into the published wheels; the exporter's table is held to the same numbers by a test.
"""

from __future__ import annotations

from protocol.errors import IncompatibleVersionError
from protocol.manifest import Manifest

# First minor release of ONNX Runtime 1.x -> highest operator set, highest IR version.
HIGHEST = {
    12: (17, 8),
    14: (18, 8),
    15: (19, 9),
    17: (20, 9),
    18: (21, 10),
    21: (22, 10),
    23: (23, 11),
    24: (25, 13),
    25: (26, 13),
    32: (28, 14),
}


def highest_versions(runtime: str) -> tuple[int, int]:
    """Return the highest operator set and IR version that a release ``major.minor`` loads; a newer one counts as the newest known.

    Raises:
        IncompatibleVersionError: Older than the table.
    """
    major, minor = (int(part) for part in runtime.split(".")[:2])
    known = [first for first in HIGHEST if (1, first) <= (major, minor)]
    if not known:
        raise IncompatibleVersionError("ONNX Runtime is too old for any graph", expected=f"1.{min(HIGHEST)} or newer", got=runtime)
    return HIGHEST[max(known)]


def check_promises(manifest: Manifest) -> None:
    """Refuse a manifest that promises a runtime which cannot load its graphs.

    Raises:
        IncompatibleVersionError: An operator set or IR version is too new for the runtime that the manifest names.
    """
    for graph in manifest.graphs.values():
        own = [(each.minimum_onnxruntime, graph.form(name)) for name, each in graph.variants.items()]
        for runtime, form in [(manifest.minimum_onnxruntime, graph), *own]:
            opset, ir_version = highest_versions(runtime)
            if form.opset > opset or form.ir_version > ir_version:
                raise IncompatibleVersionError(
                    f"{form.file} is too new for the ONNX Runtime that the manifest names, {runtime}",
                    expected=f"at most opset {opset} and IR {ir_version}",
                    got=f"opset {form.opset} and IR {form.ir_version}",
                    hint="export it again for that runtime",
                )
