"""Writing a signed bundle, and opening one so that nothing unsigned is ever used.

A bundle is a folder: ``manifest.json``, ``manifest.sig``, and the files that the manifest lists. Opening checks the
signature first, reads each file once, and hands out the very bytes that were hashed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import BundleError, BundleFileError, BundleSignatureError, IncompatibleVersionError, ManifestError, UnlistedFileError
from protocol.files import read_limited, sync_folder, write_atomically
from protocol.keys import SIGNATURE_BYTES, PrivateKey, PublicKey
from protocol.manifest import MAXIMUM_MANIFEST_BYTES, FileEntry, Manifest
from protocol.onnx_graph import check_graph

SIGNATURE_CONTEXT = b"fedtailor-bundle/1\0"  # a bundle's signature is valid for nothing else
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "manifest.sig"


@dataclass(frozen=True)
class VerifiedBundle:
    """A bundle that was found to be whole and signed.

    Attributes:
        path: Its folder.
        manifest: What it says.
        files: Path in the bundle -> the bytes that were hashed.
        digest: SHA-256 of the manifest in hexadecimal; it names the bundle.
        signer: Fingerprint of the key that it verified under.
    """

    path: Path
    manifest: Manifest
    files: Mapping[str, bytes]
    digest: str
    signer: str

    def graph(self, entry_point: str) -> bytes:
        """Return the bytes of a graph.

        Raises:
            BundleError: The bundle has no such entry point.
        """
        if entry_point not in self.manifest.graphs:
            known = " or ".join(sorted(self.manifest.graphs))
            raise BundleError("this bundle has no such entry point", expected=known, got=entry_point, hint="export it with another method")
        return self.files[self.manifest.graphs[entry_point].file]


def write_bundle(directory: Path, manifest: Manifest, files: Mapping[str, bytes], key: PrivateKey, *, overwrite: bool = False) -> str:
    """Write a signed bundle and return its digest.

    Everything is written beside the target first and renamed at the end, so the target is never half a bundle.

    Args:
        directory: The bundle's folder.
        manifest: What the bundle says; its ``files`` are filled in here.
        files: Path in the bundle -> content.
        key: The key that signs.
        overwrite: Whether an existing bundle may be replaced.

    Raises:
        BundleError: The folder exists and may not be replaced, or is no bundle.
        ManifestError: The manifest names a graph that is not among the files, or contradicts itself.
        UnsafeGraphError: A graph would be refused by every device.
    """
    _check_target(directory, overwrite=overwrite)
    entries = {path: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for path, content in files.items()}
    complete = replace(manifest, files=entries)
    if not files:  # a manifest may lack its files only until here
        raise ManifestError("a bundle must hold files", expected=sorted(graph.file for graph in manifest.graphs.values()))
    for graph in complete.graphs.values():
        check_graph(files[graph.file], graph)
    data = complete.to_bytes()
    contents = {**files, MANIFEST_NAME: data, SIGNATURE_NAME: key.sign(SIGNATURE_CONTEXT + data)}
    directory.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        staged.chmod(0o755)
        for path, content in contents.items():
            target = staged / path
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, content)
        _move_into_place(staged, directory)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return hashlib.sha256(data).hexdigest()


def _check_target(directory: Path, *, overwrite: bool) -> None:
    """Refuse to write over anything but, if allowed, another bundle."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / MANIFEST_NAME).is_file():
        raise BundleError(f"{directory} exists and is no bundle", expected="a new or empty folder", hint="choose another folder")
    if not overwrite:
        raise BundleError(f"{directory} holds a bundle already", hint="choose another folder, or allow overwriting (--overwrite)")


def _move_into_place(staged: Path, directory: Path) -> None:
    """Put the finished folder where it belongs; an old one goes only after the new one is complete."""
    retired = staged.with_name(staged.name + ".old")
    if directory.exists():
        directory.rename(retired)
    staged.rename(directory)
    sync_folder(directory.parent)
    shutil.rmtree(retired, ignore_errors=True)


def open_bundle(directory: Path, trusted: PublicKey) -> VerifiedBundle:
    """Open a bundle and verify all of it.

    Args:
        directory: The bundle's folder.
        trusted: The key that must have signed it.

    Raises:
        BundleSignatureError: Not signed by this key.
        ManifestError: Signed, but malformed or of another format.
        UnlistedFileError: Something lies in the folder that the manifest does not list.
        BundleFileError: A listed file is missing, altered, or no plain file.
        UnsafeGraphError: A graph could do more than arithmetic.
    """
    data = read_limited(directory / MANIFEST_NAME, MAXIMUM_MANIFEST_BYTES, BundleFileError)
    signature = read_limited(directory / SIGNATURE_NAME, SIGNATURE_BYTES, BundleFileError)
    if not trusted.verify(SIGNATURE_CONTEXT + data, signature):
        raise BundleSignatureError(
            f"the signature of {directory} does not verify",
            expected=f"a signature by the key {trusted.fingerprint}",
            hint="the manifest was altered, or another key signed it",
        )
    manifest = Manifest.from_bytes(data)
    if not manifest.files:
        raise ManifestError("the manifest lists no file")
    _refuse_unlisted(directory, manifest)
    files = {path: read_listed(directory, path, entry) for path, entry in manifest.files.items()}
    for graph in manifest.graphs.values():
        check_graph(files[graph.file], graph)
    return VerifiedBundle(directory, manifest, files, hashlib.sha256(data).hexdigest(), trusted.fingerprint)


def check_expiry(manifest: Manifest, now: float) -> None:
    """Refuse a bundle whose time is over.

    Args:
        manifest: The bundle's manifest.
        now: Seconds since 1970, UTC.

    Raises:
        IncompatibleVersionError: It has expired.
    """
    if manifest.expires is not None and now > manifest.expires:
        raise IncompatibleVersionError(
            f"the bundle {manifest.name} has expired",
            expected=f"a time before {manifest.expires}",
            got=int(now),
            hint="install a newer one",
        )


def _refuse_unlisted(directory: Path, manifest: Manifest) -> None:
    """Refuse files, links and folders that the manifest does not name."""
    listed = {*manifest.files, MANIFEST_NAME, SIGNATURE_NAME}
    folders = {path.rpartition("/")[0] for path in manifest.files} - {""}
    for parent, names, files in os.walk(directory, followlinks=False):
        inside = Path(parent).relative_to(directory)
        for name in files:
            path = (inside / name).as_posix()
            if path not in listed:
                raise UnlistedFileError(f"{directory} holds a file that its manifest does not list", got=path, hint="remove it")
        for name in names:
            path = (inside / name).as_posix()
            if path not in folders or (directory / path).is_symlink():
                raise UnlistedFileError(f"{directory} holds a folder that its manifest does not list", got=path, hint="remove it")


def read_listed(directory: Path, path: str, entry: FileEntry) -> bytes:
    """Return a listed file's bytes after comparing length and digest.

    Raises:
        BundleFileError: Missing, altered, or no plain file.
    """
    content = read_limited(directory / path, entry.length, BundleFileError)
    digest = hashlib.sha256(content).hexdigest()
    if len(content) != entry.length or digest != entry.sha256:
        raise BundleFileError(
            f"{path} of {directory} is altered",
            expected=f"{entry.length} bytes, SHA-256 {entry.sha256[:16]}...",
            got=f"{len(content)} bytes, {digest[:16]}...",
            hint="fetch the bundle again",
        )
    return content
