"""Writing a signed bundle, and opening one so that nothing unsigned is ever used.

A bundle is a folder: ``manifest.json``, ``manifest.sig``, and the files that the manifest lists. Opening checks the
signature first, reads each file once, and hands out the very bytes that were hashed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import BundleError, BundleFileError, BundleSignatureError, IncompatibleVersionError, ManifestError, UnlistedFileError
from protocol.exchange import recover_folder, replace_folder
from protocol.files import read_limited, write_atomically
from protocol.golden import GOLDEN_NAME, check_golden
from protocol.keys import PrivateKey
from protocol.manifest import FLOAT32, MAXIMUM_MANIFEST_BYTES, FileEntry, Manifest
from protocol.onnx_graph import check_graph
from protocol.runtime_support import check_promises
from protocol.signatures import MAXIMUM_SIGNATURE_FILE_BYTES, SignatureFile
from protocol.trust import Trusted, TrustPolicy

SIGNATURE_CONTEXT = b"fedtailor-bundle/1\0"  # a bundle's signature is valid for nothing else
MANIFEST_NAME = "manifest.json"
TENSORS_SUFFIX = ".safetensors"
SIGNATURE_NAME = "manifest.sig"


@dataclass(frozen=True)
class VerifiedBundle:
    """A bundle that was found to be whole and signed.

    Attributes:
        path: Its folder.
        manifest: What it says.
        files: Path in the bundle -> the bytes that were hashed.
        digest: SHA-256 of the manifest in hexadecimal; it names the bundle.
        signers: Fingerprints of the trusted keys that signed it.
    """

    path: Path
    manifest: Manifest
    files: Mapping[str, bytes]
    digest: str
    signers: tuple[str, ...]

    @property
    def signer(self) -> str:
        """Return the fingerprints as one text."""
        return ", ".join(self.signers)

    def graph(self, entry_point: str, precision: str = FLOAT32) -> bytes:
        """Return the bytes of a graph, in a precision that it has.

        Raises:
            BundleError: The bundle has no such entry point.
        """
        if entry_point not in self.manifest.graphs:
            known = " or ".join(sorted(self.manifest.graphs))
            raise BundleError("this bundle has no such entry point", expected=known, got=entry_point, hint="export it with another method")
        return self.files[self.manifest.graphs[entry_point].form(precision).file]


def write_bundle(directory: Path, manifest: Manifest, files: Mapping[str, bytes], key: PrivateKey, *, overwrite: bool = False) -> str:
    """Write a signed bundle and return its digest.

    Everything is written beside the target first and exchanged at the end, so the target is never half a bundle and, where the
    system exchanges names, never without one. Elsewhere a program killed at the wrong moment leaves the old one beside it, under a
    name with a dot, and the next call puts it back.

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
    recover_folder(directory)
    _check_target(directory, overwrite=overwrite)
    entries = {path: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for path, content in files.items()}
    complete = replace(manifest, files=entries)
    if not files:  # a manifest may lack its files only until here
        raise ManifestError("a bundle must hold files", expected=sorted(graph.file for graph in manifest.graphs.values()))
    _check_graphs(complete, files)
    _check_tensors(complete, files)
    data = complete.to_bytes()
    contents = {**files, MANIFEST_NAME: data, SIGNATURE_NAME: SignatureFile.by(key, SIGNATURE_CONTEXT + data).to_bytes()}
    directory.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        staged.chmod(0o755)
        for path, content in contents.items():
            target = staged / path
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, content)
        replace_folder(staged, directory)
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


def open_bundle(directory: Path, trusted: Trusted) -> VerifiedBundle:
    """Open a bundle and verify all of it.

    Args:
        directory: The bundle's folder.
        trusted: The key that must have signed it, or the policy that says how many of which keys must.

    Raises:
        BundleSignatureError: Not signed by this key, or by too few.
        IncompatibleVersionError: The policy has expired.
        ManifestError: Signed, but malformed or of another format.
        UnlistedFileError: Something lies in the folder that the manifest does not list.
        BundleFileError: A listed file is missing, altered, or no plain file.
        UnsafeGraphError: A graph could do more than arithmetic.
    """
    data = _read_manifest(directory)
    signers = _check_signatures(directory, data, TrustPolicy.of(trusted))
    manifest = Manifest.from_bytes(data)
    files = _read_contents(directory, manifest)
    return VerifiedBundle(directory, manifest, files, hashlib.sha256(data).hexdigest(), signers)


