"""Evil in names, lengths, digests, and in what lies in the folder."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protocol.tensors import encode_tensors
from tests.protocol.evil.drafts import CARD, GRAPH, Changes, F, Kind, M, U, folder, pair, put

MORE = "tensors/more.safetensors"
NOT_ALLOWED = "file name is not allowed"
GRAPH_LENGTH = "graphs", "length"


def listed(name: str) -> Changes:
    """Return a bundle with a further file of tensors that the manifest lists under this name."""
    tensors = encode_tensors({"a": np.zeros(1, np.float32)})
    return {"files": lambda files: files.__setitem__(MORE, tensors), "listed_as": {MORE: name}}


def entry(name: str, value: Any) -> Changes:
    """Return a change of what the manifest says of the graph's file; None leaves it."""
    return {} if value is None else put("files", GRAPH, name, value)


def on_disk(action: Callable[[Path], object] | None) -> Changes:
    return {} if action is None else folder(action)


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return an action that puts something else in the place of a file."""

    def act(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return act


def moved(name: str, come_back: Callable[[Path, Path], object]) -> Callable[[Path], object]:
    """Return an action that moves something out of the bundle and brings it back in some way."""

    def act(path: Path) -> None:
        kept = Path(tempfile.mkdtemp()) / (path / name).name
        (path / name).rename(kept)
        come_back(path / name, kept)

    return act


def link(path: Path, kept: Path) -> None:
    path.symlink_to(kept)


def hard_link(path: Path, kept: Path) -> None:
    path.hardlink_to(kept)


def bring_back(path: Path, kept: Path) -> None:
    kept.rename(path)


def socket_file(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return an action that changes a file behind the manifest's back."""
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


def same(data: bytes) -> bytes:
    return data


def add(name: str) -> Callable[[Path], object]:
    """Return an action that adds a file, or a folder where the name ends so."""

    def act(path: Path) -> None:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).mkdir() if name.endswith("/") else (path / name).write_bytes(b"x")

    return act


def two_graphs(swapped: bool) -> Changes:
    """Return a bundle whose two files change places on the disk."""

    def act(path: Path) -> None:
        first, second = path / GRAPH, path / CARD
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two if swapped else one)
        second.write_bytes(one if swapped else two)

    return folder(act)


def many(count: int, length: int) -> Changes:
    """Return a manifest that lists many further files, and none of them on the disk where there is none."""
    names = {f"tensors/{number}.safetensors": {"length": length, "sha256": "0" * 64} for number in range(count)}
    return {"content": lambda content: content["files"].update(names)}


