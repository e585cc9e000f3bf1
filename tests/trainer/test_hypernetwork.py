"""The chunked hypernetwork: layout, variance of what it generates, and dependence on the condition."""

from __future__ import annotations

import pytest
import torch

from trainer.hypernetwork import ChunkedHypernetwork, HypernetworkSize

TARGETS = {"a.weight": torch.Size([20, 50]), "a.bias": torch.Size([20]), "b.weight": torch.Size([3, 20]), "b.bias": torch.Size([3])}
LENGTH = 20 * 50 + 20 + 3 * 20 + 3


@pytest.mark.parametrize("chunk_size", [1, 7, 64, LENGTH, 5000])
def test_names_and_shapes_do_not_depend_on_the_chunk_size(chunk_size: int) -> None:
    torch.manual_seed(0)
    named = ChunkedHypernetwork(TARGETS, 4, HypernetworkSize(chunk_size, 3, 5)).float()(torch.full((2, 4), 0.25))
    assert {name: tensor.shape[1:] for name, tensor in named.items()} == TARGETS
    assert list(named) == list(TARGETS)
    assert sum(tensor[0].numel() for tensor in named.values()) == LENGTH


@pytest.mark.parametrize("chunk_size", [64, 512])
def test_generated_weights_have_the_variance_their_layer_needs(chunk_size: int) -> None:
    targets = {"a.weight": torch.Size([64, 784]), "a.bias": torch.Size([64]), "b.weight": torch.Size([10, 64])}
    deviations = []
    for seed in range(20):
        torch.manual_seed(seed)
        network = ChunkedHypernetwork(targets, 16, HypernetworkSize(chunk_size, 16, 64)).float()
        named = {name: tensor.detach() for name, tensor in network(torch.full((1, 16), 1 / 16)).items()}
        deviations.append([named["a.weight"].std() * 784**0.5, named["b.weight"].std() * 64**0.5, named["a.bias"].std() / 0.05])
    mean = torch.tensor(deviations).mean(dim=0)
    assert ((mean > 0.8) & (mean < 1.25)).all(), mean


def test_every_kept_weight_follows_the_condition() -> None:
    torch.manual_seed(0)
    named = ChunkedHypernetwork(TARGETS, 4, HypernetworkSize(128, 3, 32)).float()(torch.eye(4))
    assert all((tensor.std(dim=0) > 0).all() for tensor in named.values())


def test_rows_are_independent() -> None:
    torch.manual_seed(0)
    network = ChunkedHypernetwork(TARGETS, 4, HypernetworkSize(128, 3, 32)).float()
    conditions = torch.softmax(torch.randn(5, 4), dim=1)
    together = network(conditions)
    for place, row in enumerate(conditions):
        for name, tensor in network(row.unsqueeze(0)).items():
            torch.testing.assert_close(together[name][place], tensor[0])


def test_rows_applied_are_rows_written() -> None:
    torch.manual_seed(0)
    targets = {"layers.0.weight": torch.Size([6, 50]), "layers.0.bias": torch.Size([6]), "layers.1.weight": torch.Size([3, 6])}
    network = ChunkedHypernetwork(targets, 4, HypernetworkSize(50, 3, 5)).double()
    assert network.writes_rows("layers.0.weight")
    assert not network.writes_rows("layers.1.weight")
    assert not ChunkedHypernetwork(targets, 4, HypernetworkSize(49, 3, 5)).writes_rows("layers.0.weight")
    condition, x = torch.softmax(torch.randn(1, 4, dtype=torch.float64), dim=1), torch.randn(7, 50, dtype=torch.float64)
    units = network.units(condition)
    written = network.write_weights(units)["layers.0.weight"][0]
    torch.testing.assert_close(network.apply_rows("layers.0.weight", units, x), x @ written.T, rtol=0, atol=1e-12)
    assert list(network.write_weights(units, "layers.0.weight")) == ["layers.0.bias", "layers.1.weight"]