def _read_contents(directory: Path, manifest: Manifest) -> dict[str, bytes]:
    """Return the listed files by path, each hashed and each graph checked."""
    if not manifest.files:
        raise ManifestError("the manifest lists no file")
    _refuse_unlisted(directory, manifest)
    files = {path: read_listed(directory, path, entry) for path, entry in manifest.files.items()}
    _check_graphs(manifest, files)
    _check_tensors(manifest, files)
    return files


def _check_tensors(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Refuse tensors that are malformed, and golden ones that are not what the graphs take and give."""
    from protocol.tensors import TensorLimits, decode_tensors  # needs numpy, which a doctor may find broken

    if GOLDEN_NAME not in files:
        hint = "export it again"
        raise BundleFileError("the bundle brings no golden samples", expected=f"a listed file {GOLDEN_NAME}", hint=hint)
    for path, content in files.items():
        if path.endswith(TENSORS_SUFFIX):
            tensors = decode_tensors(content, TensorLimits(magnitude=None), BundleFileError)
            if path == GOLDEN_NAME:
                check_golden(manifest, tensors)


def _check_graphs(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Refuse a graph, or a variant of one, that could do more than arithmetic or is not what the manifest says."""
    check_promises(manifest)
    for graph in manifest.graphs.values():
        for form in graph.forms():
            check_graph(files[form.file], form)


def _check_signatures(directory: Path, manifest: bytes, policy: TrustPolicy) -> tuple[str, ...]:
    """Return the fingerprints of the policy's keys that signed the manifest, or refuse too few."""
    policy.check_time(time.time())
    found = _read_signatures(directory)
    signers = policy.signers(SIGNATURE_CONTEXT + manifest, found.by_fingerprint())
    if len(signers) < policy.threshold:
        known = ", ".join(policy.fingerprints())
        wanted = f"a signature by the key {known}" if len(policy.keys) == 1 else f"{policy.threshold} signatures by keys of {known}"
        raise BundleSignatureError(
            f"the signature of {directory} does not verify",
            expected=wanted,
            got=f"{len(signers)} of them",
            hint="the manifest was altered, or another key signed it",
        )
    return signers


def _read_signatures(directory: Path) -> SignatureFile:
    """Return the signatures on a bundle, whoever made them."""
    return SignatureFile.from_bytes(read_limited(directory / SIGNATURE_NAME, MAXIMUM_SIGNATURE_FILE_BYTES, BundleFileError, one_name=True))


def _read_manifest(directory: Path) -> bytes:
    """Return the bytes of the manifest."""
    return read_limited(directory / MANIFEST_NAME, MAXIMUM_MANIFEST_BYTES, BundleFileError, one_name=True)


def add_signature(directory: Path, key: PrivateKey) -> int:
    """Sign a bundle that others have signed, and return how many signatures it has now.

    What is signed is looked at first: graphs and digests must hold, or the signature would vouch for a broken bundle.

    Args:
        directory: The bundle's folder.
        key: The key that signs; a second signature of the same key changes nothing.

    Raises:
        BundleError: The bundle is not whole, or has as many signatures as there may be.
    """
    data = _read_manifest(directory)
    _read_contents(directory, Manifest.from_bytes(data))
    signed = _read_signatures(directory).with_signature(key, SIGNATURE_CONTEXT + data)
    write_atomically(directory / SIGNATURE_NAME, signed.to_bytes())
    return len(signed.signatures)


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
    content = read_limited(directory / path, entry.length, BundleFileError, one_name=True)
    digest = hashlib.sha256(content).hexdigest()
    if len(content) != entry.length or digest != entry.sha256:
        raise BundleFileError(
            f"{path} of {directory} is altered",
            expected=f"{entry.length} bytes, SHA-256 {entry.sha256[:16]}...",
            got=f"{len(content)} bytes, {digest[:16]}...",
            hint="fetch the bundle again",
        )
    return content
