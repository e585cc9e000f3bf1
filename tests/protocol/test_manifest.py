"""A manifest is strict JSON that does not contradict itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ManifestError
from protocol.manifest import MAXIMUM_FILE_BYTES, FileEntry, Manifest, Personalization
from tests.protocol.samples import manifest

DIGEST = "0" * 64
FILES = {"graphs/classify.onnx": FileEntry(100, DIGEST), "README.md": FileEntry(5, DIGEST)}


def changed(**changes: Any) -> bytes:
    """Return the JSON of a good manifest with some keys replaced; no check sees it."""
    return json.dumps({**json.loads(replace(manifest(), files=FILES).to_bytes()), **changes}).encode()


def test_a_manifest_comes_back() -> None:
    whole = replace(
        manifest(),
        files={**FILES, "tensors/head.safetensors": FileEntry(1, DIGEST), "selftest.safetensors": FileEntry(1, DIGEST)},
        personalization=Personalization("device", 256, 16, "whole"),
        expires=1_800_000_000,
        coordinator_key="ab" * 32,
    )
    assert Manifest.from_bytes(whole.to_bytes()) == whole
    assert Manifest.from_bytes(whole.to_bytes()).to_bytes() == whole.to_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "../evil.onnx",
        "graphs/../../evil.onnx",
        "/etc/passwd",
        "graphs\\classify.onnx",
        "graphs/deep/classify.onnx",
        "graphs/.hidden.onnx",
        "graphs/classify.onnx\n",
        "graphs/classify.onnx\0",
        "manifest.json",
        "manifest.sig",
        "run.py",
        "tensors/..",
        "",
    ],
)
def test_other_file_names_are_refused(path: str) -> None:
    entry = {"length": 1, "sha256": DIGEST}
    with pytest.raises(ManifestError, match="file name"):
        Manifest.from_bytes(changed(files={"graphs/classify.onnx": entry, path: entry}))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "fedtailor-bundle/2"},
        {"classes": ["cat"]},
        {"classes": ["cat", "cat"]},
        {"classes": [f"class {number}" for number in range(10_001)]},
        {"files": {"README.md": {"length": 1, "sha256": DIGEST}}},
        {"files": {"graphs/classify.onnx": {"length": 0, "sha256": DIGEST}}},
        {"files": {"graphs/classify.onnx": {"length": MAXIMUM_FILE_BYTES + 1, "sha256": DIGEST}}},
        {"files": {"graphs/classify.onnx": {"length": 1, "sha256": "zz"}}},
        {"files": {f"graphs/{name}.onnx": {"length": MAXIMUM_FILE_BYTES, "sha256": DIGEST} for name in ["classify", "a", "b", "c", "d"]}},
        {"graphs": {}},
        {"raw_input": {"dtype": "uint8", "shape": [0], "minimum": 0, "maximum": 1, "meaning": ""}},
        {"raw_input": {"dtype": "uint8", "shape": [3], "minimum": 1, "maximum": 1, "meaning": ""}},
        {"raw_input": {"dtype": "uint8", "shape": [3], "minimum": 0, "maximum": True, "meaning": ""}},
        {"personalization": {"scope": "both", "support_size": 1, "embedding_dimension": 1, "tailored": "whole"}},
        {"coordinator_key": "not a key"},
        {"created": 1.5},
        {"created": "today"},
        {"extra": 1},
    ],
)
def test_contradictions_and_wrong_types_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(changed(**changes))


def test_a_missing_key_is_named() -> None:
    content = json.loads(changed())
    del content["classes"]
    with pytest.raises(ManifestError, match="classes"):
        Manifest.from_bytes(json.dumps(content).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(data)


@given(st.data())
def test_any_flipped_byte_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(changed())
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        Manifest.from_bytes(bytes(good))
    except ManifestError:
        return
