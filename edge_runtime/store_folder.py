"""A store's folder as its calls see it: two locks, a memory that is read and replaced, bundles that are removed when unnamed.

The folder's own lock guards the memory and is held for moments. The lock of ``bundles/`` is held while an installation
copies and tests, which may take minutes; meanwhile others still open, promote and reject, only they leave the tidying.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_runtime.store_journal import JOURNAL_NAME, Journal, read_journal, write_journal
from protocol.errors import StoreBusyError, StoreError
from protocol.files import sync_folder
from protocol.locks import locked_folder

BUNDLES_NAME = "bundles"
NO_STORE = "fedtailor edge install makes one"
START_AGAIN = "if this is the store's folder, remove it and install the bundle again"


class StoreFolder:
    """The folder of a store.

    Args:
        path: Where it is.
        wait_seconds: How long to wait for another process.
    """

    def __init__(self, path: Path, wait_seconds: float) -> None:
        self.path = path
        self.bundles = path / BUNDLES_NAME
        self._wait_seconds = wait_seconds

    @contextmanager
    def locked(self, wait_seconds: float | None = None) -> Iterator[None]:
        """Guard the memory inside the block; what the system refuses becomes one sentence.

        Raises:
            StoreError: There is no such folder, or the system refuses.
            StoreBusyError: Another process did not let go in time.
        """
        if not self.path.is_dir():
            raise StoreError(f"{self.path} holds no bundle store", hint=NO_STORE)
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        with self._as_store_errors(), locked_folder(self.path, wait, StoreBusyError):
            yield

    @contextmanager
    def installing(self) -> Iterator[None]:
        """Be the only installation inside the block; makes the store if it is new, and clears what others left.

        Raises:
            StoreError: It has lost its memory, or cannot be written.
            StoreBusyError: Another installation did not end in time.
        """
        with self._as_store_errors():
            self._make()
            with self.locked():
                if not (self.path / JOURNAL_NAME).exists():
                    if self.bundles.is_dir() and any(self.bundles.iterdir()):
                        raise StoreError(f"{self.path} has lost its {JOURNAL_NAME}", hint=START_AGAIN)
                    write_journal(self.path, Journal())
                self.bundles.mkdir(exist_ok=True)
            with locked_folder(self.bundles, self._wait_seconds, StoreBusyError):
                self._remove_unknown(self.read())
                try:
                    yield
                finally:
                    self._remove_unknown(self.read())

    def bundle(self, digest: str) -> Path:
        """Return the folder of a bundle."""
        return self.bundles / digest

    def read(self) -> Journal:
        """Return the memory; see ``read_journal``."""
        return read_journal(self.path)

    def write(self, journal: Journal) -> None:
        """Replace the memory, then remove the bundles that it no longer names, unless an installation is at work.

        Raises:
            OSError: It could not be written; then the old one stands.
        """
        write_journal(self.path, journal)
        with suppress(StoreBusyError, OSError), locked_folder(self.bundles, 0, StoreBusyError):
            self._remove_unknown(journal)

    def try_to_write(self, journal: Journal) -> bool:
        """Replace the memory if the disk allows it; a device with a full or read-only disk must go on working."""
        with suppress(OSError):
            self.write(journal)
            return True
        return False

    def _make(self) -> None:
        """Make the folder, and all above it that is missing, on disk when this returns."""
        missing = [folder for folder in (self.path, *self.path.absolute().parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)

    def _remove_unknown(self, journal: Journal) -> None:
        """Remove what the memory does not name and what an interrupted call left; one refusal stops nothing."""
        known = {stored.digest for stored in journal.kept()}
        for folder in self.bundles.glob("*"):
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        for path in self.path.glob(f".{JOURNAL_NAME}.*"):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    @contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        """Turn what the operating system refuses into an error of the tree."""
        try:
            yield
        except OSError as fault:
            where = "" if fault.filename is None else f" at {fault.filename}"
            hint = "look at the path, its permissions and the free space"
            raise StoreError(f"the bundle store {self.path} cannot be used", got=f"{fault.strerror or fault}{where}", hint=hint) from fault
