"""A classifier that watches what it classifies, and is made again when the distribution has moved."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.classifier import Classifier, bundle_of, check_saved
from edge_runtime.drift import DriftMonitor, DriftReport, Reference
from edge_runtime.personal_folder import DriftState, PersonalFolder
from edge_runtime.personalizer import corrected_for, regenerate
from protocol.arguments import require
from protocol.errors import BundleError, InputError
from protocol.trust import Trusted

Array = NDArray[np.generic]


class AdaptiveClassifier:
    """A personalised classifier that follows its device. Calls may come from several threads.

    Args:
        classifier: The classifier to begin with.

    Raises:
        BundleError: The bundle has no drift block.
        InputError: The classifier has no embedding to compare with.
    """

    def __init__(self, classifier: Classifier) -> None:
        require(classifier, Classifier, "the classifier", "edge_runtime.Classifier")
        block, made = classifier.bundle.manifest.drift, classifier.tailored
        if block is None:
            raise BundleError("this bundle does not say when a distribution has moved", hint="export it again where its data lie")
        if made.embedding is None or made.covariance is None:
            raise InputError("this classifier has no embedding to compare with", hint="personalise again")
        way = classifier.bundle.manifest.personalization
        memory = block.window if way is None else way.support_size
        self.classifier = classifier
        self.monitor = DriftMonitor(Reference(made.embedding, made.covariance, made.support_size), block, memory)
        self._samples: list[Array] = []  # raw samples, kept only where label shift is corrected
        self._kept = memory
        self._lock = threading.Lock()

    def predict(self, samples: Array) -> NDArray[np.str_]:
        """Return class names (B,) of raw samples (B, *shape), then take the samples into account; errors as ``Classifier.predict``."""
        labels = self.classifier.predict(samples)
        self.observe(samples)
        return labels

    def observe(self, samples: Array) -> DriftReport:
        """Take raw samples (B, *shape) into account without classifying them; after an event ``classifier`` is another one."""
        embeddings = self.classifier.bundle.embed(samples)  # (B, E)
        with self._lock:
            if self.classifier.tailored.correction is not None:
                self._samples = [*self._samples, *samples][-self._kept :]
            report = self.monitor.observe(embeddings)
            if report.event is not None:
                self._regenerate()
        return report

    def _regenerate(self) -> None:
        """Make the classifier again from the latest samples."""
        old, recent = self.classifier, self.monitor.recent()
        means, covariance = recent.mean.astype(np.float32), recent.covariance.astype(np.float32)
        made = replace(old.tailored, embedding=means, covariance=covariance, support_size=recent.count, advice=())
        made = regenerate(old.bundle, made)
        if old.tailored.correction is not None and self._samples:
            made = corrected_for(old.bundle, made, np.stack(self._samples[-recent.count :]))
        self.classifier = Classifier(old.bundle, made, bake=old.baked)

    def save(self, directory: str | Path) -> None:
        """Write the classifier in use and where its monitor stands; see ``Classifier.save``."""
        with self._lock:
            monitor = self.monitor
            state = DriftState(monitor.samples, monitor.moved, monitor.statistic, monitor.alarms)
            self.classifier.save(directory, state, monitor.running_mean.astype(np.float32))

    @classmethod
    def open(
        cls, directory: str | Path, bundle: Bundle | None = None, *, trusted: Trusted | None = None, bake: bool = False
    ) -> AdaptiveClassifier:
        """Open what ``save`` wrote, of this class or of ``Classifier``; arguments and errors as ``Classifier.open``."""
        folder = Path(directory)
        saved = PersonalFolder.open(folder)
        opened = bundle_of(saved.record, bundle, trusted)
        check_saved(folder, saved, opened)
        found, state = cls(Classifier(opened, saved.tailored, bake=bake)), saved.record.drift
        if state is not None and saved.running_mean is not None:
            found.monitor.resume(saved.running_mean, state.samples, moved=state.moved, alarms=state.alarms)
        return found
