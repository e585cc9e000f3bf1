"""A good bundle in pieces, and kinds of faults: each is one change of one piece, told beside its harmless twin.

The rest of a bundle follows from what was changed (digests, lengths, signatures), so no check can refuse a fault for the wrong
reason; the twin takes the same way through the same builder and must open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocol import errors
from protocol.bundle import SIGNATURE_CONTEXT, VerifiedBundle, check_expiry, open_bundle
from protocol.keys import PrivateKey
from protocol.signatures import SignatureFile
from protocol.trust import TrustPolicy
from tests.protocol.samples import ModelParts, bundle_files, manifest

KEY, SECOND, STRANGER = (PrivateKey(bytes([seed] * 32)) for seed in (1, 2, 3))
GRAPH, GOLDEN, CARD = "graphs/classify.onnx", "selftest.safetensors", "README.md"
NOW = 1_800_000_000.0
Json = dict[str, Any]
Changes = Mapping[str, Any]

B, F, S, M, U, G, V = (
    errors.BundleError,
    errors.BundleFileError,
    errors.BundleSignatureError,
    errors.ManifestError,
    errors.UnlistedFileError,
    errors.UnsafeGraphError,
    errors.IncompatibleVersionError,
)


def signed(data: bytes) -> bytes:
    """Return the signature file of a manifest by the trusted key."""
    return SignatureFile.by(KEY, SIGNATURE_CONTEXT + data).to_bytes()


@dataclass(frozen=True)
class Draft:
    """A bundle on its way to the disk; a fault changes one of these.

    Attributes:
        model: The graph, in pieces.
        operators: What the manifest lists of it.
        graph: Changes the graph's bytes.
        files: Changes the contents by path.
        listed_as: Path in the bundle -> the path that the manifest lists it under.
        content: Changes the manifest before it is text.
        text: Changes the manifest's text.
        signature: Makes the signature file.
        folder: Changes what lies on the disk.
        policy: What the device believes.
    """

    model: ModelParts = field(default_factory=ModelParts)
    operators: tuple[str, ...] = ("MatMul",)
    graph: Callable[[bytes], bytes] = lambda data: data
    files: Callable[[dict[str, bytes]], None] = lambda files: None
    listed_as: Mapping[str, str] = field(default_factory=dict)
    content: Callable[[Json], None] = lambda content: None
    text: Callable[[bytes], bytes] = lambda data: data
    signature: Callable[[bytes], bytes] = signed
    folder: Callable[[Path], object] = lambda path: None
    policy: TrustPolicy = field(default_factory=lambda: TrustPolicy((KEY.public.hex,)))

    def write(self, path: Path) -> None:
        """Write the bundle into a new folder."""
        files = {**bundle_files(), GRAPH: self.graph(self.model.to_bytes())}
        self.files(files)
        content = json.loads(manifest().to_bytes())
        content["graphs"]["classify"]["operators"] = list(self.operators)
        entries = {name: {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
        content["files"] = {self.listed_as.get(name, name): entry for name, entry in entries.items()}
        self.content(content)
        text = self.text(json.dumps(content).encode())
        path.mkdir()
        for name, data in {**files, "manifest.json": text, "manifest.sig": self.signature(text)}.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)
        self.folder(path)

    def open(self, path: Path) -> VerifiedBundle:
        """Write the bundle and open it as a device does."""
        self.write(path)
        opened = open_bundle(path, self.policy)
        check_expiry(opened.manifest, NOW)
        return opened


@dataclass(frozen=True)
class Kind:
    """One kind of evil: the change, how it is refused, and the same change without the fault."""

    evil: Changes
    error: type[errors.FedtailorError]
    phrase: str
    twin: Changes = field(default_factory=dict)


def pair(build: Callable[..., Changes], evil: Any, twin: Any, error: type[errors.FedtailorError], phrase: str) -> Kind:
    """Return a kind whose twin comes out of the same builder."""
    own, other = ((each if isinstance(each, tuple) else (each,)) for each in (evil, twin))
    return Kind(build(*own), error, phrase, build(*other))


def put(*places_and_value: Any) -> Changes:
    """Return a change of one place of the manifest: keys, then the value."""
    *places, value = places_and_value

    def change(content: Json) -> None:
        for place in places[:-1]:
            content = content[place]
        content[places[-1]] = value

    return {"content": change}


def drop(*places: Any) -> Changes:
    """Return a change that takes one place of the manifest away."""

    def change(content: Json) -> None:
        for place in places[:-1]:
            content = content[place]
        del content[places[-1]]

    return {"content": change}


def swap(old: str, new: str) -> Changes:
    """Return a change of the manifest's text."""

    def change(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)

    return {"text": change}


def model(**parts: Any) -> Changes:
    """Return a change of the graph."""
    return {"model": replace(ModelParts(), **parts)}


def contents(name: str, data: bytes) -> Changes:
    """Return a change of one file, length and digest following."""
    return {"files": lambda files: files.__setitem__(name, data)}


def folder(action: Callable[[Path], object]) -> Changes:
    """Return a change of what lies on the disk."""
    return {"folder": action}
