"""A verified bundle at work: the door through which a program on a device comes in."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_runtime.precision import check_precision, choose_form
from edge_runtime.samples import check_samples
from edge_runtime.sessions import Session, open_session
from protocol.bundle import check_expiry, open_bundle
from protocol.errors import BundleError, EmptySupportSetError, IncompatibleVersionError, NumericalError
from protocol.manifest import FLOAT32, Manifest
from protocol.trust import Trusted, open_trusted

if TYPE_CHECKING:
    from edge_runtime.classifier import Classifier

Array = NDArray[np.generic]
logger = logging.getLogger(__name__)
Floats = NDArray[np.float32]
ROWS_AT_A_TIME = 256  # bounds the memory of a call


class Bundle:
    """An open bundle whose signature, digests and graphs were checked.

    Graphs are loaded when first used, from the bytes that were hashed.
    """

    def __init__(self, path: Path, trusted: Trusted, precision: str = "auto") -> None:
        check_precision(precision)
        self._verified = open_bundle(path, trusted)
        check_expiry(self.manifest, time.time())
        self.path = path
        self.trusted = trusted
        self._wanted = precision
        self._sessions: dict[str, Session] = {}
        self._forms: dict[str, str] = {}

    @classmethod
    def open(cls, path: str | Path, trusted: str | Path | Trusted, precision: str = "auto") -> Bundle:
        """Open and verify a bundle.

        Args:
            path: The bundle's folder.
            trusted: The public key or trust policy, or its file, of whoever releases bundles.
            precision: ``auto`` for the quickest form of each graph that runs here, or ``fp32``, ``fp16``, ``int8`` where there is one.

        Raises:
            BundleError: Altered, incomplete, or signed by another key.
            IncompatibleVersionError: Expired, or ONNX Runtime is too old.
            KeyFileError: The key file cannot be used.
        """
        return cls(Path(path), open_trusted(Path(trusted)) if isinstance(trusted, str | Path) else trusted, precision)

    @property
    def manifest(self) -> Manifest:
        """Return what the bundle says about itself."""
        return self._verified.manifest

    @property
    def digest(self) -> str:
        """Return the bundle's name: SHA-256 of its manifest in hexadecimal."""
        return self._verified.digest

    def session(self, entry_point: str) -> Session:
        """Return the loaded graph of an entry point.

        Raises:
            BundleError: The bundle has none of that name.
        """
        if entry_point not in self._sessions:
            self._sessions[entry_point] = self._open_session(entry_point)
        return self._sessions[entry_point]

    def precision(self, entry_point: str) -> str:
        """Return in which precision an entry point runs: ``fp32``, ``fp16`` or ``int8``."""
        self.session(entry_point)
        return self._forms[entry_point]

    def _open_session(self, entry_point: str) -> Session:
        """Load a graph in the form that is wanted; a variant that does not load here gives way to float32, and the log says so."""
        plain = self._verified.graph(entry_point)
        form = choose_form(self.manifest.graphs[entry_point], self._wanted)
        if form != FLOAT32:
            try:
                self._forms[entry_point] = form
                own = self._verified.graph(entry_point, form)
                return open_session(own, self.manifest.graphs[entry_point].variants[form].minimum_onnxruntime)
            except (BundleError, IncompatibleVersionError) as fault:
                logger.warning("%s does not run in %s here and runs in fp32: %s", entry_point, form, fault.sentence())
        self._forms[entry_point] = FLOAT32
        return open_session(plain, self.manifest.minimum_onnxruntime)

    def embed(self, samples: Array) -> Floats:
        """Return distribution embeddings (N, E) float32 of raw samples (N, *shape)."""
        return self._map_rows("embed", samples)

    def features(self, samples: Array) -> Floats:
        """Return features (N, D) float32 of raw samples (N, *shape), for class prototypes."""
        return self._map_rows("features", samples)

    def personalize(self, unlabelled: Array) -> Classifier:
        """Return a classifier tailored to a device's own unlabelled samples.

        Args:
            unlabelled: Raw samples, (N, *shape), N at least 1; ``manifest.personalization.support_size`` of them suffice.

        Raises:
            EmptySupportSetError: No sample.
            InputError: Samples of another shape or dtype, or not finite.
            NumericalError: The bundle's graphs gave no usable weights.
        """
        from edge_runtime.classifier import Classifier  # it needs this module too
        from edge_runtime.personalizer import tailor

        check_samples(unlabelled, self.manifest.raw_input)
        if len(unlabelled) == 0:
            way = self.manifest.personalization
            expected = f"about {way.support_size} samples" if way else "at least one sample"
            raise EmptySupportSetError("there is no sample to personalise from", expected=expected, got="none")
        return Classifier(self, tailor(self, unlabelled))

    def _map_rows(self, entry_point: str, samples: Array) -> Floats:
        """Return an entry point's output for all samples, a bounded number of rows at a time."""
        check_samples(samples, self.manifest.raw_input)
        session = self.session(entry_point)
        pieces = [session.run({"samples": samples[at : at + ROWS_AT_A_TIME]})[0] for at in range(0, len(samples), ROWS_AT_A_TIME)]
        if not pieces:
            width = self.manifest.graphs[entry_point].outputs[0].shape[1]
            return np.empty((0, int(width)), np.float32)
        result = np.concatenate(pieces)
        if not np.isfinite(result).all():
            raise NumericalError(f"the graph {entry_point} gave NaN or infinity", hint="are the samples in the raw range?")
        return result
