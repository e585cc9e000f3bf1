"""Evil in the manifest: as text, and in what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.protocol.evil.drafts import GRAPH, NOW, Changes, F, G, Json, Kind, M, V, drop, pair, put, swap
from tests.protocol.samples import manifest

MALFORMED = "manifest is malformed"
GOOD: Json = json.loads(manifest().to_bytes())
FUTURE, PAST = int(NOW) + 1, int(NOW) - 1


def text(change: Callable[[bytes], bytes]) -> Changes:
    return {"text": change}


def same(data: bytes) -> bytes:
    return data


def cut(part: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * part)]


def place(*keys: Any) -> Callable[..., Changes]:
    """Return a builder that puts a value into one place of the manifest."""
    return lambda value: put(*keys, value)


def extra(key: str | None) -> Changes:
    """Return a manifest with a further field, or none."""
    return {} if key is None else put(key, "rm -rf /")


def extra_of_graph(key: str | None) -> Changes:
    return {} if key is None else put("graphs", "classify", key, {})


def without(key: str | None) -> Changes:
    return {} if key is None else drop(key)


def renamed_graph(name: str) -> Changes:
    return {"content": lambda content: content["graphs"].__setitem__(name, content["graphs"].pop("classify"))}


def phases(depth: int) -> Changes:
    """Return a manifest with lists in lists."""
    return swap('"phases": [', '"phases": [' + "[" * depth + "]" * depth + ",")


def number(digits: str) -> Changes:
    return swap('"maximum": 1.0', f'"maximum": {digits}')


def version(digits: str) -> Changes:
    return swap('"bundle_version": 1', f'"bundle_version": {digits}')


def second_key(key: str) -> Changes:
    """Return a manifest with a further key in front of the settings' only one."""
    return swap('"rate": 0.1', f'"{key}": 0.2, "rate": 0.1')


def files(nothing: bool) -> Changes:
    return put("files", {}) if nothing else {}


def shape_of(side: str) -> Callable[..., Changes]:
    """Return a builder that sets the manifest's shape of the graph's first input or output."""
    return lambda value: put("graphs", "classify", side, 0, "shape", value)


def variant(key: str, value: Any) -> Changes:
    """Return a bundle with a variant of its graph, of which the manifest states something else."""
    spec = GOOD["graphs"]["classify"]
    own = {"file": SMALL, **{name: spec[name] for name in ("opset", "ir_version", "operators")}, "minimum_onnxruntime": "1.19"}
    own |= {"accuracy": 0.9, "accuracy_float32": 0.9, "seconds": 0.1, "seconds_float32": 0.2, "worst_absolute_difference": 0.0}
    files = {"files": lambda files: files.__setitem__(SMALL, files[GRAPH])}
    return {**files, **put("graphs", "classify", "variants", {"int8": {**own, key: value}})}


SMALL = "graphs/classify.int8.onnx"
CLASSES, NAME, CREATED, RUNTIME = place("classes"), place("name"), place("bundle_version"), place("minimum_onnxruntime")
RAW_SHAPE, RAW_DTYPE = place("raw_input", "shape"), place("raw_input", "dtype")

