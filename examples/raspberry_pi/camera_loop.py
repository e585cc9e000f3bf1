"""Labels every picture that appears in a folder, with a classifier tailored to this device: a program to copy and change.

It opens the bundle in use of a store, personalises once from the first pictures, and from then on prints one JSON line
for each picture. Under systemd it says when it is ready and that it is alive; a bundle that makes it hang or crash
during its trial is left for the one before it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edge_runtime import Bundle, BundleStore, Classifier
from edge_runtime.samples import IMAGE_SUFFIXES, read_samples
from protocol.errors import BundleError, FedtailorError, InputError, NumericalError

POLL_SECONDS = 0.5
SUFFIXES = IMAGE_SUFFIXES | {".npy"}


def notify(message: str) -> None:
    """Tell systemd something, if it started us: one datagram to the socket it named (see sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


def log(**fields: object) -> None:
    """Print one JSON line."""
    print(json.dumps(fields), flush=True)


class Pictures:
    """The pictures in a folder, each once, the oldest first.

    Whoever writes them should write under another suffix and rename, so that no half picture is seen.
    """

    def __init__(self, folder: Path, stop: threading.Event) -> None:
        self.folder = folder
        self.stop = stop
        self._last = (0, "")  # time and name of the last picture that was handed out

    def waiting(self) -> list[tuple[int, str]]:
        """Return time and name of the pictures that were not handed out yet."""
        with os.scandir(self.folder) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if Path(entry.name).suffix.lower() in SUFFIXES]
        return sorted(each for each in found if each > self._last)

    def __iter__(self) -> Iterator[Path]:
        """Yield pictures until told to stop, alive in between."""
        while not self.stop.is_set():
            for mark in self.waiting():
                if self.stop.is_set():
                    return
                self._last = mark
                yield self.folder / mark[1]
            notify("WATCHDOG=1")
            self.stop.wait(POLL_SECONDS)


def personal_classifier(bundle: Bundle, pictures: Pictures, state: Path) -> Classifier | None:
    """Return the classifier from an earlier start, or make one from the first pictures; None when told to stop first."""
    try:
        return Classifier.open(state, bundle)
    except (InputError, BundleError) as error:  # none yet, or made with the bundle before this one
        log(event="personalise", because=error.what)
    way = bundle.manifest.personalization
    wanted = 1 if way is None else way.support_size
    while len(pictures.waiting()) < wanted:
        notify(f"WATCHDOG=1\nSTATUS=waiting for {wanted} pictures to personalise from")
        if pictures.stop.wait(POLL_SECONDS):
            return None
    batches = [read_samples(pictures.folder / name, bundle.manifest.raw_input)[1] for _, name in pictures.waiting()[:wanted]]
    classifier = bundle.personalize(np.concatenate(batches))
    classifier.save(state)
    log(event="personalised", pictures=wanted, bundle=bundle.digest)
    return classifier


def label(classifier: Classifier, path: Path) -> bool:
    """Print what a picture shows, and tell whether it could be read."""
    manifest = classifier.bundle.manifest
    try:
        _, samples = read_samples(path, manifest.raw_input)
        probabilities = classifier.predict_proba(samples)  # (B, C)
    except (InputError, FileNotFoundError) as error:  # one bad picture ends nothing
        log(picture=path.name, error=str(error))
        return False
    for row in probabilities:
        best = int(row.argmax())
        log(picture=path.name, label=manifest.classes[best], probability=round(float(row[best]), 4))
    return True


def label_all(classifier: Classifier, pictures: Pictures, store: BundleStore, options: argparse.Namespace) -> None:
    """Label pictures as they come, at the pace that was asked for."""
    labelled = 0
    for path in pictures:
        began = time.monotonic()
        if label(classifier, path):
            store.succeeded()
            labelled += 1
        notify("WATCHDOG=1")
        if labelled == options.stop_after:
            return
        pictures.stop.wait(max(0.0, options.every - (time.monotonic() - began)))


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Label pictures until told to stop."""
    store = BundleStore(options.store, options.trusted)
    pictures = Pictures(options.pictures, stop)
    bundle = store.current()
    notify(f"READY=1\nSTATUS={bundle.manifest.name} version {bundle.manifest.bundle_version}")
    try:
        classifier = personal_classifier(bundle, pictures, options.state)
        if classifier is not None:
            label_all(classifier, pictures, store, options)
    except NumericalError:
        raise  # the bundle's fault: this start stays counted against it
    except FedtailorError:
        store.close()
        raise
    notify("STOPPING=1")
    store.close()


def main() -> int:
    """Read the command line, and end in order when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store; fedtailor edge install fills it")
    parser.add_argument("--trusted", type=Path, required=True, help="public key of whoever releases bundles")
    parser.add_argument("--pictures", type=Path, required=True, help="folder in which pictures appear")
    parser.add_argument("--state", type=Path, required=True, help="folder for this device's classifier")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two pictures, at least")
    parser.add_argument("--stop-after", type=int, default=0, help="end after so many pictures; 0 for never")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(options, stop)
    except FedtailorError as error:
        log(error=error.sentence())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
