"""LoRA factors on a device: checked against the graph's entry, saved and loaded; everything odd is our own error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.adapters import MAXIMUM_RANK, load_adapter, make_adapter, save_adapter
from edge_runtime.sessions import open_session
from protocol.errors import InputError
from protocol.manifest import GraphSpec, Parity, TensorSpec
from protocol.tensors import encode_tensors
from tests.edge_runtime.tiny import graphs

A, B = TensorSpec("0.lora_a", "float32", (4, "rank"), "", optional=True), TensorSpec("0.lora_b", "float32", ("rank", 3), "", optional=True)
SAMPLES, LOGITS = TensorSpec("samples", "float32", ("batch", 4), ""), TensorSpec("logits", "float32", ("batch", 3), "")
GRAPH = GraphSpec("graphs/classify.onnx", (SAMPLES, A, B), (LOGITS,), 18, 8, (), Parity((1,), 1e-5, 1e-4, 0.0, None))


def factors(rank: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "0.lora_a": random.standard_normal((4, rank)).astype(np.float32),
        "0.lora_b": random.standard_normal((rank, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("rank", [1, 2, 16])
def test_any_rank_travels_through_a_file(tmp_path: Path, rank: int) -> None:
    adapter = make_adapter(factors(rank), GRAPH)
    save_adapter(tmp_path / "mine.safetensors", adapter)
    again = load_adapter(tmp_path / "mine.safetensors", GRAPH)
    assert again.rank == adapter.rank == rank
    assert again.factors.keys() == {"0.lora_a", "0.lora_b"}
    assert all(np.array_equal(again.factors[name], adapter.factors[name]) for name in adapter.factors)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def changed(**values: np.ndarray | None) -> dict[str, np.ndarray]:
    named = {f"0.{name}": value for name, value in values.items()}
    return {name: value for name, value in {**factors(), **named}.items() if value is not None}


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (changed(lora_a=None), "0.lora_a, which is missing"),
        (changed(other=np.ones((2, 2), np.float32)), "0.other, which is not known"),
        (changed(lora_a=np.ones((4, 2), np.float64)), "dtype of 0.lora_a"),
        (changed(lora_a=np.ones((4, 2), np.int32)), "dtype of 0.lora_a"),
        (changed(lora_a=np.ones((5, 2), np.float32)), "shape of 0.lora_a"),
        (changed(lora_a=np.ones(8, np.float32)), "shape of 0.lora_a"),
        (changed(lora_a=np.ones((4, 3), np.float32)), r"rank is wrong.*\[2, 3\]"),
        (factors(0), "rank is wrong"),
        (factors(MAXIMUM_RANK + 1), "rank is wrong"),
        (changed(lora_b=np.full((2, 3), np.nan, np.float32)), "NaN or infinity"),
        (changed(lora_b=np.full((2, 3), np.inf, np.float32)), "NaN or infinity"),
    ],
)
def test_factors_that_do_not_fit_are_refused(made: dict[str, np.ndarray], match: str) -> None:
    with pytest.raises(InputError, match=match):
        make_adapter(made, GRAPH)


def test_a_graph_without_optional_inputs_takes_no_adapter() -> None:
    with pytest.raises(InputError, match="takes no adapter"):
        make_adapter(factors(), graphs("device")["classify"].spec("classify"))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x04pickle", encode_tensors(factors())[:-4], encode_tensors(factors()) + b"\0"],
    ids=["empty", "pickle", "truncated", "longer"],
)
def test_files_that_are_no_adapter_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "adapter").write_bytes(content)
    with pytest.raises(InputError):
        load_adapter(tmp_path / "adapter", GRAPH)


def test_an_oversized_file_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_adapter(tmp_path / "adapter", make_adapter(factors(), GRAPH))
    monkeypatch.setattr("edge_runtime.adapters.MAXIMUM_ADAPTER_BYTES", 64)
    with pytest.raises(InputError, match="too large"):
        load_adapter(tmp_path / "adapter", GRAPH)


@pytest.mark.parametrize(
    "feeds",
    [
        {"embedding": np.ones((1, 3), np.float64)},
        {"embedding": np.ones((1, 4), np.float32)},
        {"embedding": np.ones(3, np.float32)},
        {"embeddings": np.ones((1, 3), np.float32)},
        {"embedding": np.ones((1, 3), np.float32), "more": np.ones(1, np.float32)},
        {"embedding": np.float32(1)},
        {},
    ],
    ids=["dtype", "size", "rank", "name", "one more", "numpy scalar", "nothing"],
)
def test_inputs_that_a_graph_does_not_take_are_our_error(feeds: dict[str, np.ndarray]) -> None:
    session = open_session(graphs("device")["generate"].to_bytes(), "1.19")
    with pytest.raises(InputError, match="refuses the inputs"):
        session.run(feeds)