REFUSED_NAMES = {
    "a path upwards": "../more.safetensors",
    "an absolute path": "/etc/passwd",
    "a path upwards inside an allowed folder": "tensors/../more.safetensors",
    "a backslash": "tensors\\more.safetensors",
    "a drive letter": "C:/more.safetensors",
    "a zero byte in a name": "tensors/more\0.safetensors",
    "capitals that some file systems fold": "tensors/More.safetensors",
    "a letter that looks like another": "tensors/m\u043ere.safetensors",
    "a letter in two parts": "tensors/mo\u0308re.safetensors",
    "a script": "install.sh",
    "a pickle by its name": "tensors/more.pkl",
    "a line feed at the end of a name": "tensors/more.safetensors\n",
    "an empty name": "",
    "a name of a thousand letters": f"tensors/{'m' * 1000}.safetensors",
    "a device of another system": "tensors/more.safetensors:stream",
    "the manifest itself": "manifest.json",
}
ON_DISK: dict[str, tuple[Callable[[Path], object], Callable[[Path], object] | None, type, str]] = {
    "a link to a file of the system": (instead(GRAPH, lambda path: path.symlink_to("/etc/hostname")), None, F, "cannot be opened"),
    "a link to the same content": (moved(GRAPH, link), moved(GRAPH, bring_back), F, "cannot be opened"),
    "a link in the place of the manifest": (moved("manifest.json", link), moved("manifest.json", bring_back), F, "manifest.json cannot be"),
    "a link in the place of the signatures": (moved("manifest.sig", link), moved("manifest.sig", bring_back), F, "manifest.sig cannot be"),
    "a hard link of a graph": (moved(GRAPH, hard_link), moved(GRAPH, bring_back), F, "has further names"),
    "a hard link of the manifest": (moved("manifest.json", hard_link), moved("manifest.json", bring_back), F, "manifest.json has further"),
    "a pipe that never ends": (instead(GRAPH, os.mkfifo), None, F, "cannot be read: expected a plain file, got p"),
    "a socket": (instead(GRAPH, socket_file), None, F, "cannot be opened"),
    "a folder in the place of a graph": (instead(GRAPH, Path.mkdir), None, U, "folder that its manifest"),
    "a folder in the place of the manifest": (instead("manifest.json", Path.mkdir), None, F, "expected a plain file, got d"),
    "a link in the place of a folder": (moved("graphs", link), moved("graphs", bring_back), U, "folder that its manifest"),
    "a file that is not listed": (add("graphs/more.onnx"), None, U, "got graphs/more.onnx"),
    "a hidden file": (add(".hidden"), None, U, r"got \.hidden"),
    "a link that is not listed": (lambda path: (path / "more").symlink_to("README.md"), None, U, "got more"),
    "an empty folder that is not listed": (add("scripts/"), None, U, "got scripts"),
    "a folder deep inside": (add("graphs/deep/"), None, U, "got graphs/deep"),
    "a missing graph": (lambda path: (path / GRAPH).unlink(), None, F, "classify.onnx cannot be opened"),
    "a missing card": (lambda path: (path / CARD).unlink(), None, F, "README.md cannot be opened"),
    "a missing manifest": (lambda path: (path / "manifest.json").unlink(), None, F, "manifest.json cannot be opened"),
    "a missing signature file": (lambda path: (path / "manifest.sig").unlink(), None, F, "manifest.sig cannot be opened"),
    "a graph cut in half": (rewrite(GRAPH, lambda data: data[: len(data) // 2]), rewrite(GRAPH, same), F, "classify.onnx.* is altered"),
    "a graph without its last byte": (rewrite(GRAPH, lambda data: data[:-1]), rewrite(GRAPH, same), F, "classify.onnx.* is altered"),
    "an empty graph": (rewrite(GRAPH, lambda data: b""), rewrite(GRAPH, same), F, "got 0 bytes"),
    "a graph with a byte more": (rewrite(GRAPH, lambda data: data + b"\0"), rewrite(GRAPH, same), F, "classify.onnx is too large"),
    "a graph with a flipped bit": (rewrite(GRAPH, lambda data: bytes([data[0] ^ 1]) + data[1:]), rewrite(GRAPH, same), F, "is altered"),
}

KINDS: dict[str, Kind] = {
    **{name: pair(listed, value, MORE, M, NOT_ALLOWED) for name, value in REFUSED_NAMES.items()},
    **{name: pair(on_disk, evil, twin, error, phrase) for name, (evil, twin, error, phrase) in ON_DISK.items()},
    "a length below what is there": pair(entry, ("length", 10), ("length", None), F, "too large"),
    "a length beyond what is there": pair(entry, ("length", 100_000), ("length", None), F, "expected 100000 bytes"),
    "a length of nothing": pair(entry, ("length", 0), ("length", None), M, "length or digest is not possible"),
    "a negative length": pair(entry, ("length", -1), ("length", None), M, "length or digest is not possible"),
    "a length of an exabyte": pair(entry, ("length", 2**60), ("length", None), M, "length or digest is not possible"),
    "a length above 256 MiB": pair(entry, ("length", 2**28 + 1), ("length", None), M, "length or digest is not possible"),
    "another digest": pair(entry, ("sha256", "0" * 64), ("sha256", None), F, "SHA-256 0000"),
    "a digest in capitals": pair(entry, ("sha256", "A" * 64), ("sha256", None), M, "length or digest is not possible"),
    "a digest of another length": pair(entry, ("sha256", "00"), ("sha256", None), M, "length or digest is not possible"),
    "many files of the largest size": pair(many, (9, 2**28), (0, 2**28), M, "all files together"),
    "more files than a bundle has": pair(many, (300, 1), (0, 1), M, "at most 256 files"),
    "two files that changed places": pair(two_graphs, True, False, F, "classify.onnx"),
}
