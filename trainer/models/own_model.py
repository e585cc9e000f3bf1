"""What a user's own model must keep to, so that it trains as a pure function of its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protocol.errors import InputError

RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
PROBE_SAMPLES = 2


def check_model(source: str, model: object, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model if it can be trained here.

    Args:
        source: Where it comes from, for messages.
        model: What the user's factory returned.
        sample_shape: Shape of one sample.
        classes: Number of classes C.

    Raises:
        InputError: It is no module, has no weights, keeps running statistics, draws random numbers, or its output for two
            samples is not (2, C).
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"{source} returned no model", expected="a torch.nn.Module", got=type(model).__name__)
    if next(model.parameters(), None) is None:
        raise InputError(f"the model of {source} has nothing to train", expected="at least one parameter", got="none")
    _refuse_hidden_state(source, model)
    _check_output(source, model, sample_shape, classes)
    return model


def _refuse_hidden_state(source: str, model: nn.Module) -> None:
    """Refuse what a step on plain weights can neither keep nor repeat."""
    for name, _ in model.named_buffers():
        if name.rpartition(".")[2] in RUNNING_STATISTICS:
            hint = "a local step is a pure function of the weights and cannot keep them: use torch.nn.GroupNorm"
            raise InputError(f"the model of {source} keeps running statistics", expected="no batch normalisation", got=name, hint=hint)
    for name, module in model.named_modules():
        if isinstance(module, DROPOUT) and module.p > 0:
            hint = "take the masks as inputs, as trainer/models/dropout.py describes, or set its probability to 0"
            raise InputError(f"the model of {source} draws random numbers", expected="no torch dropout", got=name, hint=hint)


def _check_output(source: str, model: nn.Module, sample_shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model whose output for two samples is not (2, C)."""
    expected = f"{(PROBE_SAMPLES, classes)} for samples {(PROBE_SAMPLES, *sample_shape)}"
    try:
        with torch.no_grad():
            output = model(torch.zeros(PROBE_SAMPLES, *sample_shape))  # (2, C)
    except Exception as error:  # a user's model may raise anything
        got = f"{type(error).__name__}: {error}"
        raise InputError(f"the model of {source} cannot take the samples", expected=expected, got=got) from error
    if not isinstance(output, Tensor) or output.shape != (PROBE_SAMPLES, classes):
        got = str(tuple(output.shape)) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"the model of {source} has the wrong output", expected=expected, got=got)
