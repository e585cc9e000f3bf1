"""Low-rank adaptation: fresh adapters change nothing, merged weights compute the same, patterns match or are named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protocol.errors import InputError
from trainer.lora import LoraLinear, LoraPattern, factors_of, merged, with_lora
from trainer.models.vit import VisionTransformer


def network() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer((1, 8, 8), 3, patch=4, dimension=8, depth=2, heads=2)


PATTERNS = (LoraPattern(r"blocks\.\d+\.attn\.qkv", rank=2, alpha=6.0), LoraPattern(r"blocks\.1\.mlp\.fc[12]", rank=3))


def test_a_fresh_adapter_changes_nothing_and_leaves_the_module_alone() -> None:
    plain = network()
    names = [name for name, _ in plain.named_parameters()]
    adapted = with_lora(plain, PATTERNS, seed=1)
    images = torch.randn(5, 1, 8, 8)
    assert torch.equal(adapted(images), plain(images))
    assert [name for name, _ in plain.named_parameters()] == names
    assert not any(isinstance(layer, LoraLinear) for layer in plain.modules())
    missing, unexpected = adapted.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(name.endswith(("lora_A", "lora_B")) for name in missing)


def test_shapes_and_scale_follow_the_first_pattern_that_matches() -> None:
    adapted = with_lora(network(), PATTERNS, seed=1)
    shapes = {name: tuple(factor.shape) for name, factor in factors_of(adapted).items()}
    assert shapes == {
        "blocks.0.attn.qkv.lora_A": (2, 8),
        "blocks.0.attn.qkv.lora_B": (24, 2),
        "blocks.1.attn.qkv.lora_A": (2, 8),
        "blocks.1.attn.qkv.lora_B": (24, 2),
        "blocks.1.mlp.fc1.lora_A": (3, 8),
        "blocks.1.mlp.fc1.lora_B": (32, 3),
        "blocks.1.mlp.fc2.lora_A": (3, 32),
        "blocks.1.mlp.fc2.lora_B": (8, 3),
    }
    assert adapted.get_submodule("blocks.0.attn.qkv").scale == 3.0


def test_merged_weights_compute_the_same() -> None:
    plain = network().double()
    adapted = with_lora(plain, PATTERNS, seed=1)
    for name, factor in adapted.named_parameters():
        if name.endswith("lora_B"):
            nn.init.normal_(factor)
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    expected = adapted(images)
    assert not torch.allclose(expected, plain(images))
    plain.load_state_dict(merged(adapted))
    torch.testing.assert_close(plain(images), expected, rtol=1e-12, atol=1e-12)


def test_the_same_seed_gives_the_same_factors() -> None:
    first, second, other = (factors_of(with_lora(network(), PATTERNS, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["blocks.0.attn.qkv.lora_A"], other["blocks.0.attn.qkv.lora_A"])


def test_a_pattern_without_a_layer_is_named() -> None:
    with pytest.raises(InputError, match=r"matches no linear layer: expected one of blocks\.0\.attn\.qkv.*got blocks.*7"):
        with_lora(network(), [*PATTERNS, LoraPattern(r"blocks\.7.*")], seed=0)


@pytest.mark.parametrize("values", [{"rank": 0}, {"rank": 1.5}, {"alpha": 0.0}, {"alpha": float("nan")}, {"layers": "("}])
def test_impossible_patterns_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match="LoRA pattern"):
        LoraPattern(**{"layers": ".*", **values})  # type: ignore[arg-type]
