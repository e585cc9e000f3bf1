"""A bundle as one file, for the wire: magic, header length, a list of paths and sizes, then the contents one after another.

An archive vouches for nothing: whoever unpacks one opens the folder as any other bundle, and the manifest's signature and
digests decide. Unpacking reads a piece at a time and believes no path and no size.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protocol.bundle import MANIFEST_NAME, SIGNATURE_NAME
from protocol.errors import BundleFileError
from protocol.files import write_from
from protocol.manifest import Manifest
from protocol.schema import SchemaError, decode, parse_json

MAGIC = b"FTB1"
LENGTH_BYTES = 4
MAXIMUM_HEADER_BYTES = 64 * 1024
MAXIMUM_FILES = 256
MAXIMUM_ARCHIVE_BYTES = 1024 * 1024 * 1024
PIECE_BYTES = 256 * 1024
PATH = re.compile(r"(?:[a-z0-9_-]{1,64}/)?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class _Header:
    """Path -> size in bytes, ascending."""

    files: Mapping[str, int]


def pack(bundle: Path, archive: Path) -> None:
    """Write a bundle's listed files into one file, the same bytes for the same bundle.

    Args:
        bundle: The bundle's folder, opened and verified before.
        archive: The file to write.

    Raises:
        BundleFileError: It has paths that do not travel.
    """
    manifest = (bundle / MANIFEST_NAME).read_bytes()
    paths = sorted({*Manifest.from_bytes(manifest).files, MANIFEST_NAME, SIGNATURE_NAME})
    entries = {path: (bundle / path).stat().st_size for path in paths}
    _check_entries(entries)
    head = json.dumps(entries, separators=(",", ":")).encode()

    def content() -> Iterator[bytes]:
        yield MAGIC + len(head).to_bytes(LENGTH_BYTES, "little") + head
        for path, size in entries.items():
            with (bundle / path).open("rb") as file:
                yield from _pieces(file, size, path)

    write_from(archive, content())


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive into a new folder; nothing in it is to be trusted yet.

    Raises:
        BundleFileError: It is no archive, or holds paths or sizes that cannot be.
    """
    size = archive.stat().st_size
    with archive.open("rb") as file:
        entries = _read_entries(file, size)
        folder.mkdir(parents=True)
        for path, length in entries.items():
            target = folder / path
            target.parent.mkdir(exist_ok=True)
            write_from(target, _pieces(file, length, path))


def _read_entries(file: BinaryIO, size: int) -> Mapping[str, int]:
    """Return paths and sizes, which must make up the whole file."""
    start = file.read(len(MAGIC) + LENGTH_BYTES)
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if start[: len(MAGIC)] != MAGIC or length > min(MAXIMUM_HEADER_BYTES, size):
        raise BundleFileError("a file is no packed bundle", expected=f"the magic {MAGIC!r}", got=repr(start))
    try:
        entries = decode(_Header, {"files": parse_json(file.read(length))}, "header").files
    except SchemaError as fault:
        raise BundleFileError(f"a packed bundle is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
    _check_entries(entries)
    total = len(start) + length + sum(entries.values())
    if total != size:
        raise BundleFileError("a packed bundle is cut off or too long", expected=f"{total} bytes", got=f"{size} bytes")
    return entries


def _check_entries(entries: Mapping[str, int]) -> None:
    """Refuse paths and sizes that cannot be a bundle's."""
    if len(entries) > MAXIMUM_FILES or list(entries) != sorted(entries):
        raise BundleFileError("the list of a packed bundle is impossible", expected=f"at most {MAXIMUM_FILES} paths, ascending")
    for path, size in entries.items():
        if not PATH.fullmatch(path) or not 0 <= size <= MAXIMUM_ARCHIVE_BYTES:
            raise BundleFileError("a packed bundle holds an impossible file", got=f"{path[:80]!r}, {size} bytes")


def _pieces(file: BinaryIO, size: int, path: str) -> Iterator[bytes]:
    """Yield so many bytes of a file."""
    left = size
    while left:
        piece = file.read(min(PIECE_BYTES, left))
        if not piece:
            raise BundleFileError(f"{os.fsdecode(path)} is shorter than it was", expected=f"{size} bytes", got=f"{size - left} bytes")
        left -= len(piece)
        yield piece
