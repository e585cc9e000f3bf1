"""Random damage to any file of a bundle, signed again so that nothing else refuses it, ends in one of our errors or in a good bundle."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.bundle import open_bundle
from protocol.bundle_page import describe_bundle
from protocol.errors import BundleError, BundleFileError, BundleSignatureError, IncompatibleVersionError, ManifestError
from tests.protocol.evil.drafts import GOLDEN, GRAPH, KEY, Changes, Draft, signed
from tests.protocol.samples import bundle_files, manifest

TEXT = json.dumps(json.loads(manifest().to_bytes())).encode()


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """Return bytes with some changed, taken out, put in or repeated, or cut off at the end."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        kind = draw(st.sampled_from(["change", "cut", "remove", "insert", "repeat"]))
        if kind == "change" and changed:
            changed[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del changed[at:]
        elif kind == "remove":
            del changed[at : at + draw(st.integers(1, 8))]
        elif kind == "insert":
            changed[at:at] = draw(st.binary(min_size=1, max_size=12))
        else:
            changed[at:at] = changed[at : at + draw(st.integers(1, 40))]
    return bytes(changed)


def opens_or_is_refused(changes: Changes) -> None:
    """Open a bundle and put it on its page; only our own errors may come out."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            opened = Draft(**changes).open(Path(folder) / "bundle")
        except (BundleError, IncompatibleVersionError):
            return
        assert describe_bundle(opened)


@given(damage(bundle_files()[GRAPH]))
def test_a_damaged_graph(data: bytes) -> None:
    opens_or_is_refused({"graph": lambda _: data})


@given(damage(bundle_files()[GOLDEN]))
def test_damaged_tensors(data: bytes) -> None:
    opens_or_is_refused({"files": lambda files: files.__setitem__(GOLDEN, data or b" ")})


@given(st.data())
def test_a_damaged_manifest_that_is_signed(data: st.DataObject) -> None:
    opens_or_is_refused({"text": lambda text: data.draw(damage(text))})


@given(damage(signed(TEXT)))
def test_damaged_signatures_never_count(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        try:
            Draft(text=lambda _: TEXT, signature=lambda _: data).open(path)
        except (BundleSignatureError, BundleFileError):
            return
        except ManifestError:  # the text lists no file: so far comes only what is signed
            assert json.loads(data) == json.loads(signed(TEXT))
            return
        pytest.fail("a manifest without files opened")


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", GRAPH, GOLDEN, "README.md"])
@given(data=st.data())
def test_damage_on_the_disk_is_always_found(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        Draft().write(path)
        good = (path / name).read_bytes()
        bad = data.draw(damage(good))
        (path / name).write_bytes(bad)
        try:
            open_bundle(path, KEY.public)
        except BundleError:
            return
        # Only the signature file may be written in several ways that mean the same.
        assert bad == good or (name == "manifest.sig" and json.loads(bad) == json.loads(good))
