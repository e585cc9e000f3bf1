"""An experiment: everything that decides a run, as the command line or a ``config.toml`` states it.

data = "fashion-mnist"
rounds = 300

[split]
participants = 10
concentration = 0.1

[methods.hyperfedzero]
learning_rate = 0.1
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from protocol.errors import InputError
from protocol.files import read_limited
from trainer.backbone import features_of, load_backbone
from trainer.calibration import CALIBRATIONS
from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.data.federation import SplitSettings
from trainer.data.presets import preset_for
from trainer.methods.registry import METHODS, merged, method_settings
from trainer.settings import build_settings
from trainer.simulation import default_split

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAXIMUM_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class Experiment:
    """What a run is, apart from its method and seed.

    Attributes:
        data: Data source, as ``load_dataset`` takes it.
        rounds: Rounds of training; None for the data set's preset.
        fraction: Share of the participants that each round selects.
        engine: ``auto``, ``loop``, ``cohort``, ``compiled`` or ``cluster``.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads of torch; None for a suitable number.
        model: Classifier of every method whose own settings name none; None for the preset's.
        backbone: Frozen network that turns raw samples into features, or None.
        correction: Calibrations that label-shift correction may choose from.
        checkpoint_every: Rounds between two checkpoints.
        split: Fields of the cut that differ from the data set's preset.
        methods: Settings of each method that differ from the preset and the defaults, by method name.
        variants: Methods under names of their own, with settings over those of the method.
    """

    data: str = "digits"
    rounds: int | None = None
    fraction: float = 1.0
    engine: str = "auto"
    device: str = "auto"
    threads: int | None = None
    model: str | None = None
    backbone: str | None = None
    correction: tuple[str, ...] = CALIBRATIONS
    checkpoint_every: int = 25
    split: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.rounds is not None and not 1 <= self.rounds <= 1_000_000:
            raise InputError("rounds is out of range", expected="1 to 1000000", got=self.rounds)
        if self.checkpoint_every < 1:
            raise InputError("checkpoint_every is out of range", expected="1 or more", got=self.checkpoint_every)
        if self.threads is not None and self.threads < 1:
            raise InputError("threads is out of range", expected="1 or more", got=self.threads)
        if not self.correction or set(self.correction) - set(CALIBRATIONS):
            raise InputError("correction is unknown", expected=" or ".join(CALIBRATIONS), got=", ".join(self.correction) or "none")
        if unknown := sorted(set(self.split) - {each.name for each in dataclasses.fields(SplitSettings)}):
            expected = " or ".join(each.name for each in dataclasses.fields(SplitSettings))
            raise InputError(f"split has no setting {unknown[0]!r}", expected=expected)
        for name, values in self.variants.items():
            if name in METHODS:
                raise InputError(f"variant {name} has the name of a method", expected="a name of its own")
            if set(values) - {"method", "settings"} or not isinstance(values.get("settings", {}), Mapping):
                raise InputError(f"variant {name} was not understood", expected="method and a table of settings", got=sorted(values))
            self.resolve(name)

    def resolve(self, name: str) -> tuple[str, Experiment]:
        """Return the method behind a name, and the experiment with a variant's settings put over the method's.

        Raises:
            InputError: There is neither such a method nor such a variant.
        """
        if name in METHODS:
            return name, self
        variant = self.variants.get(name)
        if not isinstance(variant, Mapping) or variant.get("method") not in METHODS:
            expected = " or ".join([*METHODS, *self.variants])
            raise InputError("unknown method or variant", expected=expected, got=name, hint="variants stand in the configuration file")
        method = str(variant["method"])
        settings = merged(self.methods.get(method, {}), variant.get("settings", {}))
        return method, dataclasses.replace(self, methods={**self.methods, method: settings}, variants={})

    def dataset(self) -> Dataset:
        """Return the data, through the backbone if there is one."""
        dataset = load_dataset(self.data)
        return dataset if self.backbone is None else features_of(dataset, load_backbone(self.backbone))

    def split_of(self, dataset: Dataset, seed: int) -> SplitSettings:
        """Return the cut of a data set."""
        values = dataclasses.asdict(default_split(dataset, seed)) | dict(self.split) | {"seed": seed}
        settings: SplitSettings = build_settings(SplitSettings, values, "split")
        return settings

    def rounds_of(self, dataset: Dataset) -> int:
        """Return the rounds of training."""
        return preset_for(dataset.name).rounds if self.rounds is None else self.rounds

    def settings_of(self, method: str, dataset: Dataset) -> Any:
        """Return a method's settings; later over earlier: defaults, the data set's preset, the experiment's model, the method's own."""
        preset = preset_for(dataset.name)
        values = {"model": preset.model} | dict(preset.methods.get(method, {}))
        if self.model is not None:
            values["model"] = self.model
        return method_settings(method, merged(values, self.methods.get(method, {})))

    def torch_device(self) -> torch.device:
        """Return where tensors live.

        Raises:
            InputError: A GPU is asked for where there is none.
        """
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError("device is unknown", expected="auto, cpu or cuda", got=self.device)
        found = torch.cuda.is_available()
        if self.device == "cuda" and not found:
            raise InputError(
                "torch sees no GPU", expected="a CUDA device", got="none", hint="use --device cpu, or install a CUDA build of torch"
            )
        return torch.device("cuda" if found and self.device != "cpu" else "cpu")


def load_experiment(path: Path) -> Experiment:
    """Return the experiment that a TOML file describes.

    Raises:
        InputError: The file cannot be read, or names a setting that there is not.
    """
    try:
        values = tomllib.loads(read_limited(path, MAXIMUM_CONFIG_BYTES, InputError).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no TOML file", got=str(error), hint="see examples/experiments") from error
    experiment: Experiment = build_settings(Experiment, values, path.name)
    for method, settings in experiment.methods.items():
        method_settings(method, settings)
    for name in experiment.variants:
        method, own = experiment.resolve(name)
        method_settings(method, own.methods[method])
    return experiment
