"""Seconds of a graph, measured once and then remembered: the same run must give the same bundle, byte by byte."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sessions import open_session
from protocol.errors import RunFolderError
from protocol.files import write_atomically

REPEATS = 100
FILE = "measurements.json"

Array = NDArray[np.generic]


class Stopwatch:
    """Measures pairs of graphs, and keeps what it found in a run's folder.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._known: dict[str, list[float]] = {}
        if self._path.is_file():
            try:
                self._known = {str(name): [float(each) for each in pair] for name, pair in json.loads(self._path.read_bytes()).items()}
            except (ValueError, AttributeError, TypeError) as error:
                raise RunFolderError(f"{self._path} is damaged", got=str(error), hint="remove it; the next export measures anew") from error

    def compare(self, graph: bytes, reference: bytes, feeds: Mapping[str, Array], runtime: str) -> tuple[float, float]:
        """Return the median seconds of one row through a graph and through its reference, run in turn on one thread.

        Args:
            graph: ONNX bytes.
            reference: ONNX bytes with the same inputs.
            feeds: Inputs by name, (N, ...) each; the first row is used.
            runtime: Oldest ONNX Runtime of the bundle.
        """
        name = hashlib.sha256(graph + reference).hexdigest()
        if name not in self._known:
            row = {key: array[:1] for key, array in feeds.items()}
            sessions = [open_session(each, runtime) for each in (graph, reference)]
            found: tuple[list[float], list[float]] = ([], [])
            for _ in range(REPEATS):
                for session, seconds in zip(sessions, found, strict=True):
                    began = time.perf_counter()
                    session.run(row)
                    seconds.append(time.perf_counter() - began)
            self._known[name] = [statistics.median(each) for each in found]
            write_atomically(self._path, json.dumps(self._known, indent=1, sort_keys=True).encode())
        own, theirs = self._known[name]
        return own, theirs
