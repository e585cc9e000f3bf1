"""A verified bundle at work: the door through which a program on a device comes in."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_runtime.memory import return_freed_memory
from edge_runtime.precision import choose_form
from edge_runtime.precision_words import AUTO, check_precision
from edge_runtime.samples import SampleGate
from edge_runtime.session_settings import SessionSettings
from edge_runtime.sessions import Session, open_session
from edge_runtime.sources import ROWS_AT_A_TIME, Source
from protocol.arguments import as_path, require
from protocol.bundle import check_expiry, open_bundle
from protocol.errors import BundleError, IncompatibleVersionError, InputError, NumericalError
from protocol.manifest import FLOAT32, GraphSpec, Manifest
from protocol.onnx_writer import with_constants
from protocol.trust import Trusted, trusted_of

if TYPE_CHECKING:
    from edge_runtime.classifier import Classifier

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
DEFAULT_SETTINGS = SessionSettings()
TRAINING = "train_"  # entry points that hold a training step, run thousands of times in a row

logger = logging.getLogger(__name__)


class Bundle:
    """An open bundle whose signature, digests and graphs were checked.

    Graphs are loaded when first used, from the bytes that were hashed.
    """

    def __init__(self, path: Path, trusted: Trusted, precision: str = AUTO, settings: SessionSettings = DEFAULT_SETTINGS) -> None:
        check_precision(precision)
        require(settings, SessionSettings, "the settings of sessions", "edge_runtime.SessionSettings")
        return_freed_memory()
        self._verified = open_bundle(path, trusted)
        check_expiry(self.manifest, time.time())
        self.settings = settings
        self.gate = SampleGate(self.manifest.raw_input)
        self.path = path
        self.trusted = trusted
        self.wanted_precision = precision
        self._sessions: dict[str, Session] = {}
        self._forms: dict[str, str] = {}

    @classmethod
    def open(
        cls, path: str | Path, trusted: str | Path | Trusted, precision: str = AUTO, settings: SessionSettings = DEFAULT_SETTINGS
    ) -> Bundle:
        """Open and verify a bundle.

        Args:
            path: The bundle's folder.
            trusted: The public key or trust policy, or its file, of whoever releases bundles.
            precision: ``auto`` for the quickest form of each graph that runs here, or ``fp32``, ``fp16``, ``int8`` where there is one.
            settings: Threads and execution providers of its sessions.

        Raises:
            BundleError: Altered, incomplete, or signed by another key.
            IncompatibleVersionError: Expired, or ONNX Runtime is too old.
            KeyFileError: The key file cannot be used.
        """
        return cls(as_path(path, "the bundle's folder", BundleError), trusted_of(trusted), precision, settings)

    @property
    def manifest(self) -> Manifest:
        """Return what the bundle says about itself."""
        return self._verified.manifest

    @property
    def digest(self) -> str:
        """Return the bundle's name: SHA-256 of its manifest in hexadecimal."""
        return self._verified.digest

    def file(self, path: str) -> bytes | None:
        """Return the verified content of one of the bundle's files, or None where it has none of that name."""
        return self._verified.files.get(require(path, str, "a file's name", "text"))

    def session(self, entry_point: str) -> Session:
        """Return the loaded graph of an entry point.

        Raises:
            BundleError: The bundle has none of that name.
        """
        if require(entry_point, str, "an entry point", "its name") not in self._sessions:
            self._sessions[entry_point] = self._open_session(entry_point)
        return self._sessions[entry_point]

    def baked_session(self, entry_point: str, weights: Mapping[str, Floats]) -> Session:
        """Return a session of its own in which some of the graph's inputs are constants.

        Args:
            entry_point: The graph, in the form that runs here.
            weights: Name of an input -> its value.

        Raises:
            BundleError: The bundle has no such entry point, or the graph no such inputs.
        """
        form = self.precision(entry_point)
        for name, value in require(weights, Mapping, "what becomes constant", "arrays by name").items():  # type: ignore[type-abstract]
            if require(value, np.ndarray, f"the constant {name}", "a float32 array").dtype != np.float32:
                raise InputError(f"the constant {name} is wrong", expected="float32", got=value.dtype)
        return self._load(entry_point, with_constants(self._verified.graph(entry_point, form), weights))

    def precision(self, entry_point: str) -> str:
        """Return in which precision an entry point runs: ``fp32``, ``fp16`` or ``int8``."""
        self.session(entry_point)
        return self._forms[entry_point]

    def _open_session(self, entry_point: str) -> Session:
        """Load a graph in the form that is wanted; a variant that does not load here gives way to float32, and the log says so."""
        plain = self._verified.graph(entry_point)
        form = choose_form(self.manifest.graphs[entry_point], self.wanted_precision)
        if form != FLOAT32:
            try:
                self._forms[entry_point] = form
                minimum = self.manifest.graphs[entry_point].variants[form].minimum_onnxruntime
                return self._load(entry_point, self._verified.graph(entry_point, form), minimum)
            except (BundleError, IncompatibleVersionError) as fault:
                logger.warning("%s does not run in %s here and runs in fp32: %s", entry_point, form, fault.sentence())
        self._forms[entry_point] = FLOAT32
        return self._load(entry_point, plain)

    def _load(self, entry_point: str, graph: bytes, minimum_version: str | None = None) -> Session:
        """Return a session with the settings of this bundle."""
        threads = self.settings.threads_for(len(graph) + _fed_bytes(self.manifest.graphs[entry_point]))
        minimum = minimum_version or self.manifest.minimum_onnxruntime
        return open_session(graph, minimum, threads, self.settings.providers, arena=entry_point.startswith(TRAINING))

    def embed(self, samples: Array) -> Floats:
        """Return distribution embeddings (N, E) float32 of raw samples (N, *shape)."""
        return self._map_rows("embed", samples)

    def features(self, samples: Array) -> Floats:
        """Return features (N, D) float32 of raw samples (N, *shape), for class prototypes."""
        return self._map_rows("features", samples)

    def personalize(self, unlabelled: Source, *, correct: bool = False, bake: bool = False) -> Classifier:
        """Return a classifier tailored to a device's own unlabelled samples.

        Args:
            unlabelled: Raw samples: an array (N, *shape), a path (image, ``.npy``, ``.npz``, or a folder of these), or an
                iterable of samples or arrays. ``manifest.personalization.support_size`` of them suffice; with fewer, or where
                they look unlike what the bundle takes, the classifier's ``advice`` says so and a warning is logged.
            correct: Whether to correct predictions for this device's class prior, estimated from the same samples.
            bake: Whether to make the generated weights constants: slower to make, faster to use.

        Raises:
            EmptySupportSetError: No sample.
            InputError: Samples that do not fit (see ``SampleGate.accept``), or a correction without a calibration.
            NumericalError: The bundle's graphs gave no usable weights.
        """
        from edge_runtime.classifier import Classifier  # it needs this module too
        from edge_runtime.personalizer import tailor

        tailored = tailor(self, unlabelled, correct=correct)
        for sentence in tailored.advice:
            logger.warning("%s", sentence)
        return Classifier(self, tailored, bake=bake)

    def distribution_signature(self, samples: Source, labels: NDArray[np.integer] | None = None) -> Floats:
        """Return what a device's data look like, (S,) float32, normalised by constants of the training data.

        Args:
            samples: Raw samples; see ``personalize``.
            labels: Their class indices, (N,): needed where the bundle asks for class frequencies, refused where it does not.

        Raises:
            BundleError: The bundle has no distribution signature.
            EmptySupportSetError: No sample.
            NotAllowedError: Labels, where devices use samples alone.
            InputError: Samples or labels that do not fit.
        """
        from edge_runtime.signature_source import measure_source

        return measure_source(self, samples, labels)

    def _map_rows(self, entry_point: str, samples: Array) -> Floats:
        """Return an entry point's output for all samples, a bounded number of rows at a time."""
        accepted = self.gate.accept(samples)
        session = self.session(entry_point)
        pieces = [session.run({"samples": accepted[at : at + ROWS_AT_A_TIME]})[0] for at in range(0, len(accepted), ROWS_AT_A_TIME)]
        if not pieces:
            width = self.manifest.graphs[entry_point].outputs[0].shape[1]
            return np.empty((0, int(width)), np.float32)
        result = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if not np.isfinite(result).all():
            raise NumericalError(f"the graph {entry_point} gave NaN or infinity", hint="are the samples in the raw range?")
        return result


def _fed_bytes(graph: GraphSpec) -> int:
    """Return the bytes of a graph's inputs of fixed size: weights, four bytes an entry."""
    fixed = [math.prod(int(size) for size in spec.shape) for spec in graph.inputs if not any(isinstance(size, str) for size in spec.shape)]
    return 4 * sum(fixed)
