"""Where an agent's bundle comes from: a store that takes new ones from the channel, or one bundle for good."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from edge_runtime.bundle import Bundle
from edge_runtime.store import BundleStore
from protocol.bundle_archive import unpack
from protocol.errors import RefusedBundleError, StoreError


class Bundles(Protocol):
    """The bundles of an agent."""

    def current(self) -> Bundle | None:
        """Return the bundle in use, or None before the first."""

    def install(self, archive: Path, digest: str) -> Bundle:
        """Take a packed bundle into use and return it.

        Raises:
            FedtailorError: It is refused; the one before stays in use.
        """

    def used(self) -> None:
        """Note a successful use of the bundle."""

    def close(self) -> None:
        """End the use in order."""


class StoredBundles:
    """The bundles of a store.

    Args:
        store: The store.
        folder: Where packed bundles are unpacked before the store copies them.
    """

    def __init__(self, store: BundleStore, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def current(self) -> Bundle | None:
        """Return the bundle in use."""
        try:
            if self._store.status().state == "empty":
                return None
        except StoreError:
            if self._store.path.exists() and any(self._store.path.iterdir()):
                raise
            return None  # the first installation makes the store
        return self._store.current()

    def install(self, archive: Path, digest: str) -> Bundle:
        """Unpack, install and open a bundle."""
        folder = self._folder / "unpacked"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            unpack(archive, folder)
            self._store.install(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        bundle = self._store.current()
        if bundle.digest != digest:
            raise RefusedBundleError("another bundle came than the channel named", expected=digest[:16], got=bundle.digest[:16])
        return bundle

    def used(self) -> None:
        """Note a successful use of the bundle on trial."""
        self._store.succeeded()

    def close(self) -> None:
        """End the use in order."""
        self._store.close()


class FixedBundle:
    """One bundle for good, shared by the agents of a process."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def current(self) -> Bundle | None:
        """Return the bundle."""
        return self._bundle

    def install(self, archive: Path, digest: str) -> Bundle:
        """Refuse: this agent keeps its bundle."""
        raise RefusedBundleError("this agent installs no bundle", got=digest[:16])

    def used(self) -> None:
        """Do nothing: there is no trial."""

    def close(self) -> None:
        """Do nothing."""
