"""What to tell a person whose module cannot be exported: which operation it is, and what to use instead."""

from __future__ import annotations

import re

from protocol.errors import InputError

OPERATION = re.compile(r"(?:aten\.|prims\.|at::_ops::)([a-z0-9_]+)")

# The beginning of an operation's name -> what it belongs to, and what does the same and can be exported.
ADVICE = {
    "cdist": ("pairwise distances (cdist)", "squared differences written out: (a.unsqueeze(1) - b).square().sum(2)"),
    "pdist": ("pairwise distances (pdist)", "squared differences written out"),
    "lstm": ("an LSTM", "a convolution or attention over time"),
    "gru": ("a GRU", "a convolution or attention over time"),
    "rnn": ("a recurrent layer", "a convolution or attention over time"),
    "thnn_fused": ("a recurrent cell", "a convolution or attention over time"),
    "max_unpool": ("max unpooling", "a transposed convolution"),
    "fractional_max_pool": ("fractional pooling", "max or average pooling"),
    "ctc_loss": ("the CTC loss", "cross-entropy"),
    "grid_sampler": ("grid sampling", "resizing before the samples reach the model"),
    "upsample": ("resizing", "a transposed convolution, or resizing before the samples reach the model"),
    "fft": ("a Fourier transform", "a product with a constant matrix"),
    "linalg": ("matrix factorisation", "a product with a matrix computed beforehand"),
    "svd": ("singular values", "a product with a matrix computed beforehand"),
    "embedding_bag": ("an embedding bag", "an embedding and a mean over its axis"),
    "sort": ("sorting", "topk with a fixed number, or a mask"),
    "dropout": ("random numbers (dropout)", "random numbers as an input of the batch"),
    "bernoulli": ("random numbers (dropout)", "random numbers as an input of the batch"),
    "native_dropout": ("random numbers (dropout)", "random numbers as an input of the batch"),
    "rand": ("random numbers", "random numbers as an input of the batch"),
    "normal": ("random numbers", "random numbers as an input of the batch"),
    "max_pool3d": ("max pooling in three dimensions", "average pooling, or a convolution with a stride"),
    "avg_pool3d": ("average pooling in three dimensions", "a mean over axes, or a convolution with a stride"),
    "nonzero": ("a result whose size depends on values", "a mask and torch.where"),
    "masked_select": ("a result whose size depends on values", "a mask and torch.where"),
}


def cannot_export(what: str, error: BaseException) -> InputError:
    """Return the error that says which operation a module has that cannot be translated.

    Args:
        what: What was exported ("the training step").
        error: What the exporter, or the tracer, raised.
    """
    chain, texts = error, [str(error)]
    while (chain := chain.__cause__ or chain.__context__) is not None:  # type: ignore[assignment]
        texts.append(str(chain))
    found = next((match.group(1) for text in reversed(texts) if (match := OPERATION.search(text))), None)
    if found is None:
        hint = "write it without Python branches on values and without changing inputs in place"
        return InputError(f"{what} cannot be exported", got=str(error)[:500], hint=hint)
    kind, instead = next(
        (each for beginning, each in ADVICE.items() if found.lstrip("_").startswith(beginning)), (f"the operation {found}", None)
    )
    hint = f"use {instead}" if instead else "write it with operations of the table in docs/training-on-device.md"
    return InputError(f"{what} cannot be exported: it uses {kind}", got=f"aten.{found}", hint=hint)