KINDS: dict[str, Kind] = {
    # as text
    "a manifest of two megabytes": pair(
        text, lambda data: data + b" " * 2**21, lambda data: data + b" " * 2**10, F, "manifest.json is too large"
    ),
    "half a manifest": pair(text, cut(0.5), cut(1), M, MALFORMED),
    "a manifest without its last byte": pair(text, cut(0.9999), cut(1), M, MALFORMED),
    "an empty manifest": pair(text, cut(0), cut(1), M, MALFORMED),
    "a byte order mark": pair(text, lambda data: b"\xef\xbb\xbf" + data, same, M, MALFORMED),
    "another encoding": pair(text, lambda data: data.decode().encode("utf-16"), lambda data: data.decode().encode(), M, MALFORMED),
    "bytes that are no text": pair(text, lambda data: data.replace(b"tiny", b"\xff\xfe"), same, M, MALFORMED),
    "text after the end": pair(text, lambda data: data + b"{}", lambda data: data + b" ", M, MALFORMED),
    "a list in the place of an object": pair(text, lambda data: b"[" + data + b"]", same, M, "expected an object"),
    "a comment": pair(text, lambda data: b"// signed by everybody\n" + data, lambda data: b"\n" + data, M, MALFORMED),
    "a key twice": pair(second_key, "rate", "other", M, "a repeated key"),
    "not a number": pair(number, "NaN", "2.0", M, "finite numbers, got NaN"),
    "infinity": pair(number, "Infinity", "2.0", M, "finite numbers, got Infinity"),
    "infinity by a large exponent": pair(number, "1e999", "1e9", M, "finite numbers, got 1e999"),
    "a number of five thousand digits": pair(version, "9" * 5000, "9", M, "got 5000 digits"),
    "a number beyond 64 bits": pair(version, str(2**64), "9", M, "integers of 64 bits"),
    "seventeen nested lists": pair(phases, 17, 5, M, "at most 16 levels"),
    "a hundred thousand nested lists": pair(phases, 100_000, 5, M, MALFORMED),
    # in what it says
    "half a character": pair(NAME, "\ud800", "tiny", M, MALFORMED),
    "a format of the future": pair(place("format"), "fedtailor-bundle/2", "fedtailor-bundle/1", M, "format must be fedtailor-bundle/1"),
    "an unknown field": pair(extra, "run_at_install", None, M, "'run_at_install', which is not known"),
    "an option for the runtime": pair(extra_of_graph, "session_options", None, M, "'session_options', which is not known"),
    "a missing field": pair(without, "classes", None, M, "'classes', which is missing"),
    "a number where text belongs": pair(NAME, 3, "three", M, "manifest.name: expected str"),
    "text where a number belongs": pair(CREATED, "1", 1, M, "manifest.bundle_version: expected int"),
    "true where a number belongs": pair(CREATED, True, 1, M, "manifest.bundle_version: expected int"),
    "a fraction where a whole number belongs": pair(CREATED, 1.5, 1, M, "manifest.bundle_version: expected int"),
    "nothing where text belongs": pair(NAME, None, "tiny", M, "manifest.name: expected str"),
    "a list where an object belongs": pair(place("producer"), [], {}, M, "manifest.producer: expected an object"),
    "a version below one": pair(CREATED, 0, 1, M, "version must be at least 1"),
    "a bundle whose time is over": pair(place("expires"), PAST, FUTURE, V, "has expired"),
    "one class": pair(CLASSES, ["cat"], ["cat", "dog"], M, "2 to 10000 classes"),
    "a class twice": pair(CLASSES, ["cat", "cat"], ["cat", "dog"], M, "class names must differ"),
    "a class name that turns text around": pair(CLASSES, ["cat", "god\u202e"], ["cat", "god"], M, "class names must be short lines"),
    "a class name of a thousand letters": pair(CLASSES, ["cat", "d" * 1000], ["cat", "d" * 100], M, "class names must be short lines"),
    "a class name that moves the cursor": pair(CLASSES, ["cat", "dog\x1b[2J"], ["cat", "dog[2J"], M, "class names must be short lines"),
    "other classes than the graph has": pair(CLASSES, ["cat", "dog", "fox"], ["cat", "fox"], F, "golden logits do not fit"),
    "a name with a line feed": pair(NAME, "tiny\nsigned by: everybody", "tiny signed by: nobody", M, "short line of text"),
    "a method that clears the screen": pair(place("method", "name"), "fedavg\x1bc", "fedavg", M, "named by short lines of text"),
    "an empty name": pair(NAME, "", "t", M, "short line of text"),
    "an empty raw range": pair(place("raw_input", "maximum"), 0.0, 1.0, M, "raw range must not be empty"),
    "a raw range that golden samples leave": pair(place("raw_input", "maximum"), 0.4, 0.6, F, "golden samples leave the raw range"),
    "a raw sample of a petabyte": pair(RAW_SHAPE, [2**25, 2**25], [3], M, "of a possible size"),
    "raw sizes below one": pair(RAW_SHAPE, [-3], [3], M, "raw sizes must be positive"),
    "raw samples of another shape than the graph's": pair(RAW_SHAPE, [4], [3], M, "takes other samples"),
    "raw samples of objects": pair(RAW_DTYPE, "object", "float32", M, "raw samples must be"),
    "raw samples of another dtype than the graph's": pair(RAW_DTYPE, "uint8", "float32", M, "takes other samples"),
    "no classifier": pair(renamed_graph, "other", "classify", M, "entry point classify"),
    "a graph that is no listed file": pair(
        place("graphs", "classify", "file"), "graphs/other.onnx", GRAPH, M, "every graph must be a listed file"
    ),
    "a card in the place of a graph": pair(place("graphs", "classify", "file"), "README.md", GRAPH, M, "every graph must be an .onnx file"),
    "no file at all": pair(files, True, False, M, "lists no file"),
    "a runtime that is no version": pair(RUNTIME, "latest", "1.19", M, "must be a version"),
    "a runtime too old for the graph": pair(RUNTIME, "1.13", "1.14", V, "too new for the ONNX Runtime"),
    "a runtime older than any": pair(RUNTIME, "0.1", "1.14", V, "too old for any graph"),
    "a coordinator's key that is none": pair(place("coordinator_key"), "00" * 32, None, M, "coordinator's key is no public key"),
    "an input of a terabyte": pair(shape_of("inputs"), ["N", 2**40], ["N", 3], M, "sizes must be possible"),
    "an output with a negative size": pair(shape_of("outputs"), ["N", -2], ["N", 2], M, "sizes must be possible"),
    "an input of a hundred axes": pair(shape_of("inputs"), ["N"] * 100, ["N", 3], M, "sizes must be possible"),
    "a variant for a runtime that is no version": pair(variant, ("minimum_onnxruntime", "x"), ("seconds", 0.1), M, "variant's oldest"),
    "a variant that takes no time": pair(variant, ("seconds_float32", 0.0), ("seconds", 0.1), M, "variant's seconds"),
    "a variant of other operators than listed": pair(variant, ("operators", ["Relu"]), ("seconds", 0.1), G, "int8.onnx: operators differ"),
    "a variant too new for its runtime": pair(variant, ("minimum_onnxruntime", "1.13"), ("seconds", 0.1), V, "int8.onnx is too new"),
    "no parity": pair(place("graphs", "classify", "parity"), None, GOOD["graphs"]["classify"]["parity"], M, "parity: expected an object"),
}
