"""Fuzz one target with atheris: ``python -m tests.fuzz.run "signed content" -max_total_time=600``.

Needs ``pip install atheris``, which is no dependency: the same targets run with hypothesis in the ordinary tests.
"""

from __future__ import annotations

import importlib
import sys

from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    """Run a target until libFuzzer's own options end it."""
    if len(arguments) < 2 or arguments[1] not in TARGETS:
        raise SystemExit(f"name a target: {', '.join(TARGETS)}")
    atheris = importlib.import_module("atheris")
    target, _ = TARGETS[arguments[1]]
    atheris.Setup([arguments[0], *arguments[2:]], target)
    atheris.instrument_all()
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
