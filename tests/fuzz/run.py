"""Fuzz one target with atheris: ``python -m tests.fuzz.run "signed content" -max_total_time=600``.

Needs ``pip install atheris``, which is no dependency: the same targets run with hypothesis in the ordinary tests. What a target
thinks good is the first corpus.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run a target until libFuzzer's own options end it."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["protocol"]):  # what is imported here reports where its bytes lead
        targets = importlib.import_module("tests.fuzz.targets").TARGETS
    if len(arguments) < 2 or arguments[1] not in targets:
        raise SystemExit(f"name a target: {', '.join(targets)}")
    target, corpus = targets[arguments[1]]
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(corpus):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.Setup([arguments[0], *arguments[2:], folder], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
