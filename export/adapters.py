"""Adapter files of ONNX Runtime's own kind, so that programs in C#, Java or JavaScript can use our LoRA factors.

Such a file works from ONNX Runtime 1.20, and never together with IO binding: there the runtime ignores an active adapter
without a word. Our own device code feeds factors as inputs (``edge_runtime.adapters``).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnxruntime

from edge_runtime.adapters import Adapter
from export.runtimes import check_adapter_api
from protocol.errors import InputError
from protocol.files import write_atomically

SUFFIX = ".onnx_adapter"
ADAPTER_VERSION = 1


def write_onnx_adapter(path: Path, adapter: Adapter, model_version: int, target_runtime: str) -> None:
    """Write a file that ``onnxruntime.LoraAdapter`` loads; it is there whole or not at all.

    Args:
        path: Where; the name ends in ``.onnx_adapter``.
        adapter: Checked factors.
        model_version: The bundle's version, at least 1.
        target_runtime: ONNX Runtime on the devices, as in ``1.20``.

    Raises:
        IncompatibleVersionError: That ONNX Runtime, or the one here, has no adapter files.
        InputError: The name or the version is wrong.
    """
    check_adapter_api(target_runtime)
    check_adapter_api(onnxruntime.__version__)
    if path.suffix != SUFFIX:
        raise InputError("an adapter file is named wrongly", expected=f"a name that ends in {SUFFIX}", got=path.name)
    if model_version < 1:
        raise InputError("the version is wrong", expected="at least 1", got=model_version)
    content: Any = onnxruntime.AdapterFormat()
    content.set_adapter_version(ADAPTER_VERSION)
    content.set_model_version(model_version)
    content.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(factor) for name, factor in adapter.factors.items()})
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:  # the runtime writes to a path only
        written = Path(folder) / "adapter"
        content.export_adapter(str(written))
        write_atomically(path, written.read_bytes())
