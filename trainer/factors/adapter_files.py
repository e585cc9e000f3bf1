"""LoRA factors in PEFT's adapter layout: ``adapter_model.safetensors`` beside ``adapter_config.json``.

Tensors are named ``base_model.model.<layer>.lora_A.weight`` (R, I) and ``.lora_B.weight`` (O, R); the scale alpha / R is in the
configuration, by layer where ranks or alphas differ (``rank_pattern``, ``alpha_pattern``). Of PEFT's options only plain LoRA on linear
layers is read; anything else would compute something else here and is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.schema import SchemaError, parse_json
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors
from trainer.factors.checking import MAXIMUM_RANK, LayerShapes, check_factors, check_names, factor_rank, finite_scale, pair_of
from trainer.factors.pair import Factors
from trainer.factors.product import padded

TENSORS_FILE, CONFIGURATION_FILE = "adapter_model.safetensors", "adapter_config.json"
MAXIMUM_CONFIGURATION_BYTES = 1024 * 1024
PREFIX, A_SUFFIX, B_SUFFIX = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
LARGEST_ENTRY = 1e4
FOREIGN_OPTIONS = ("use_dora", "use_rslora", "fan_in_fan_out", "modules_to_save", "lora_bias", "layers_to_transform", "megatron_config")


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """Factors by layer, and the alpha of each layer: it adds alpha / R * B A.

    Attributes:
        pairs: Layer name -> pair without leading axes.
        alphas: Layer name -> alpha, above 0.
    """

    pairs: Mapping[str, Factors]
    alphas: Mapping[str, float]

    def scales(self) -> dict[str, float]:
        """Return alpha / R of each layer."""
        return {name: finite_scale(self.alphas[name], pair.rank) for name, pair in self.pairs.items()}


def save_peft(folder: Path, adapter: LoraAdapter) -> None:
    """Write both files of an adapter into a folder that exists, the configuration last.

    Raises:
        InputError: It holds no layer, or the layers of pairs and alphas differ.
    """
    if not adapter.pairs:
        raise InputError("the adapter holds no layer", expected="at least one")
    check_names(adapter.alphas.keys() - adapter.pairs.keys(), adapter.pairs.keys() - adapter.alphas.keys(), "layer")
    adapter.scales()
    tensors: dict[str, NDArray[np.generic]] = {}
    for name, pair in adapter.pairs.items():
        tensors[f"{PREFIX}{name}{A_SUFFIX}"] = pair.a.detach().cpu().contiguous().numpy()
        tensors[f"{PREFIX}{name}{B_SUFFIX}"] = pair.b.detach().cpu().contiguous().numpy()
    write_atomically(folder / TENSORS_FILE, encode_tensors(tensors, {"format": "pt"}))
    write_atomically(folder / CONFIGURATION_FILE, json.dumps(_configuration(adapter), indent=2, sort_keys=True).encode())


def load_peft(folder: Path, layers: LayerShapes) -> LoraAdapter:
    """Return the adapter in a folder, checked against the layers that it must be for, all of them; pairs are float32.

    Args:
        folder: Holds both files.
        layers: Layer name -> (O, I).

    Raises:
        InputError: A file is absent, malformed or larger than such layers allow, an option is not plain LoRA, or ``check_factors``.
    """
    configuration = _read_configuration(folder / CONFIGURATION_FILE)
    largest = sum(MAXIMUM_RANK * (outputs + inputs) * 4 for outputs, inputs in layers.values()) + TensorLimits().header_bytes
    limits = TensorLimits(magnitude=LARGEST_ENTRY)
    arrays = decode_tensors(read_limited(folder / TENSORS_FILE, largest), limits, error=InputError)
    wanted = {f"{PREFIX}{name}{suffix}" for name in layers for suffix in (A_SUFFIX, B_SUFFIX)}
    check_names(arrays.keys() - wanted, wanted - arrays.keys(), "tensor")
    pairs, alphas = {}, {}
    for name, shape in layers.items():
        a, b = (arrays[f"{PREFIX}{name}{suffix}"] for suffix in (A_SUFFIX, B_SUFFIX))
        rank = factor_rank(name, a.shape, b.shape, shape)
        stated = _of_layer(configuration, "rank_pattern", "r", name)
        if stated != rank:
            raise InputError(f"the rank of {name} is not that of the configuration", expected=stated, got=rank)
        if not all(np.issubdtype(each.dtype, np.floating) for each in (a, b)):
            raise InputError(f"the dtype of {name} is wrong", expected="floating factors", got=f"{a.dtype}, {b.dtype}")
        pairs[name] = pair_of(torch.from_numpy(a), torch.from_numpy(b))
        alphas[name] = float(_of_layer(configuration, "alpha_pattern", "lora_alpha", name))
        finite_scale(alphas[name], rank)
    check_factors(pairs, layers)
    return LoraAdapter(pairs, alphas)


def graph_factors(adapter: LoraAdapter, model_scales: Mapping[str, float]) -> dict[str, NDArray[np.generic]]:
    """Return factors as a graph with LoRA inputs takes them, for ``edge_runtime.adapters.make_adapter`` and its files.

    Such a graph has one rank for all layers and each layer's own scale inside: lower ranks are padded, and B takes what is left
    of the scale.

    Args:
        adapter: The factors.
        model_scales: Layer name -> alpha / R of the adapted model that was exported.

    Raises:
        InputError: The layers are not those of the model.
    """
    check_names(adapter.pairs.keys() - model_scales.keys(), model_scales.keys() - adapter.pairs.keys(), "layer")
    rank, scales = max(pair.rank for pair in adapter.pairs.values()), adapter.scales()
    factors: dict[str, NDArray[np.generic]] = {}
    for name, pair in adapter.pairs.items():
        ready = padded(pair.scaled(scales[name] / model_scales[name]).to(torch.float32), rank)
        factors[f"{name}.lora_A"], factors[f"{name}.lora_B"] = ready.a.detach().cpu().numpy(), ready.b.detach().cpu().numpy()
    return factors


def _configuration(adapter: LoraAdapter) -> dict[str, object]:
    """Return what PEFT reads; the commonest rank and alpha are the general ones."""
    ranks = {name: pair.rank for name, pair in adapter.pairs.items()}
    rank, alpha = (Counter(each.values()).most_common(1)[0][0] for each in (ranks, adapter.alphas))
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "task_type": None,
        "bias": "none",
        "inference_mode": True,
        "lora_dropout": 0.0,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in adapter.alphas.items() if each != alpha},
        "target_modules": sorted(ranks),
    }


def _read_configuration(path: Path) -> dict[str, Any]:
    """Return a configuration of plain LoRA."""
    try:
        found = parse_json(read_limited(path, MAXIMUM_CONFIGURATION_BYTES))
    except SchemaError as fault:
        raise InputError(f"{path.name} is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        raise InputError(f"{path.name} is no LoRA configuration", expected='"peft_type": "LORA"')
    foreign = [name for name in FOREIGN_OPTIONS if found.get(name)]
    if foreign or found.get("bias", "none") != "none":
        raise InputError(f"{path.name} asks for more than plain LoRA", expected="none of such options", got=(foreign or ["bias"])[0])
    return found


def _of_layer(configuration: Mapping[str, Any], pattern: str, general: str, layer: str) -> float:
    """Return a layer's own number or the general one; a pattern is read as the end of a name, never as a regular expression."""
    own = configuration.get(pattern) or {}
    if not isinstance(own, dict):
        raise InputError(f"{pattern} is wrong", expected="an object of names and numbers", got=type(own).__name__)
    found = next((value for key, value in own.items() if layer == key or layer.endswith(f".{key}")), configuration.get(general))
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InputError(f"{general} of {layer} is wrong", expected="a number", got=repr(found)[:60])
    return found
