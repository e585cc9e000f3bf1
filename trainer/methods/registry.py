"""The methods by name: one line each."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from protocol.errors import InputError
from trainer.methods.base import MethodSettings
from trainer.methods.ditto import Ditto
from trainer.methods.fd import FederatedDistillation
from trainer.methods.fedavg import FedAvg
from trainer.methods.fedavg_ft import FedAvgFineTuned
from trainer.methods.fedex_lora import FedExLoRA
from trainer.methods.fedgh import FedGH
from trainer.methods.fedit import FedIT
from trainer.methods.fedjets import FedJets
from trainer.methods.fedproto import FedProto
from trainer.methods.fedprox import FedProx
from trainer.methods.ffa_lora import FFALoRA
from trainer.methods.flexlora import FlexLoRA
from trainer.methods.flora import FLoRA
from trainer.methods.fml import FedKD, MutualLearning
from trainer.methods.hetlora import HetLoRA
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.hyperlora import HyperLoRA
from trainer.methods.lg_fedavg import LgFedAvg
from trainer.methods.local import Local
from trainer.methods.local_lora import LocalLoRA
from trainer.methods.lora_fair import LoRAFair
from trainer.methods.perfedavg import PerFedAvg
from trainer.methods.pfedes import PFedES
from trainer.methods.pfedes_paper import PFedESPaper
from trainer.methods.pfedhn import PFedHN
from trainer.methods.pfedme import PFedMe
from trainer.methods.rolora import RoLoRA
from trainer.methods.scaffold import Scaffold
from trainer.methods.standalone import Standalone
from trainer.settings import build_settings

METHODS: Mapping[str, type[Any]] = {
    Ditto.name: Ditto,
    FedAvg.name: FedAvg,
    FedAvgFineTuned.name: FedAvgFineTuned,
    FedGH.name: FedGH,
    FedExLoRA.name: FedExLoRA,
    FedIT.name: FedIT,
    FFALoRA.name: FFALoRA,
    FlexLoRA.name: FlexLoRA,
    FLoRA.name: FLoRA,
    HetLoRA.name: HetLoRA,
    LocalLoRA.name: LocalLoRA,
    LoRAFair.name: LoRAFair,
    RoLoRA.name: RoLoRA,
    FedJets.name: FedJets,
    FedKD.name: FedKD,
    FedProto.name: FedProto,
    FederatedDistillation.name: FederatedDistillation,
    FedProx.name: FedProx,
    HyperFedZero.name: HyperFedZero,
    LgFedAvg.name: LgFedAvg,
    HyperLoRA.name: HyperLoRA,
    Local.name: Local,
    MutualLearning.name: MutualLearning,
    PerFedAvg.name: PerFedAvg,
    PFedES.name: PFedES,
    PFedESPaper.name: PFedESPaper,
    PFedHN.name: PFedHN,
    PFedMe.name: PFedMe,
    Scaffold.name: Scaffold,
    Standalone.name: Standalone,
}


def method_settings(name: str, values: Mapping[str, Any]) -> MethodSettings:
    """Return the settings of a method from plain values, as ``config.json`` holds them; what is not named keeps its default.

    Raises:
        InputError: There is no such method, or a setting is unknown or of the wrong type.
    """
    if name not in METHODS:
        raise InputError("unknown method", expected=" or ".join(METHODS), got=name)
    settings: MethodSettings = build_settings(METHODS[name], values, name)
    return settings


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes put over them, nested settings name by name."""
    result = dict(values)
    for name, change in changes.items():
        before = result.get(name)
        result[name] = merged(before, change) if isinstance(before, Mapping) and isinstance(change, Mapping) else change
    return result


def settings_as_values(settings: MethodSettings) -> dict[str, Any]:
    """Return every setting as plain values, nested settings as dictionaries."""
    return dataclasses.asdict(typing.cast(Any, settings))
