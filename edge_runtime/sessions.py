"""The one module that touches ONNX Runtime: sessions with the settings that suit a small device.

One thread: at these sizes a second one gains nothing, and spinning wastes a whole core between calls. No arena and no
memory pattern: memory must not grow with the batch sizes seen. No option is ever read from a bundle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BundleError, IncompatibleVersionError, InputError, MissingExtraError

try:
    import onnxruntime
except ModuleNotFoundError as error:
    raise MissingExtraError("ONNX Runtime is not installed", hint='pip install "fedtailor[edge]"') from error

LOG_ERRORS_ONLY = 3
Array = NDArray[np.generic]


@dataclass(frozen=True)
class Session:
    """A loaded graph.

    Attributes:
        input_names: Inputs that must be fed.
        optional_names: Inputs that may be left out, because the graph has defaults for them.
    """

    _session: Any
    input_names: tuple[str, ...]
    optional_names: tuple[str, ...] = ()

    def run(self, feeds: Mapping[str, Array]) -> list[NDArray[np.float32]]:
        """Return the outputs, in the graph's order, for inputs by name.

        Raises:
            InputError: An input is missing or unknown, or has another dtype, rank or size than the graph takes.
        """
        try:
            outputs: list[NDArray[np.float32]] = self._session.run(None, feeds)
        except Exception as error:  # ONNX Runtime raises classes of its own without a common root
            expected = ", ".join(self.input_names)
            raise InputError("ONNX Runtime refuses the inputs of a graph", expected=expected, got=str(error)[:300]) from error
        return outputs


def open_session(graph: bytes, minimum_version: str, threads: int = 1, providers: Sequence[str] = ("CPUExecutionProvider",)) -> Session:
    """Load a graph from the bytes that were verified.

    Args:
        graph: An ONNX model.
        minimum_version: Oldest ONNX Runtime that the bundle says can load it.
        threads: Threads of one call.
        providers: Execution providers, the preferred first.

    Raises:
        IncompatibleVersionError: This ONNX Runtime is older.
        BundleError: ONNX Runtime refuses the graph.
    """
    check_runtime(minimum_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=list(providers))
    except Exception as error:  # ONNX Runtime raises classes of its own without a common root
        raise BundleError("ONNX Runtime refuses a graph", got=str(error)[:300], hint="export the bundle again for this runtime") from error
    names = [tuple(each.name for each in values) for values in (session.get_inputs(), session.get_overridable_initializers())]
    return Session(session, *names)


def runtime_version() -> str:
    """Return the version of the ONNX Runtime that was loaded."""
    return str(onnxruntime.__version__)


def try_arrays() -> None:
    """Hand an array to the runtime and back: built for another numpy it can be imported, but not used.

    Raises:
        Exception: Whatever the two make of each other.
    """
    onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32)).numpy()


def check_runtime(minimum_version: str) -> None:
    """Refuse an ONNX Runtime that is older than a bundle needs.

    Raises:
        IncompatibleVersionError: It is older.
    """
    if not runtime_at_least(minimum_version):
        hint = f'pip install "onnxruntime>={minimum_version}", or export for an older runtime'
        raise IncompatibleVersionError("ONNX Runtime is too old", expected=minimum_version, got=onnxruntime.__version__, hint=hint)


def runtime_at_least(version: str) -> bool:
    """Tell whether this ONNX Runtime is of the version or newer; patches are not looked at."""
    return _numbers(onnxruntime.__version__) >= _numbers(version)


def _numbers(version: str) -> tuple[int, int]:
    """Return major and minor version as numbers."""
    major, minor, *_ = [*version.split("."), "0"]
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)
