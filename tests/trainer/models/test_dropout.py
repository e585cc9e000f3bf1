"""Dropout from random bytes: which elements stay, how they are scaled, and that a step with masks traces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from protocol.errors import InputError
from trainer.models.dropout import DropoutInput, drop, dropout_inputs
from trainer.models.registry import build_model


def all_bytes() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).unsqueeze(0)  # (1, 256)


@pytest.mark.parametrize(("keep", "kept"), [(0.75, 192), (0.5, 128), (0.9, 230), (1.0, 256)])
def test_the_expectation_stays(keep: float, kept: int) -> None:
    x = torch.ones(1, 256, dtype=torch.float64)
    dropped = drop(x, {"mask": all_bytes()}, DropoutInput("mask", (256,), keep))
    expected = (torch.arange(256) < kept).double().unsqueeze(0) * (256 / kept)
    torch.testing.assert_close(dropped, expected, rtol=1e-15, atol=0)
    assert dropped.mean().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("keep", [0.0, 0.001, 1.1])
def test_impossible_shares_are_refused(keep: float) -> None:
    with pytest.raises(InputError, match="more than 0, at most 1"):
        drop(torch.ones(1, 256), {"mask": all_bytes()}, DropoutInput("mask", (256,), keep))


def test_nothing_is_dropped_without_masks() -> None:
    x = torch.rand(2, 3)
    assert drop(x, None, DropoutInput("mask", (3,), 0.5)) is x


def test_not_a_number_is_not_hidden() -> None:
    x = torch.full((1, 1), torch.nan)
    assert drop(x, {"mask": torch.full((1, 1), 255, dtype=torch.uint8)}, DropoutInput("mask", (1,), 0.5)).isnan().all()


def test_only_models_with_dropout_ask_for_masks() -> None:
    assert dropout_inputs(build_model("lenet", (28, 28), 10)) == ()
    assert dropout_inputs(build_model("zenkenet", (3, 32, 32), 10)) == ()
    shapes = [(each.shape, each.keep) for each in dropout_inputs(build_model("cnn", (3, 32, 32), 10))]
    assert shapes == [((64, 14, 14), 0.75), ((128,), 0.5)]
    shapes = [(each.shape, each.keep) for each in dropout_inputs(build_model("zenkenet", (3, 32, 32), 10, dropout=True))]
    assert shapes == [((32, 15, 15), 0.75), ((64, 6, 6), 0.75), ((512,), 0.5)]


@pytest.mark.parametrize(("name", "sizes"), [("cnn", {}), ("zenkenet", {"dropout": True})])
def test_masks_work_under_vmap_and_in_a_trace(name: str, sizes: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = build_model(name, (10, 10), 4, hidden=6, **sizes).double()
    weights = {key: value.detach() + 0.1 * torch.randn(2, *value.shape) for key, value in model.named_parameters()}  # (M, *shape)
    samples = torch.rand(2, 3, 10, 10).double()  # (M, B, H, W)
    masks = {each.name: torch.randint(0, 256, (2, 3, *each.shape), dtype=torch.uint8) for each in dropout_inputs(model)}

    def loss(own: dict[str, Tensor], x: Tensor, drawn: dict[str, Tensor]) -> Tensor:
        return functional_call(model, own, (x, drawn)).square().mean()

    gradients = make_fx(vmap(grad(loss)))(weights, samples, masks)(weights, samples, masks)
    for client in range(2):
        own, drawn = ({key: value[client] for key, value in tensors.items()} for tensors in (weights, masks))
        for key, value in grad(loss)(own, samples[client], drawn).items():
            torch.testing.assert_close(gradients[key][client], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "sizes"), [("cnn", {}), ("zenkenet", {"dropout": True})])
def test_masks_drop_what_they_say(name: str, sizes: dict[str, object]) -> None:
    """Bytes of 255 drop everything, which leaves the head's bias; bytes of zero keep everything, scaled."""
    model = build_model(name, (10, 10), 4, **sizes)
    x = torch.rand(2, 10, 10)
    everything = {each.name: torch.full((2, *each.shape), 255, dtype=torch.uint8) for each in dropout_inputs(model)}
    torch.testing.assert_close(model(x, everything), list(model.parameters())[-1].expand(2, 4))
    assert not torch.equal(model(x, {key: torch.zeros_like(mask) for key, mask in everything.items()}), model(x))
