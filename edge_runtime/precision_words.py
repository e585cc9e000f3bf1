"""The words for precisions that a caller may say; apart from their meaning, which needs ONNX Runtime."""

from __future__ import annotations

from protocol.arguments import require
from protocol.errors import InputError
from protocol.manifest import FLOAT32, PRECISIONS

AUTO = "auto"
WORDS = (AUTO, FLOAT32, *PRECISIONS)


def check_precision(wanted: str) -> None:
    """Refuse a word that names no precision.

    Raises:
        InputError: It is none.
    """
    if require(wanted, str, "the precision", " or ".join(WORDS)) not in WORDS:
        raise InputError("the precision is unknown", expected=" or ".join(WORDS), got=wanted)
