"""The one module that touches ONNX Runtime: sessions with the settings that suit a small device.

No spinning: it wastes a whole core between calls. No arena and no memory pattern: memory must not grow with the batch
sizes seen. No option is ever read from a bundle; how many threads, and which providers, the caller says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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


CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Session:
    """A loaded graph.

    Attributes:
        input_names: Inputs that must be fed.
        output_names: The graph's outputs, in its order.
        threads: Threads of one call.
        providers: Execution providers in use, the preferred first.
        optional_names: Inputs that may be left out, because the graph has defaults for them.
    """

    _session: Any
    _run: Callable[[list[str], Mapping[str, Array], None], list[NDArray[np.float32]]]
    input_names: tuple[str, ...]
    output_names: list[str]
    threads: int
    providers: tuple[str, ...]
    optional_names: tuple[str, ...] = ()

    def run(self, feeds: Mapping[str, Array]) -> list[NDArray[np.float32]]:
        """Return the outputs, in the graph's order, for inputs by name. Several threads may call at once.

        Raises:
            InputError: An input is missing or unknown, or has another dtype, rank or size than the graph takes.
        """
        try:
            outputs: list[NDArray[np.float32]] = self._run(self.output_names, feeds, None)  # without names they are listed anew each time
        except Exception as error:  # ONNX Runtime raises classes of its own without a common root
            expected = ", ".join(self.input_names)
            raise InputError("ONNX Runtime refuses the inputs of a graph", expected=expected, got=str(error)[:300]) from error
        return outputs

    def bare(self) -> Callable[[Mapping[str, Array]], Sequence[Array]]:
        """Return ONNX Runtime's own call with the outputs' names filled in: what every millisecond of ours is measured against."""
        return functools.partial(self._session.run, self.output_names)


def open_session(graph: bytes, minimum_version: str, threads: int = 1, providers: Sequence[str] = (), *, arena: bool = False) -> Session:
    """Load a graph from the bytes that were verified.

    Args:
        graph: An ONNX model.
        minimum_version: Oldest ONNX Runtime that the bundle says can load it.
        threads: Threads of one call.
        providers: Execution providers, the preferred first; the CPU's follows in any case.
        arena: Whether to keep the memory of a call for the next. A training step, which keeps all activations for the way back,
            takes half the time with it; a classifier gains nothing and would hold its largest batch for ever.

    Raises:
        IncompatibleVersionError: This ONNX Runtime is older.
        InputError: It has no such provider.
        BundleError: ONNX Runtime refuses the graph.
    """
    check_runtime(minimum_version)
    wanted = [*(name for name in _checked(providers) if name != CPU), CPU]
    try:
        session = onnxruntime.InferenceSession(graph, session_options(threads, arena=arena), providers=wanted)
    except Exception as error:  # ONNX Runtime raises classes of its own without a common root
        raise BundleError("ONNX Runtime refuses a graph", got=str(error)[:300], hint="export the bundle again for this runtime") from error
    values = (session.get_inputs(), session.get_outputs(), session.get_overridable_initializers())
    inputs, outputs, optional = ([each.name for each in kind] for kind in values)
    in_use = tuple(session.get_providers())
    return Session(session, _shortest_way(session, in_use), tuple(inputs), outputs, threads, in_use, tuple(optional))


def _shortest_way(session: Any, providers: Sequence[str]) -> Any:
    """Return the session's ``run`` without the checks that its Python wrapper repeats at each call: an eighth of a small one.

    The wrapper also falls back to other providers when one fails, so it is left out on the CPU alone.
    """
    inner = getattr(getattr(session, "_sess", None), "run", None)
    return inner if callable(inner) and tuple(providers) == (CPU,) else session.run


def session_options(threads: int, *, arena: bool = False) -> Any:
    """Return ONNX Runtime's options as every session here has them."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False
    options.log_severity_level = LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _checked(providers: Sequence[str]) -> Sequence[str]:
    """Return providers that this ONNX Runtime has."""
    available = onnxruntime.get_available_providers()
    missing = [name for name in providers if name not in available]
    if missing:
        hint = "install the ONNX Runtime package that holds it"
        raise InputError("ONNX Runtime has no such provider", expected=" or ".join(available), got=missing[0], hint=hint)
    return providers


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
