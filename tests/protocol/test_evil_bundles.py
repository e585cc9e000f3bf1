"""Bundles with one fault each: refused with a reason of its own, and good once the fault is gone."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol import errors
from protocol.bundle import SIGNATURE_CONTEXT, open_bundle
from protocol.keys import PrivateKey
from protocol.tensors import encode_tensors
from protocol.trust import TrustPolicy
from tests.protocol.samples import ModelParts, bytes_field, initializer, manifest, number_field, value_info, varint

KEY, SECOND, STRANGER = (PrivateKey(bytes([seed] * 32)) for seed in (1, 2, 3))
GRAPH, SELFTEST = "graphs/classify.onnx", "selftest.safetensors"
Json = dict[str, Any]


@dataclass
class Draft:
    """A bundle on its way to the disk; a fault changes one of these."""

    model: ModelParts = field(default_factory=ModelParts)
    graph: Callable[[bytes], bytes] = lambda data: data
    files: Callable[[dict[str, bytes]], None] = lambda files: None
    content: Callable[[Json], None] = lambda content: None
    text: Callable[[bytes], bytes] = lambda data: data
    signature: Callable[[bytes], bytes] = lambda data: KEY.sign(SIGNATURE_CONTEXT + data)
    folder: Callable[[Path], None] = lambda path: None
    policy: TrustPolicy = field(default_factory=lambda: TrustPolicy((KEY.public.hex,)))

    def open(self, path: Path) -> None:
        """Write the bundle and open it."""
        golden = encode_tensors({"samples": np.zeros((2, 3), np.float32), "logits": np.zeros((2, 2), np.float32)})
        files = {GRAPH: self.graph(self.model.to_bytes()), "README.md": b"# tiny\n", SELFTEST: golden}
        self.files(files)
        content = json.loads(manifest().to_bytes())
        content["files"] = {name: {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
        self.content(content)
        text = self.text(json.dumps(content).encode())
        path.mkdir()
        for name, data in {**files, "manifest.json": text, "manifest.sig": self.signature(text)}.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)
        self.folder(path)
        open_bundle(path, self.policy)


@dataclass(frozen=True)
class Fault:
    """One fault, and how it must be refused."""

    changes: Json
    error: type[errors.FedtailorError]
    phrase: str


def put(*places: Any, value: Any) -> Json:
    """Return a change of one place of the manifest."""

    def change(content: Json) -> None:
        for place in places[:-1]:
            content = content[place]
        content[places[-1]] = value

    return {"content": change}


def drop(*places: Any) -> Json:
    """Return a change that takes one place of the manifest away."""

    def change(content: Json) -> None:
        for place in places[:-1]:
            content = content[place]
        del content[places[-1]]

    return {"content": change}


def listed(name: str) -> Json:
    """Return a change that lists a further file with a possible length and digest."""
    return put("files", name, value={"length": 1, "sha256": "0" * 64})


def swap(old: str, new: str) -> Json:
    """Return a change of the manifest's text."""

    def change(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)

    return {"text": change}


def model(**parts: Any) -> Json:
    return {"model": replace(ModelParts(), **parts)}


def attribute(content: bytes) -> Json:
    """Return a model whose node has an attribute."""
    return model(node=bytes_field(5, bytes_field(1, "a") + content))


def int64s(name: str, values: list[int]) -> bytes:
    data = np.array(values, "<i8").tobytes()
    return number_field(1, len(values)) + number_field(2, 7) + bytes_field(8, name) + bytes_field(9, data)


def sized(operator: str, values: list[int]) -> Json:
    """Return a model with a further node that is given a size as a constant."""
    node = bytes_field(1, "weight") + bytes_field(1, "size") + bytes_field(2, "big") + bytes_field(4, operator)
    return model(graph=bytes_field(1, node) + bytes_field(5, int64s("size", values)))


