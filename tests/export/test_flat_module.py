"""What can be exported, and that the caller's own things stay as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_runtime.sessions import open_session
from export.flat_module import flat_module
from export.graphs import load_model, to_onnx
from export.parity import check_parity
from protocol.errors import InputError, ParityError
from trainer.methods.parts import Part, PartTensor

X = PartTensor("x", "float32", ("batch", 3), "")
Y = PartTensor("y", "float32", ("batch", 3), "")


def part_of(computation: Any, *inputs: PartTensor, gathered: int = 0, output: PartTensor = Y) -> Part:
    return Part("classify", computation, inputs or (X,), (output,), gathered=gathered)


def scaled(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    return torch.tanh(x) * weights["scale"] + weights["shift"]


def test_a_pure_function_with_a_dictionary_of_weights_last() -> None:
    weights = [PartTensor(name, "float32", (3,), "") for name in ("scale", "shift")]
    part = part_of(scaled, X, *weights, gathered=2)
    graph = to_onnx(part)
    assert check_parity(part, graph, "1.19").worst_absolute_difference < 1e-6
    feeds = {"x": np.ones((2, 3), np.float32), "scale": np.full(3, 2, np.float32), "shift": np.full(3, 5, np.float32)}
    np.testing.assert_allclose(open_session(graph, "1.19").run(feeds)[0], 2 * np.tanh(1) + 5, rtol=1e-6)


@pytest.mark.parametrize("names", [("t", "add"), ("tanh", "mul"), ("val_0", "linear"), ("x", "computation.weight")])
def test_names_of_operations_and_of_weights_are_free_to_use(names: tuple[str, str]) -> None:
    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(super().forward(x)).t().contiguous().t() * 2 + 1

    inputs, output = PartTensor(names[0], "float32", ("batch", 3), ""), PartTensor(names[1], "float32", ("batch", 3), "")
    part = part_of(Layer(3, 3), inputs, output=output)
    graph = to_onnx(part)
    check_parity(part, graph, "1.19")
    assert open_session(graph, "1.19").input_names == names[:1]


def test_an_output_that_is_an_input_keeps_both_names() -> None:
    two = Part("classify", lambda x: (x, x), (X,), (Y, PartTensor("z", "float32", ("batch", 3), "")))
    check_parity(two, to_onnx(two), "1.19")


class Template(nn.Module):
    """A stateless module that hides its template from torch."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "template", nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        template: nn.Linear = self.template  # type: ignore[assignment]  # set past nn.Module
        return functional_call(template, {"weight": torch.eye(3)}, (x,))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


@pytest.mark.parametrize(("module", "attribute"), [(Template(), "template"), (nn.Sequential(Listed()), "0.layers")])
def test_hidden_modules_are_refused_by_name(module: nn.Module, attribute: str) -> None:
    with pytest.raises(InputError, match=rf"hides another.*got {attribute}"):
        to_onnx(part_of(module))


LAYER = nn.Linear(3, 3)


def capturing(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    def inner(x: Tensor) -> Tensor:
        return torch.tanh(layer(x))

    return inner


@pytest.mark.parametrize("function", [functools.partial(functional_call, LAYER, {}), LAYER.forward, capturing(LAYER)])
def test_a_function_that_carries_a_module_is_not_pure(function: Any) -> None:
    with pytest.raises(InputError, match="not pure"):
        to_onnx(part_of(function))


def test_modes_hooks_and_flags_of_the_module_stay() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    module[0].weight.requires_grad_(False)
    module[0].eval()
    module[0].register_forward_hook(lambda _module, _inputs, output: output * 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    part = part_of(module)
    graph = to_onnx(part)
    check_parity(part, graph, "1.19")  # with the hook, which is part of what the module computes
    assert (module.training, module[0].training, module[1].training) == (True, False, True)
    assert (module[0].weight.requires_grad, module[0].bias.requires_grad) == (False, True)
    assert len(module[0]._forward_hooks) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    x = torch.randn(4, 3)
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(open_session(graph, "1.19").run({"x": x.numpy()})[0], expected, atol=1e-6)


class Constant(nn.Module):
    """A module whose inner tensors follow torch's defaults."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.arange(3.0) + torch.ones(3)


class Float64(AbstractContextManager[None]):
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "surroundings",
    [Float64(), torch.device("meta"), torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)],
    ids=["float64", "meta device", "inference mode", "no grad", "autocast"],
)
def test_the_callers_surroundings_change_nothing(surroundings: AbstractContextManager[Any]) -> None:
    part = part_of(Constant())
    expected = to_onnx(part)
    with surroundings:
        dtype = torch.get_default_dtype()
        assert to_onnx(part) == expected
        check_parity(part, expected, "1.19")
        assert torch.get_default_dtype() == dtype


def test_weights_that_are_not_there_cannot_be_exported() -> None:
    with pytest.raises(InputError, match="cannot be copied"):
        to_onnx(part_of(nn.Linear(3, 3, device="meta")))


def test_too_large_a_module_is_refused_before_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.flat_module.MAXIMUM_FILE_BYTES", 40)
    with pytest.raises(InputError, match="at most 40 bytes, got 48"):
        flat_module(part_of(nn.Linear(3, 3)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.cdist(x, x)[:, :1] * x, ["cdist", "squared differences"]),
        (torch.special.bessel_j0, ["bessel_j0", "docs/"]),
        (lambda x: x if x.sum() > 0 else -x, ["depends on values", "torch.where"]),
        (lambda x: x @ torch.ones(4, 3), ["fails on inputs", "RuntimeError"]),
        (lambda x: [x, x], ["returns something else", "1 tensors"]),
    ],
)
def test_a_failure_names_the_operation_and_what_to_use_instead(function: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        to_onnx(part_of(function))
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("names", [("x", "x"), ("x", "")])
def test_impossible_names_are_refused(names: tuple[str, str]) -> None:
    x, y = (PartTensor(name, "float32", ("batch", 3), "") for name in names)
    with pytest.raises(InputError, match="different name"):
        to_onnx(part_of(Constant(), x, output=y))


def test_an_optional_input_needs_an_axis_that_can_be_empty() -> None:
    weight = PartTensor("w", "float32", ("batch", 3), "", optional=True)
    with pytest.raises(InputError, match="such as rank"):
        to_onnx(part_of(lambda x, w: x + w, X, weight))


def test_the_first_layer_at_which_outputs_part_is_named() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    part = part_of(module)
    model = load_model(to_onnx(part))
    weight = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("2.weight"))
    changed = np.frombuffer(weight.raw_data, np.float32) + np.float32(0.05)
    weight.raw_data = changed.astype(np.float32).tobytes()
    with pytest.raises(ParityError) as raised:
        check_parity(part, model.SerializeToString(), "1.19")
    assert "at aten.linear.default of layer 2 " in str(raised.value.hint)
