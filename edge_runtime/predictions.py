"""Predictions beside an agent: sample files that appear in a folder are classified while rounds go on.

A program on the device puts ``NAME.npy`` (raw samples, written beside and renamed) into ``new/`` of the data folder and
finds ``NAME.json`` in ``predictions/``; the file of samples is removed then.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

from edge_runtime.bundle import Bundle
from edge_runtime.classifier import Classifier
from edge_runtime.device_data import DeviceData
from edge_runtime.samples import read_samples
from protocol.errors import FedtailorError
from protocol.files import write_atomically

NEW, PREDICTIONS = "new", "predictions"
POLL_SECONDS = 0.2
SUFFIX = ".npy"
LOGGER = logging.getLogger(__name__)


class Predictions:
    """Classifies what appears, in a thread of its own, with the classifier tailored to this device.

    Args:
        folder: The device's data folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._classifier: Classifier | None = None
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)
        self.files = 0
        self.samples = 0
        (folder / NEW).mkdir(exist_ok=True)
        (folder / PREDICTIONS).mkdir(exist_ok=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def use(self, bundle: Bundle) -> None:
        """Personalise with a bundle, and predict with it from now on; if that fails, the one before stays."""
        try:
            classifier = bundle.personalize(DeviceData(self._folder, bundle.manifest).support())
        except FedtailorError as error:
            LOGGER.warning("no classifier from this bundle: %s", error.sentence())
            return
        with self._lock:
            self._classifier = classifier

    def close(self) -> None:
        """End after the file at hand."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        """Look for files until closed."""
        while not self._stop.wait(POLL_SECONDS):
            with self._lock:
                classifier = self._classifier
            if classifier is None:
                continue
            for path in sorted((self._folder / NEW).glob(f"*{SUFFIX}")):
                if self._stop.is_set():
                    return
                self._predict(classifier, path)

    def _predict(self, classifier: Classifier, path: Path) -> None:
        """Classify one file; one that cannot be read gets its reason instead of labels."""
        began = time.perf_counter()
        content: dict[str, object]
        try:
            _, samples = read_samples(path, classifier.bundle.manifest.raw_input)
            labels = [str(label) for label in classifier.predict(samples)]
            content = {"labels": labels, "bundle": classifier.bundle.digest, "seconds": round(time.perf_counter() - began, 6)}
            self.samples += len(labels)
        except FedtailorError as error:
            content = {"error": error.sentence()}
        try:
            write_atomically(self._folder / PREDICTIONS / f"{path.stem}.json", (json.dumps(content) + "\n").encode())
            path.unlink(missing_ok=True)
        except OSError as error:
            LOGGER.warning("a prediction could not be written: %s", error)
            self._stop.wait(1.0)
        self.files += 1
