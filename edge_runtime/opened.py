"""Where a command or program says BUNDLE, a store will do: its bundle in use, counted as one start and one use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_runtime.bundle import DEFAULT_SETTINGS, Bundle
from edge_runtime.precision_words import AUTO
from edge_runtime.session_settings import SessionSettings
from edge_runtime.store import BundleStore
from edge_runtime.store_journal import JOURNAL_NAME
from protocol.bundle import MANIFEST_NAME
from protocol.errors import FedtailorError, NumericalError
from protocol.trust import Trusted


@contextmanager
def opened_bundle(
    path: Path, trusted: Path | Trusted, settings: SessionSettings = DEFAULT_SETTINGS, precision: str = AUTO
) -> Iterator[Bundle]:
    """Open a bundle's folder, or the bundle in use of a store's folder, for the time of a block.

    A block that ends well is a successful use of a bundle on trial. Numbers that are not usable, and whatever is no error
    of our tree, leave the start counted against it; other errors are not its fault.

    Raises:
        BundleError: See ``Bundle.open`` and ``BundleStore.current``.
    """
    if (path / MANIFEST_NAME).exists() or not (path / JOURNAL_NAME).exists():
        yield Bundle.open(path, trusted, precision, settings)
        return
    store = BundleStore(path, trusted)
    bundle = store.current()
    bundle.settings, bundle.wanted_precision = settings, precision  # of sessions that are still to be opened
    try:
        yield bundle
    except FedtailorError as error:
        if not isinstance(error, NumericalError):
            store.close()
        raise
    store.succeeded()
    store.close()
