"""Models by name: sizes, what they refuse, and that they run as pure functions of their weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from protocol.errors import InputError
from trainer.models.registry import build_model

SMALL: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
    "mlp": ((3, 4), {"hidden": (7,)}),
    "lenet-s": ((16, 17), {"channels": (2, 3), "hidden": 5}),
    "lenet": ((2, 16, 18), {"channels": (3, 4), "hidden": 6}),
    "zenkenet": ((3, 11, 10), {"hidden": 6}),
    "vit": ((2, 6, 9), {"patch": 3, "dimension": 6, "depth": 2, "heads": 2}),
    "vit-tiny": ((7, 14), {}),
    "mixer": ((2, 6, 9), {"patch": 3, "dimension": 6, "depth": 2}),
    "resnet8": ((5, 6), {"width": 4, "groups": 2}),
    "cnn": ((3, 7, 6), {"hidden": 8}),
}
CLIENTS, BATCH, CLASSES = 3, 4, 5


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [
        ("mlp", (28, 28), 50_890),
        ("mlp-200-100", (28, 28), 178_110),
        ("lenet-s", (28, 28), 21_840),
        ("lenet-s", (1, 28, 28), 21_840),
        ("lenet", (28, 28), 431_080),
        ("zenkenet", (3, 32, 32), 1_250_858),
        ("vit", (28, 28), 205066),
        ("resnet20", (3, 32, 32), 269_722),
        ("resnet32", (3, 32, 32), 464_154),
        ("cnn", (3, 32, 32), 1_626_442),
    ],
)
def test_models_have_the_published_sizes(name: str, shape: tuple[int, ...], weights: int) -> None:
    model = build_model(name, shape, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", ["lenet-s", "lenet", "zenkenet", "vit", "mixer", "resnet8", "cnn"])
def test_a_grey_image_may_have_a_channel_axis(name: str) -> None:
    model, x = build_model(name, (16, 16), 3), torch.rand(2, 16, 16)
    torch.testing.assert_close(model(x), model(x.unsqueeze(1)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "smallest"), [("lenet-s", 16), ("lenet", 16), ("zenkenet", 10), ("vit", 4), ("mixer", 4), ("resnet20", 4), ("cnn", 6)]
)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(name: str, smallest: int) -> None:
    assert build_model(name, (smallest, smallest), 3)(torch.rand(2, smallest, smallest)).shape == (2, 3)
    with pytest.raises(InputError, match=f"at least {smallest} x {smallest}"):
        build_model(name, (smallest, smallest - 1), 3)


def test_channels_that_come_last_are_named() -> None:
    with pytest.raises(InputError, match="channels come first"):
        build_model("cnn", (32, 32, 3), 10)


def test_vectors_are_no_images() -> None:
    with pytest.raises(InputError, match="mlp takes any shape"):
        build_model("resnet20", (784,), 10)


def stacked(name: str) -> tuple[torch.nn.Module, dict[str, Tensor], Tensor, Tensor]:
    """Return a small model, weights of several clients (M, *shape), their samples (M, B, *shape) and labels (M, B)."""
    torch.manual_seed(0)
    shape, sizes = SMALL[name]
    model = build_model(name, shape, CLASSES, **sizes).double()
    weights = {key: value.detach() + 0.1 * torch.randn(CLIENTS, *value.shape).double() for key, value in model.named_parameters()}
    return model, weights, torch.rand(CLIENTS, BATCH, *shape).double(), torch.randint(0, CLASSES, (CLIENTS, BATCH))


@pytest.mark.parametrize("name", SMALL)
def test_own_weights_for_each_sample_give_what_a_loop_gives(name: str) -> None:
    model, weights, samples, _ = stacked(name)
    one_each = samples[:, :1]  # (M, 1, *shape)
    together = vmap(lambda own, x: functional_call(model, own, (x,)))(weights, one_each)
    for client in range(CLIENTS):
        alone = functional_call(model, {key: value[client] for key, value in weights.items()}, (one_each[client],))
        torch.testing.assert_close(together[client], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_many_clients_trace_into_one_graph(name: str) -> None:
    model, weights, samples, labels = stacked(name)

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, own, (x,))  # (B, C)
        return torch.nn.functional.cross_entropy(logits, y)

    gradients = make_fx(vmap(grad(loss)))(weights, samples, labels)(weights, samples, labels)
    for client in range(CLIENTS):
        own = {key: value[client].clone().requires_grad_() for key, value in weights.items()}
        loss(own, samples[client], labels[client]).backward()
        for key, value in own.items():
            torch.testing.assert_close(gradients[key][client], value.grad, rtol=1e-8, atol=1e-10)
            assert value.grad is not None
            assert value.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", SMALL)
def test_the_head_is_the_last_layer(name: str) -> None:
    model = stacked(name)[0]
    weight, bias = list(model.parameters())[-2:]
    assert (weight.shape[0], bias.shape[0]) == (CLASSES, CLASSES)


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(InputError, match=r"expected cnn, lenet, lenet-s, mlp, .*zenkenet.*resnet20.*module:factory, got lenett"):
        build_model("lenett", (28, 28), 10)


@pytest.mark.parametrize("name", ["mlp-", "mlp-0", "mlp--5", "mlp-a", "resnet020", "resnet", "MLP", ""])
def test_names_are_exact(name: str) -> None:
    with pytest.raises(InputError, match="model is unknown"):
        build_model(name, (28, 28), 10)


@pytest.mark.parametrize("name", ["resnet18", "resnet2", "resnet50x"])
def test_depths_are_6n_plus_2(name: str) -> None:
    with pytest.raises(InputError, match=r"6n \+ 2"):
        build_model(name, (28, 28), 10)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("lenet", {"depth": 3}, "no size 'depth': expected channels or hidden"),
        ("mlp-5", {"hidden": (5,)}, "no size 'hidden': expected no size at all"),
        ("mlp", {"hidden": 5}, "size 'hidden' of mlp is wrong"),
        ("mlp", {"hidden": [5, 0]}, "size 'hidden' of mlp is wrong"),
        ("mlp", {"hidden": "55"}, "size 'hidden' of mlp is wrong"),
        ("lenet", {"channels": (1, 2, 3)}, "size 'channels' of lenet is wrong"),
        ("cnn", {"hidden": True}, "size 'hidden' of cnn is wrong"),
        ("vit", {"heads": 5}, "heads do not share out"),
        ("vit", {"patch": 5}, "patches do not tile"),
        ("zenkenet", {"dropout": 1}, "size 'dropout' of zenkenet is wrong"),
        ("resnet20", {"width": 12}, "width that 8 groups divide"),
        ("resnet20", {"normalisation": "none"}, "expected group or layer"),
        ("resnet20", {"normalisation": "batch"}, "running statistics are no weights"),
    ],
)
def test_wrong_sizes_are_refused(name: str, sizes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(name, (28, 28), 10, **sizes)


@pytest.mark.parametrize(("shape", "classes"), [((), 10), ((0, 28), 10), ((28, 28), 0)])
def test_empty_samples_or_classes_are_refused(shape: tuple[int, ...], classes: int) -> None:
    with pytest.raises(InputError, match="a model needs samples and classes"):
        build_model("mlp", shape, classes)


def test_no_hidden_layer_is_a_linear_model() -> None:
    assert [tuple(each.shape) for each in build_model("mlp", (2, 3), 4, hidden=[]).parameters()] == [(4, 6), (4,)]


def test_one_group_is_layer_normalisation() -> None:
    model = build_model("resnet8", (8, 8), 3, width=5, normalisation="layer")
    assert {module.num_groups for module in model.modules() if isinstance(module, torch.nn.GroupNorm)} == {1}


def test_a_sample_is_classified_alike_in_any_batch() -> None:
    model, x = build_model("resnet8", (8, 8), 3).double(), torch.rand(6, 8, 8).double()
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-10, atol=1e-10)
