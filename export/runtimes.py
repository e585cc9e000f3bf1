"""What each ONNX Runtime release loads, so that an export for an older one is refused before anything is exported.

Highest opset and IR version were measured by loading one-node models into the published wheels from 1.15 on (``measured``);
older rows follow the project's own compatibility table. Pythons are those that a release has Linux wheels for.
"""

from __future__ import annotations

from dataclasses import dataclass

from export.graphs import OPSET
from export.passes.lower_ir import IR_VERSION
from protocol.errors import IncompatibleVersionError, InputError

OLDEST_SERVED = (1, 19)
FIRST_WITH_ADAPTERS = (1, 20)
DEFAULT_TARGET = "1.19"
Version = tuple[int, int]


@dataclass(frozen=True)
class RuntimeRelease:
    """One minor release of ONNX Runtime.

    Attributes:
        version: Major and minor number.
        opset: Highest opset of the default domain.
        ir_version: Highest IR version.
        pythons: Minor numbers of the first and the last Python 3 with a wheel.
        measured: Whether opset and IR version were measured.
    """

    version: Version
    opset: int
    ir_version: int
    pythons: tuple[int, int]
    measured: bool = True

    @property
    def name(self) -> str:
        """Return the version as text."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def has_adapters(self) -> bool:
        """Tell whether it has ``LoraAdapter`` and ``.onnx_adapter`` files."""
        return self.version >= FIRST_WITH_ADAPTERS


RELEASES = (
    RuntimeRelease((1, 12), 17, 8, (7, 10), measured=False),
    RuntimeRelease((1, 13), 17, 8, (7, 10), measured=False),
    RuntimeRelease((1, 14), 18, 8, (7, 11), measured=False),
    RuntimeRelease((1, 15), 19, 9, (8, 11)),
    RuntimeRelease((1, 16), 19, 9, (8, 11)),
    RuntimeRelease((1, 17), 20, 9, (8, 12)),
    RuntimeRelease((1, 18), 21, 10, (8, 12)),
    RuntimeRelease((1, 19), 21, 10, (8, 12)),
    RuntimeRelease((1, 20), 21, 10, (10, 13)),
    RuntimeRelease((1, 21), 22, 10, (10, 13)),
    RuntimeRelease((1, 22), 22, 10, (10, 13)),
    RuntimeRelease((1, 23), 23, 11, (10, 13)),
    RuntimeRelease((1, 24), 25, 13, (11, 14)),
    *(RuntimeRelease((1, minor), 26, 13, (11, 14)) for minor in range(25, 32)),
    RuntimeRelease((1, 32), 28, 14, (11, 14)),
)


def find_release(target: str) -> RuntimeRelease:
    """Return the release that a version such as ``1.19`` or ``1.19.2`` belongs to; a newer one than known counts as the newest.

    Raises:
        InputError: Not a version.
        IncompatibleVersionError: Older than the table.
    """
    parts = target.split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts[:2]):
        raise InputError("the ONNX Runtime version is wrong", expected="a version such as 1.19", got=target)
    version = (int(parts[0]), int(parts[1]))
    if version < RELEASES[0].version:
        raise IncompatibleVersionError("ONNX Runtime is too old for any graph", expected=f"{RELEASES[0].name} or newer", got=target)
    return max((each for each in RELEASES if each.version <= version), key=lambda each: each.version)


def check_target(target: str, python: str | None = None) -> str:
    """Return the version that the manifest names as the oldest, ``major.minor``, for devices with this ONNX Runtime.

    Args:
        target: ONNX Runtime on the devices.
        python: Python on the devices, as in ``3.10``; None if nobody knows.

    Raises:
        InputError: Not a version.
        IncompatibleVersionError: It cannot load what this exporter writes, the device's own code does not run on it, or it
            has no wheel for that Python.
    """
    release = find_release(target)
    check_graph_versions(release, OPSET, IR_VERSION)
    if release.version < OLDEST_SERVED:
        hint = "edge_runtime needs it; the graphs alone also load on older ones"
        raise IncompatibleVersionError("ONNX Runtime is too old for the device's code", expected="1.19 or newer", got=target, hint=hint)
    if python is not None:
        _check_python(release, python)
    return ".".join(target.split(".")[:2])


def check_graph_versions(release: RuntimeRelease, opset: int, ir_version: int) -> None:
    """Refuse a graph that a release does not load.

    Raises:
        IncompatibleVersionError: Its opset or its IR version is too new.
    """
    if opset <= release.opset and ir_version <= release.ir_version:
        return
    able = next((each.name for each in RELEASES if opset <= each.opset and ir_version <= each.ir_version), "a release yet to come")
    raise IncompatibleVersionError(
        f"ONNX Runtime {release.name} cannot load opset {opset} with IR {ir_version}",
        expected=f"at most opset {release.opset} and IR {release.ir_version}",
        hint=f"the oldest that can is {able}",
    )


def check_adapter_api(target: str) -> None:
    """Refuse adapter files for a release that has none.

    Raises:
        IncompatibleVersionError: The release is older than 1.20.
    """
    if not find_release(target).has_adapters:
        hint = "feed the factors as inputs instead: edge_runtime.adapters does so on any release"
        raise IncompatibleVersionError("this ONNX Runtime has no adapter files", expected="1.20 or newer", got=target, hint=hint)


def _check_python(release: RuntimeRelease, python: str) -> None:
    """Refuse a Python that a release has no wheel for."""
    major, _, minor = python.partition(".")
    if major != "3" or not (minor.isascii() and minor.isdigit() and len(minor) < 4):
        raise InputError("the Python version is wrong", expected="a version such as 3.10", got=python)
    first, last = release.pythons
    if not first <= int(minor) <= last:
        fitting = [each.name for each in RELEASES if each.version >= OLDEST_SERVED and each.pythons[0] <= int(minor) <= each.pythons[1]]
        hint = f"for Python {python} take {fitting[0]} to {fitting[-1]}" if fitting else f"no release from 1.19 on serves Python {python}"
        what, expected = f"ONNX Runtime {release.name} has no wheel for this Python", f"3.{first} to 3.{last}"
        raise IncompatibleVersionError(what, expected=expected, got=python, hint=hint)
