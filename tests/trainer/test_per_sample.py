"""Layers with weights of each sample's own give what ``vmap`` gives, for every model that a hypernetwork can write."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from protocol.errors import InputError
from trainer.hypernetwork import HypernetworkSize
from trainer.methods.distribution_embedding import DistributionExtractor, ExtractorSize
from trainer.methods.hyperfedzero_network import HyperFedZeroNetwork, NetworkPlan, check_unrolled
from trainer.models.mlp import MLP, Normalise
from trainer.models.registry import build_model
from trainer.per_sample import PerSampleWeights, conv2d_each

MODELS = [
    ("mlp-6-5", (3, 4)),
    ("lenet-s", (16, 17)),
    ("lenet", (3, 16, 16)),
    ("zenkenet", (3, 10, 11)),
    ("resnet8", (3, 8, 8)),
    ("cnn", (3, 8, 8)),
]


def own_weights(model: nn.Module, samples: int, names: set[str] | None = None) -> dict[str, Tensor]:
    chosen = {name: each for name, each in model.named_parameters() if names is None or name in names}
    return {name: (each + 0.1 * torch.randn(samples, *each.shape)).detach() for name, each in chosen.items()}


@pytest.mark.parametrize(("name", "shape"), MODELS)
@pytest.mark.parametrize("only_head", [False, True])
def test_every_model_gives_what_vmap_gives(name: str, shape: tuple[int, ...], only_head: bool) -> None:
    torch.manual_seed(0)
    model = build_model(name, shape, 3).double()
    names = [each for each, _ in model.named_parameters()]
    weights = own_weights(model, 4, set(names[-2:]) if only_head else None)
    x = torch.randn(4, *shape, dtype=torch.float64)
    expected = vmap(lambda own, sample: functional_call(model, own, (sample.unsqueeze(0),)).squeeze(0))(weights, x)
    with torch.no_grad(), PerSampleWeights():
        got = functional_call(model, weights, (x,))
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < 1e-9
    assert (expected[0] - expected[1]).abs().max() > 1e-3  # the samples' weights differ, and it shows


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), ((1, 2), (2, 0)), (3, 2)])
def test_windows_follow_stride_and_padding(stride: int | tuple[int, int], padding: int | tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 2, 9, 8), torch.randn(3, 4, 2, 3, 2), torch.randn(3, 4)
    expected = torch.cat([F.conv2d(x[at : at + 1], weight[at], bias[at], stride, padding) for at in range(3)])
    torch.testing.assert_close(conv2d_each(x, weight, bias, stride, padding), expected, atol=1e-5, rtol=1e-5)


def test_what_it_does_not_know_is_refused() -> None:
    layer = nn.Conv2d(2, 2, 3, groups=2)
    weights = {"weight": torch.zeros(3, 2, 1, 3, 3), "bias": torch.zeros(3, 2)}
    with PerSampleWeights(), pytest.raises(NotImplementedError, match="groups"):
        functional_call(layer, weights, (torch.zeros(3, 2, 5, 5),))


def test_layers_with_shared_weights_stay_as_they_are() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(5, 3)
    with PerSampleWeights():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


class Product(nn.Module):
    """Uses its weight in no layer that could be written out."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel


class Scale(nn.Module):
    """Mixes up samples and units when its weight gets an axis in front: the result has the right shape and is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(1) * self.scale.reshape(-1, 3, 4)[:1]).sum(dim=2)


def network_around(classifier: nn.Module) -> HyperFedZeroNetwork:
    plan = NetworkPlan("whole", base=True, change_scale=0.3, hypernetwork=HypernetworkSize(64, 3, 7), label_classes=0)
    return HyperFedZeroNetwork(
        Normalise(0, 1), DistributionExtractor((4,), ExtractorSize(5, 4), with_noise=False), classifier, plan
    ).float()


@pytest.mark.parametrize("classifier", [Product(), Scale()])
def test_a_classifier_that_no_graph_can_hold_is_refused(classifier: nn.Module) -> None:
    with pytest.raises(InputError, match="weights of each sample's own"):
        check_unrolled(network_around(classifier), (4,))


def test_a_classifier_that_a_graph_can_hold_passes() -> None:
    check_unrolled(network_around(MLP((4,), (5,), 3)), (4,))
