"""Traced steps compiled to machine code by torch.compile, with its seconds counted and its failures said.

Compilation needs a C++ compiler on the CPU and takes seconds; the result is cached on disk, so a later run of the same
step is quick. A machine without a compiler runs the traces as they are.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from trainer.methods.base import Batch, Context, Metrics, State

logger = logging.getLogger(__name__)

Program = Callable[[State, Batch, Context], tuple[State, Metrics]]


def compiler_found() -> bool:
    """Tell whether there is a C++ compiler."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return any(name and shutil.which(name) for name in names)


def cache_folder() -> Path:
    """Return where compiled programs are kept over runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fedtailor" / "compiled"


class Compiler:
    """Compiles traces and counts the seconds.

    Attributes:
        seconds: Seconds spent so far.
        failure: Why compilation is not possible, or None.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.failure: str | None = None if compiler_found() else "no C++ compiler was found"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder()))

    def warn(self) -> None:
        """Say that steps run uncompiled, if they do."""
        if self.failure is not None:
            logger.warning("steps run uncompiled: %s", self.failure)

    def compile(self, graph: GraphModule, state: State, batch: Batch, context: Context) -> Program:
        """Return the compiled graph, already run once on these tensors; the graph itself where that fails."""
        if self.failure is not None:
            return graph
        started = time.perf_counter()
        # The trace has its views; nothing of it needs the caller's frames, so a failure is the compiler's own.
        compiled: Any = torch.compile(graph, dynamic=False, fullgraph=True)
        try:
            with torch.no_grad():
                compiled(state, batch, context)
        except Exception as error:  # noqa: BLE001  # torch.compile raises whatever its tools raise; we fall back and say so
            self.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            logger.warning("compilation failed, steps run uncompiled: %s", self.failure)
            return graph
        finally:
            self.seconds += time.perf_counter() - started
        result: Program = compiled
        return result
