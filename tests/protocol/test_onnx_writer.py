from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import UnsafeGraphError
from protocol.onnx_graph import inspect_graph
from protocol.onnx_writer import with_constants
from tests.protocol.samples import ModelParts, bytes_field, number_field, value_info

WITH_TWO_INPUTS = ModelParts(
    graph=bytes_field(11, value_info("given", (3, 2))), model=number_field(5, 7) + bytes_field(200, "unknown") + b"\xad\x0c\x01\x02\x03\x04"
).to_bytes()
VALUE = np.arange(200, dtype=np.float32).reshape(2, 100)


def test_an_input_becomes_a_constant() -> None:
    model = with_constants(WITH_TWO_INPUTS, {"given": VALUE})
    assert inspect_graph(WITH_TWO_INPUTS).inputs == ["samples", "given"]
    assert inspect_graph(model).inputs == ["samples"]
    assert VALUE.tobytes() in model


def test_everything_else_is_copied_as_it_is() -> None:
    model = with_constants(WITH_TWO_INPUTS, {"given": VALUE})
    assert bytes_field(200, "unknown") + b"\xad\x0c\x01\x02\x03\x04" in model  # an unknown field, and one of four fixed bytes
    assert with_constants(WITH_TWO_INPUTS, {}) == WITH_TWO_INPUTS


def test_a_name_that_is_no_input_is_refused() -> None:
    with pytest.raises(UnsafeGraphError, match="weight"):
        with_constants(WITH_TWO_INPUTS, {"weight": VALUE})


def test_a_truncated_model_is_refused() -> None:
    with pytest.raises(UnsafeGraphError):
        with_constants(WITH_TWO_INPUTS[:-1], {"given": VALUE})
