"""The server states of rounds on disk, each whole or not there, each named in the journal by its SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.errors import RunFolderError
from protocol.files import read_limited, write_atomically
from protocol.round_messages import MAXIMUM_STATE_BYTES

KEPT_STATES = 3
KEPT_EVERY = 25


class StateFiles:
    """A folder of server states, and of what devices fetch.

    Args:
        folder: Where; made when absent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._served = folder / "served"
        self._served.mkdir(parents=True, exist_ok=True)
        for left in (*folder.glob(".*"), *self._served.glob(".*")):  # of a writer that was killed
            left.unlink(missing_ok=True)

    def path(self, rounds: int) -> Path:
        """Return where the state after so many rounds lies."""
        return self._folder / f"round-{rounds:05d}.safetensors"

    def save(self, rounds: int, content: bytes) -> str:
        """Write the state after so many rounds and return its SHA-256; doing it twice changes nothing."""
        digest = hashlib.sha256(content).hexdigest()
        if not self._holds(self.path(rounds), digest):
            write_atomically(self.path(rounds), content)
        return digest

    def load(self, rounds: int, digest: str) -> bytes:
        """Return the state after so many rounds.

        Raises:
            RunFolderError: It is missing, or not the one that the journal names.
        """
        content = read_limited(self.path(rounds), MAXIMUM_STATE_BYTES, RunFolderError)
        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            hint = "restore the file from a backup"
            raise RunFolderError(f"{self.path(rounds)} is not the state of its round", expected=digest[:16], got=found[:16], hint=hint)
        return content

    def prune(self, first: int, latest: int) -> None:
        """Remove old states: the first, the latest few and every 25th stay."""
        for rounds in range(first + 1, latest - KEPT_STATES + 1):
            if rounds % KEPT_EVERY:
                self.path(rounds).unlink(missing_ok=True)

    def serve(self, content: bytes) -> tuple[str, Path]:
        """Return SHA-256 and path of a file with some content, which devices fetch."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.served(digest)
        if not self._holds(path, digest):
            write_atomically(path, content)
        return digest, path

    def served(self, digest: str) -> Path:
        """Return where what devices fetch lies."""
        return self._served / f"{digest}.safetensors"

    def stop_serving(self, keep: set[str]) -> None:
        """Remove served files but those that are named."""
        for path in self._served.glob("*.safetensors"):
            if path.stem not in keep:
                path.unlink(missing_ok=True)

    @staticmethod
    def _holds(path: Path, digest: str) -> bool:
        """Tell whether a file is there and is the right one."""
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
