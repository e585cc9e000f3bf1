"""Names and shapes of timm's vit_base_patch16_224 and mixer_b16_224, written down by hand from their published structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protocol.errors import InputError
from trainer.models.registry import build_model
from trainer.models.weights import load_weights, read_weights, write_weights

IMAGE, CLASSES, FEATURES, BLOCKS = (3, 224, 224), 1000, 768, 12

VIT_ENDS = {
    "cls_token": (1, 1, 768),
    "pos_embed": (1, 197, 768),
    "patch_embed.proj.weight": (768, 3, 16, 16),
    "patch_embed.proj.bias": (768,),
    "norm.weight": (768,),
    "norm.bias": (768,),
    "head.weight": (1000, 768),
    "head.bias": (1000,),
}
VIT_BLOCK = {
    "norm1.weight": (768,),
    "norm1.bias": (768,),
    "attn.qkv.weight": (2304, 768),
    "attn.qkv.bias": (2304,),
    "attn.proj.weight": (768, 768),
    "attn.proj.bias": (768,),
    "norm2.weight": (768,),
    "norm2.bias": (768,),
    "mlp.fc1.weight": (3072, 768),
    "mlp.fc1.bias": (3072,),
    "mlp.fc2.weight": (768, 3072),
    "mlp.fc2.bias": (768,),
}
MIXER_ENDS = {
    "stem.proj.weight": (768, 3, 16, 16),
    "stem.proj.bias": (768,),
    "norm.weight": (768,),
    "norm.bias": (768,),
    "head.weight": (1000, 768),
    "head.bias": (1000,),
}
MIXER_BLOCK = {
    "norm1.weight": (768,),
    "norm1.bias": (768,),
    "mlp_tokens.fc1.weight": (384, 196),
    "mlp_tokens.fc1.bias": (384,),
    "mlp_tokens.fc2.weight": (196, 384),
    "mlp_tokens.fc2.bias": (196,),
    "norm2.weight": (768,),
    "norm2.bias": (768,),
    "mlp_channels.fc1.weight": (3072, 768),
    "mlp_channels.fc1.bias": (3072,),
    "mlp_channels.fc2.weight": (768, 3072),
    "mlp_channels.fc2.bias": (768,),
}
PUBLISHED = {
    "vit_base_patch16_224": (VIT_ENDS, VIT_BLOCK, 86_567_656),
    "mixer_b16_224": (MIXER_ENDS, MIXER_BLOCK, 59_880_472),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_those_of_the_published_weights(name: str) -> None:
    ends, block, count = PUBLISHED[name]
    expected = {**ends, **{f"blocks.{place}.{key}": shape for place in range(BLOCKS) for key, shape in block.items()}}
    with torch.device("meta"):
        model = build_model(name, IMAGE, CLASSES)
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == expected
    assert sum(tensor.numel() for tensor in model.parameters()) == count


@pytest.mark.parametrize("name", ["vit-tiny", "mixer-tiny", "lenet-s"])
def test_weights_survive_a_file_and_a_head_of_other_classes(name: str, tmp_path: Path) -> None:
    head = [key for key, _ in build_model(name, (28, 28), 10).named_parameters()][-1].rpartition(".")[0]
    before, after = build_model(name, (28, 28), 10), build_model(name, (28, 28), 3)
    write_weights(tmp_path / "weights.safetensors", before.state_dict())
    kept = after.state_dict()[f"{head}.weight"].clone()
    load_weights(after, read_weights(tmp_path / "weights.safetensors"), head)
    assert torch.equal(after.state_dict()[f"{head}.weight"], kept)
    for key, tensor in before.state_dict().items():
        assert key.startswith(f"{head}.") or torch.equal(after.state_dict()[key], tensor)


def test_weights_of_another_model_are_refused_whole() -> None:
    model = build_model("vit-tiny", (28, 28), 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=r"do not fit the model at .*expected .* got nothing"):
        load_weights(model, {name: tensor for name, tensor in before.items() if "qkv" not in name}, "head")
    with pytest.raises(InputError, match=r"do not fit the model at blocks\.0"):
        load_weights(model, build_model("mixer-tiny", (28, 28), 3).state_dict(), "head")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"no safetensors")
    for path in (tmp_path / "odd", tmp_path / "absent"):
        with pytest.raises(InputError, match=f"weights of {path} cannot be read.*fedtailor pretrain"):
            read_weights(path)
