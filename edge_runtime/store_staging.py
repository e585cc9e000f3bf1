"""Copying a bundle into a store: every byte on disk and read back before the folder gets its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from protocol.bundle import MANIFEST_NAME, SIGNATURE_NAME, VerifiedBundle, open_bundle
from protocol.errors import BundleError, BundleFileError, StoreError
from protocol.files import read_limited, sync_folder, write_atomically
from protocol.manifest import MAXIMUM_MANIFEST_BYTES
from protocol.trust import Trusted

UNFINISHED = ".tmp"
SPARE_BYTES = 1024 * 1024  # for the store's memory and what the file system itself needs


def stage(final: Path, offered: VerifiedBundle, trusted: Trusted, on_state: Callable[[str], None]) -> None:
    """Copy a verified bundle to a folder and verify the copy.

    Args:
        final: The folder, which appears when everything in it is on disk.
        offered: The bundle; the bytes that were hashed are written, whatever its folder holds by now.
        trusted: The key, or the policy, that must have signed it.
        on_state: Told ``staged`` and ``verified``.

    Raises:
        StoreError: Not enough space.
        BundleError: The copy is not what was written.
        OSError: The disk refuses; an unfinished copy may be left beside ``final``.
    """
    if not _is_there(final, trusted):
        contents = dict(offered.files)
        for name in (MANIFEST_NAME, SIGNATURE_NAME):
            contents[name] = read_limited(offered.path / name, MAXIMUM_MANIFEST_BYTES, BundleFileError)
        _require_space(final.parent, sum(map(len, contents.values())))
        unfinished = final.with_name(final.name + UNFINISHED)
        _write_all(unfinished, contents)
        on_state("staged")
        if open_bundle(unfinished, trusted).digest != offered.digest:  # somebody exchanged what was offered just now
            raise BundleError(f"{offered.path} changed while it was copied", hint="offer it again")
        unfinished.rename(final)
        sync_folder(final.parent)
    on_state("verified")


def _is_there(final: Path, trusted: Trusted) -> bool:
    """Tell whether an earlier bundle of this digest is still whole; what is left of a damaged one is removed."""
    if not final.exists():
        return False
    try:
        open_bundle(final, trusted)
    except BundleError:
        shutil.rmtree(final)
        return False
    return True


def _write_all(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files by path into a new folder, all on disk when this returns."""
    folder.mkdir()
    for path, content in contents.items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, content)
    sync_folder(folder)


def _require_space(folder: Path, needed: int) -> None:
    """Refuse to begin what cannot be finished."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        expected, got = f"{needed + SPARE_BYTES:,} bytes", f"{free:,} bytes"
        hint = "free some, or put the store elsewhere"
        raise StoreError("there is not enough free space for the bundle", expected=expected, got=got, hint=hint)
