"""Models by name: the built-in ones, and a user's own as ``module:factory``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from protocol.errors import InputError
from trainer.models.benchmark_cnn import BenchmarkCNN
from trainer.models.factories import call_factory
from trainer.models.five_cnns import FIVE_CNNS
from trainer.models.lenet import LeNet, SmallLeNet
from trainer.models.mixer import MlpMixer
from trainer.models.mlp import MLP
from trainer.models.own_model import check_model
from trainer.models.proxies import PooledProxy, StridedProxy
from trainer.models.resnet import ResNet
from trainer.models.small_cnn import ResidualCNN, SmallCNN
from trainer.models.vit import VisionTransformer
from trainer.models.zenkenet import ZenkeNet

Builder = Callable[..., nn.Module]


def _mlp(sample_shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> MLP:
    """Return the multilayer perceptron with the arguments in the order that builders have."""
    return MLP(sample_shape, hidden, classes)


BUILDERS: Mapping[str, Builder] = {
    "cnn": BenchmarkCNN,
    "lenet": LeNet,
    "lenet-s": SmallLeNet,
    "mlp": _mlp,
    "mixer": MlpMixer,
    "mixer-tiny": partial(MlpMixer, patch=7, dimension=48, depth=3),
    "mixer_b16_224": partial(MlpMixer, patch=16, dimension=768, depth=12),
    "proxy-pooled": PooledProxy,
    "proxy-strided": StridedProxy,
    "residual-cnn": ResidualCNN,
    "small-cnn": SmallCNN,
    "vit": VisionTransformer,
    "vit-tiny": partial(VisionTransformer, patch=7, dimension=48, depth=3, heads=4, mlp_ratio=2, pool="mean"),
    "vit_base_patch16_224": partial(VisionTransformer, patch=16, dimension=768, depth=12, heads=12),
    "zenkenet": ZenkeNet,
    **FIVE_CNNS,
}
MLP_NAME = re.compile(r"mlp((?:-[1-9][0-9]{0,6})+)")
RESNET_NAME = re.compile(r"resnet([1-9][0-9]{0,3})")
KNOWN_NAMES = f"{', '.join(BUILDERS)}, mlp-<units>-<units>, resnet20 (any 6n + 2), or your own as module:factory"


def build_model(name: str, sample_shape: Sequence[int], classes: int, **sizes: object) -> nn.Module:
    """Return a freshly drawn model: normalised samples (B, *shape) -> logits (B, C).

    Args:
        name: A key of ``BUILDERS``, ``mlp-<h1>-<h2>``, ``resnet20`` and other depths 6n + 2,
            or ``module:factory``, which is called as ``factory(sample_shape, classes)``.
        sample_shape: Shape of one sample; images have their channels first, grey ones may have none.
        classes: Number of classes C.
        **sizes: Other sizes of a built-in model than its defaults, by the names of its arguments.

    Raises:
        InputError: No such model, sizes it does not have, samples it cannot take, or an own model that does not fit.
    """
    if classes < 1 or not sample_shape or min(sample_shape) < 1:
        raise InputError("a model needs samples and classes", expected="positive sizes", got=f"{tuple(sample_shape)}, {classes} classes")
    if ":" in name:
        if sizes:
            raise InputError("an own model takes no sizes", expected="none", got=sorted(sizes), hint=f"set them inside {name}")
        model = call_factory(name, tuple(sample_shape), classes)
        return check_model(name, model, tuple(sample_shape), classes)
    builder = _named(name)
    _check_sizes(name, builder, sizes)
    return builder(sample_shape, classes, **sizes)


def _named(name: str) -> Builder:
    """Return the builder of a built-in model, with what its name says already filled in."""
    if match := MLP_NAME.fullmatch(name):
        return partial(_mlp, hidden=tuple(int(units) for units in match[1].split("-")[1:]))
    if match := RESNET_NAME.fullmatch(name):
        return partial(ResNet, depth=int(match[1]))
    if name not in BUILDERS:
        raise InputError("model is unknown", expected=KNOWN_NAMES, got=name)
    return BUILDERS[name]


def _check_sizes(name: str, builder: Builder, sizes: Mapping[str, object]) -> None:
    """Refuse sizes that the model does not have, or that are of another kind than the default."""
    parameters = inspect.signature(builder).parameters
    filled = set(builder.keywords) if isinstance(builder, partial) else set()
    own = [each for each in parameters if each not in {"sample_shape", "classes"} | filled]
    for size, value in sizes.items():
        if size not in own:
            raise InputError(f"{name} has no size {size!r}", expected=" or ".join(own) or "no size at all", got=size)
        default = parameters[size].default
        if not _same_kind(value, default):
            raise InputError(f"size {size!r} of {name} is wrong", expected=f"a value such as {default!r}", got=repr(value))


def _same_kind(value: Any, default: object) -> bool:
    """Tell whether a size can stand where the default stood; numbers must be positive."""
    if isinstance(default, tuple):
        lengths_agree = len(default) == 1 or not isinstance(value, Sequence) or len(value) == len(default)
        return isinstance(value, Sequence) and not isinstance(value, str) and lengths_agree and all(_same_kind(each, 1) for each in value)
    if type(default) is int:
        return type(value) is int and value >= 1
    return type(value) is type(default)