def on_disk(action: Callable[[Path], object]) -> Json:
    return {"folder": lambda path: (action(path), None)[1]}


def instead(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    make(path)


def linked(path: Path) -> None:
    """Move something out of the bundle and put a link in its place."""
    kept = Path(tempfile.mkdtemp()) / path.name
    path.rename(kept)
    path.symlink_to(kept)


def safetensors(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def golden(data: bytes) -> Json:
    """Return a change of the golden samples' file, its digest following."""
    return {"files": lambda files: files.__setitem__(SELFTEST, data)}


def one(offsets: str = "[0,4]", dtype: str = "F32", shape: str = "[1]", body: bytes = b"\0" * 4) -> bytes:
    """Return safetensors bytes of one tensor."""
    return safetensors(f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'.encode(), body)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


B, F, S, M, U, G = (
    errors.BundleError,
    errors.BundleFileError,
    errors.BundleSignatureError,
    errors.ManifestError,
    errors.UnlistedFileError,
    errors.UnsafeGraphError,
)
LOOP_BODY = bytes_field(6, bytes_field(2, "body"))
EXTERNAL = bytes_field(13, bytes_field(1, "location") + bytes_field(2, "../../etc/passwd")) + number_field(14, 1)
WEIGHT = initializer("weight", np.arange(6, dtype=np.float32).reshape(3, 2))

FAULTS: dict[str, Fault] = {
    # names of files
    "a path upwards": Fault(listed("../evil.onnx"), M, "file name is not allowed"),
    "an absolute path": Fault(listed("/etc/passwd"), M, "file name is not allowed"),
    "a path upwards inside an allowed folder": Fault(listed("tensors/../../x.safetensors"), M, "file name is not allowed"),
    "a backslash": Fault(listed("graphs\\evil.onnx"), M, "file name is not allowed"),
    "a drive letter": Fault(listed("C:/evil.onnx"), M, "file name is not allowed"),
    "a zero byte in a name": Fault(listed("graphs/a\0.onnx"), M, "file name is not allowed"),
    "capitals that some file systems fold": Fault(listed("graphs/Classify.onnx"), M, "file name is not allowed"),
    "a letter that looks like another": Fault(listed("graphs/cl\u0430ssify.onnx"), M, "file name is not allowed"),
    "a script": Fault(listed("install.sh"), M, "file name is not allowed"),
    "a pickle": Fault(listed("tensors/weights.pkl"), M, "file name is not allowed"),
    "a line feed at the end of a name": Fault(listed("README.md\n"), M, "file name is not allowed"),
    "an empty name": Fault(listed(""), M, "file name is not allowed"),
    # lengths and digests
    "a length below what is there": Fault(put("files", GRAPH, "length", value=10), F, "too large"),
    "a length beyond what is there": Fault(put("files", GRAPH, "length", value=100_000), F, "is altered"),
    "a length of nothing": Fault(put("files", GRAPH, "length", value=0), M, "length or digest is not possible"),
    "a negative length": Fault(put("files", GRAPH, "length", value=-1), M, "length or digest is not possible"),
    "a length of an exabyte": Fault(put("files", GRAPH, "length", value=2**60), M, "length or digest is not possible"),
    "many files of the largest size": Fault(
        {
            "content": lambda content: content["files"].update(
                {f"tensors/{i}.safetensors": {"length": 2**28, "sha256": "0" * 64} for i in range(9)}
            )
        },
        M,
        "all files together",
    ),
    "another digest": Fault(put("files", GRAPH, "sha256", value="0" * 64), F, "is altered"),
    "a digest in capitals": Fault(put("files", GRAPH, "sha256", value="A" * 64), M, "length or digest is not possible"),
    "a digest of another length": Fault(put("files", GRAPH, "sha256", value="00"), M, "length or digest is not possible"),
    # what lies in the folder
    "a link in the place of a graph": Fault(
        on_disk(lambda path: instead(path / GRAPH, lambda graph: graph.symlink_to("/etc/hostname"))), F, "cannot be opened"
    ),
    "a link to the same content": Fault(
        on_disk(lambda path: linked(path / GRAPH)),
        F,
        "cannot be opened",
    ),
    "a link in the place of the manifest": Fault(
        on_disk(lambda path: linked(path / "manifest.json")),
        F,
        "manifest.json cannot be opened",
    ),
    "a pipe that never ends": Fault(on_disk(lambda path: instead(path / GRAPH, os.mkfifo)), F, "cannot be read"),
    "a folder in the place of a graph": Fault(on_disk(lambda path: instead(path / GRAPH, Path.mkdir)), U, "folder that its manifest"),
    "a link in the place of a folder": Fault(
        on_disk(lambda path: linked(path / "graphs")),
        U,
        "folder that its manifest",
    ),
    "a file that is not listed": Fault(
        on_disk(lambda path: (path / "graphs" / "more.onnx").write_bytes(b"x")), U, "file that its manifest"
    ),
    "a hidden file": Fault(on_disk(lambda path: (path / ".hidden").write_bytes(b"x")), U, "file that its manifest"),
    "a folder that is not listed": Fault(on_disk(lambda path: (path / "scripts").mkdir()), U, "folder that its manifest"),
    "a missing graph": Fault(on_disk(lambda path: (path / GRAPH).unlink()), F, "cannot be opened"),
    "a missing card": Fault(on_disk(lambda path: (path / "README.md").unlink()), F, "README.md cannot be opened"),
    "a missing manifest": Fault(on_disk(lambda path: (path / "manifest.json").unlink()), F, "manifest.json cannot be opened"),
    "a truncated graph": Fault(on_disk(lambda path: (path / GRAPH).write_bytes(cut((path / GRAPH).read_bytes()))), F, "is altered"),
    "a graph with a flipped bit": Fault(
        on_disk(lambda path: (path / GRAPH).write_bytes(bytes([(path / GRAPH).read_bytes()[0] ^ 1]) + (path / GRAPH).read_bytes()[1:])),
        F,
        "is altered",
    ),
    "a manifest of two megabytes": Fault({"text": lambda data: data + b" " * 2**21}, F, "manifest.json is too large"),
    # signatures
    "no signature file": Fault(on_disk(lambda path: (path / "manifest.sig").unlink()), F, "manifest.sig cannot be opened"),
    "an empty signature file": Fault({"signature": lambda data: b""}, S, "malformed: expected 1 to 16"),
    "half a signature": Fault({"signature": lambda data: KEY.sign(SIGNATURE_CONTEXT + data)[:32]}, S, "got 32 bytes"),
    "seventeen signatures": Fault({"signature": lambda data: KEY.sign(SIGNATURE_CONTEXT + data) * 17}, F, "manifest.sig is too large"),
    "a stranger's signature": Fault({"signature": lambda data: STRANGER.sign(SIGNATURE_CONTEXT + data)}, S, "does not verify"),
    "a signature made for a message": Fault({"signature": lambda data: KEY.sign(b"fedtailor-message/1\0" + data)}, S, "does not verify"),
    "a signature without a context": Fault({"signature": KEY.sign}, S, "does not verify"),
    "one signature where two are needed": Fault(
        {"policy": TrustPolicy((KEY.public.hex, SECOND.public.hex), threshold=2)}, S, "2 signatures by keys of .*got 1 of them"
    ),
    "one key twice where two are needed": Fault(
        {
            "policy": TrustPolicy((KEY.public.hex, SECOND.public.hex), threshold=2),
            "signature": lambda data: KEY.sign(SIGNATURE_CONTEXT + data) * 2,
        },
        S,
        "got 1 of them",
    ),
    "a policy whose time is over": Fault(
        {"policy": TrustPolicy((KEY.public.hex,), expires=1)}, errors.IncompatibleVersionError, "trust policy has expired"
    ),
    # the manifest as text
    "a key twice": Fault(swap('"format"', '"format": "fedtailor-bundle/1", "format"'), M, "malformed"),
    "not a number": Fault(swap('"maximum": 1.0', '"maximum": NaN'), M, "malformed"),
    "infinity by a large exponent": Fault(swap('"maximum": 1.0', '"maximum": 1e999'), M, "malformed"),
    "a number of a thousand digits": Fault(swap('"bundle_version": 1', f'"bundle_version": {"9" * 5000}'), M, "malformed"),
    "a thousand nested lists": Fault(swap('"phases": [', '"phases": [' + "[" * 1000 + "]" * 1000 + ","), M, "malformed"),
    "a byte order mark": Fault({"text": lambda data: b"\xef\xbb\xbf" + data}, M, "malformed"),
    "another encoding": Fault({"text": lambda data: data.decode().encode("utf-16")}, M, "malformed"),
    "text after the end": Fault({"text": lambda data: data + b"{}"}, M, "malformed"),
    "half a manifest": Fault({"text": cut}, M, "malformed"),
    "half a character": Fault({"content": lambda content: content.__setitem__("name", "\ud800")}, M, "malformed|short line"),
    # the manifest's content
    "a format of the future": Fault(put("format", value="fedtailor-bundle/2"), M, "format must be fedtailor-bundle/1"),
    "an unknown field": Fault(put("run_at_install", value="rm -rf /"), M, "malformed at manifest"),
    "an option for the runtime": Fault(put("graphs", "classify", "session_options", value={}), M, "malformed at manifest.graphs"),
    "a missing field": Fault(drop("classes"), M, "malformed at manifest"),
    "a number where text belongs": Fault(put("name", value=3), M, "malformed at manifest.name"),
    "true where a number belongs": Fault(put("bundle_version", value=True), M, "malformed at manifest.bundle_version"),
    "a version below one": Fault(put("bundle_version", value=0), M, "version must be at least 1"),
    "one class": Fault(put("classes", value=["cat"]), M, "2 to 10000 classes"),
    "a class twice": Fault(put("classes", value=["cat", "cat"]), M, "class names must differ"),
    "a class name that turns text around": Fault(put("classes", value=["cat", "god\u202e"]), M, "class names must be short lines"),
    "a name with a line feed": Fault(put("name", value="tiny\nsigned by: everybody"), M, "short line of text"),
    "an empty raw range": Fault(put("raw_input", "maximum", value=0.0), M, "raw range must not be empty"),
    "a raw sample of a petabyte": Fault(put("raw_input", "shape", value=[2**25, 2**25]), M, "of a possible size"),
    "raw sizes below one": Fault(put("raw_input", "shape", value=[-3]), M, "raw sizes must be positive"),
    "raw samples of objects": Fault(put("raw_input", "dtype", value="object"), M, "raw samples must be"),
    "no classifier": Fault(
        {"content": lambda content: content["graphs"].__setitem__("other", content["graphs"].pop("classify"))}, M, "entry point classify"
    ),
    "a graph that is no listed file": Fault(
        put("graphs", "classify", "file", value="graphs/other.onnx"), M, "every graph must be a listed file"
    ),
    "no file at all": Fault(put("files", value={}), M, "lists no file"),
    "a runtime that is no version": Fault(put("minimum_onnxruntime", value="latest"), M, "must be a version"),
    "a coordinator's key of small order": Fault(put("coordinator_key", value="01" + "00" * 31), M, "coordinator's key is no public key"),
    # graphs that do more than arithmetic
    "a loop": Fault(model(operator="Loop"), G, "off the allow-list: got Loop"),
    "a scan": Fault(model(operator="Scan"), G, "off the allow-list: got Scan"),
    "a choice": Fault(model(operator="If"), G, "off the allow-list: got If"),
    "an endless loop in a hidden body": Fault(attribute(LOOP_BODY), G, "holds subgraphs"),
    "the bomb of 78 bytes": Fault(model(operator="ConstantOfShape"), G, "allow-list: got ConstantOfShape"),
    "a range": Fault(model(operator="Range"), G, "allow-list: got Range"),
    "random numbers": Fault(model(operator="RandomNormal"), G, "allow-list: got RandomNormal"),
    "an operator of a foreign domain": Fault(model(domain="com.evil"), G, "off the allow-list: got com.evil"),
    "a foreign operator set": Fault(model(model=bytes_field(8, bytes_field(1, "com.evil") + number_field(2, 1))), G, "got com.evil"),
    "a function of its own": Fault(model(model=bytes_field(25, bytes_field(1, "f"))), G, "functions of its own"),
    "training information": Fault(model(model=bytes_field(20, b"")), G, "training information"),
    "a sparse constant": Fault(model(graph=bytes_field(15, b"")), G, "sparse tensors"),
    "a sparse attribute": Fault(attribute(bytes_field(22, b"")), G, "sparse tensors"),
    "values in another file": Fault(model(tensor=WEIGHT + EXTERNAL), G, "external data"),
    "values in another file, by the flag alone": Fault(model(tensor=WEIGHT + number_field(14, 1)), G, "external data"),
    "an attribute's values in another file": Fault(attribute(bytes_field(5, WEIGHT + EXTERNAL)), G, "external data"),
    "values in another file, named without the flag": Fault(
        model(tensor=WEIGHT + bytes_field(13, bytes_field(1, "location") + bytes_field(2, "/etc/shadow"))), G, "external data"
    ),
    "text as values": Fault(model(tensor=number_field(1, 1) + number_field(2, 8) + bytes_field(6, "x")), G, "no accepted dtype.*got text"),
    "values of a kind nobody knows": Fault(model(tensor=number_field(1, 1) + number_field(2, 77)), G, "got type number 77"),
    "sizes beyond the values": Fault(
        model(tensor=number_field(1, 2**40) + number_field(2, 1) + bytes_field(8, "weight") + bytes_field(9, b"\0" * 4)),
        G,
        "does not hold what its sizes say",
    ),
    "a negative size": Fault(
        model(tensor=number_field(1, 2**64 - 1) + number_field(2, 1) + bytes_field(8, "weight")), G, "has impossible sizes"
    ),
    "a tensor of a hundred axes": Fault(
        model(tensor=number_field(1, 1) * 100 + number_field(2, 1) + bytes_field(8, "weight") + bytes_field(9, b"\0" * 4)),
        G,
        "at most 16 axes",
    ),
    "an expansion to a terabyte": Fault(sized("Expand", [2**20, 2**20]), G, "Expand asks for too much"),
    "an expansion with negative sizes": Fault(sized("Expand", [-(2**40)]), G, "Expand asks for too much"),
    "padding without end": Fault(sized("Pad", [0, 2**40]), G, "Pad asks for too much"),
    "an attribute of 2^62": Fault(attribute(number_field(3, 2**62)), G, "huge attribute"),
    "a list of huge attributes": Fault(attribute(bytes_field(8, varint(3) + varint(2**50))), G, "huge attribute"),
    "two graphs in a model": Fault(model(model=bytes_field(7, bytes_field(2, "again"))), G, "exactly one graph"),
    "no graph in a model": Fault({"graph": lambda data: number_field(1, 8)}, G, "exactly one graph"),
    "a number over 64 bits": Fault(model(model=varint(1 << 3) + b"\xff" * 11), G, "over 64 bits"),
    "a group of the old wire format": Fault(model(model=varint(9 << 3 | 3)), G, "wire type 3"),
    "a field with the number 0": Fault(model(model=varint(0) + varint(0)), G, "field number 0"),
    "a field whose number is cut to another": Fault(model(model=varint((2**32 + 7) << 3) + varint(0)), G, "field number"),
    "a length beyond the end": Fault(model(model=varint(7 << 3 | 2) + varint(2**40)), G, "truncated"),
    "a name that is no text": Fault(model(node=bytes_field(4, b"\xff\xfe")), G, "UTF-8"),
    "a hundred thousand nodes": Fault(model(graph=bytes_field(1, b"") * 100_001), G, "too many nodes"),
    "a further input": Fault(model(graph=bytes_field(11, value_info("secret", (1,)))), G, "inputs differ"),
    "a further output": Fault(model(graph=bytes_field(12, value_info("weight", (3, 2)))), G, "outputs differ"),
    "another operator than listed": Fault(put("graphs", "classify", "operators", value=["Gemm"]), G, "operators differ"),
    "another operator set than listed": Fault(put("graphs", "classify", "opset", value=17), G, "opset differ"),
    "another version than listed": Fault(put("graphs", "classify", "ir_version", value=9), G, "IR version differ"),
    "a picture in the place of a graph": Fault(
        {"graph": lambda data: b"\x89PNG\r\n\x1a\n" + b"\0" * 64}, G, "malformed|truncated|exactly one"
    ),
    # tensors
    "a header of 2^60 bytes": Fault(golden(struct.pack("<Q", 2**60) + b"{}"), F, "header"),
    "a header cut short": Fault(golden(struct.pack("<Q", 100) + b"{}"), F, "header|truncated"),
    "offsets beyond the end": Fault(golden(one(offsets="[0,400]")), F, r"got \[0, 400\]"),
    "offsets that go backwards": Fault(golden(one(offsets="[4,0]")), F, r"got \[4, 0\]"),
    "a gap before the values": Fault(golden(one(offsets="[4,8]", body=b"\0" * 8)), F, r"got \[4, 8\]"),
    "bytes after the values": Fault(golden(one(body=b"\0" * 8)), F, "at data: expected 4 bytes, got 8"),
    "a size that multiplies beyond 64 bits": Fault(golden(one(shape="[4294967296,4294967296]")), F, "73786976294838206464"),
    "a dtype nobody knows": Fault(golden(one(dtype="F8_E4M3")), F, "got 'F8_E4M3'"),
    "a shape of another size than its bytes": Fault(golden(one(shape="[2]")), F, r"expected \[0, 8\]"),
    "a pickle in the place of tensors": Fault(golden(b"\x80\x04\x95" + b"\0" * 20), F, "header|malformed"),
    "a name twice": Fault(
        golden(
            safetensors(
                b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', b"\0\0"
            )
        ),
        F,
        "a repeated key",
    ),
}


def test_a_draft_without_a_fault_opens(tmp_path: Path) -> None:
    Draft().open(tmp_path / "bundle")


@pytest.mark.parametrize("name", FAULTS)
def test_a_bundle_with_one_fault_is_refused_and_opens_without_it(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    with pytest.raises(fault.error, match=fault.phrase) as caught:
        Draft(**fault.changes).open(tmp_path / "evil")
    assert type(caught.value) is fault.error
    kept = {key: value for key, value in fault.changes.items() if key == "policy" and "two are needed" in name}
    if kept:  # the fault is the missing signature, not the policy
        kept["signature"] = lambda data: KEY.sign(SIGNATURE_CONTEXT + data) + SECOND.sign(SIGNATURE_CONTEXT + data)
    Draft(**kept).open(tmp_path / "good")


def test_there_are_many_kinds() -> None:
    assert len(FAULTS) >= 100


def test_what_was_hashed_is_what_is_used(tmp_path: Path) -> None:
    Draft().open(tmp_path / "bundle")
    opened = open_bundle(tmp_path / "bundle", KEY.public)
    good = opened.graph("classify")
    (tmp_path / "bundle" / GRAPH).write_bytes(b"replaced after the check")
    assert opened.graph("classify") == good
