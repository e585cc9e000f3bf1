"""The extractor of HyperFedZero: sample -> point on the simplex that tells the distribution it comes from.

NoisyEmbed: e = softmax(f(x) + z * softplus(noisy(x))), z standard normal in training and zero in deployment. Without
the layer norm and the temperature in front of the softmax, embeddings collapse to one constant; the two penalties
guard against the other trivial solutions (Zhou et al., arXiv 2508.12673, Eq. 3 to 7; load balancing after Shazeer et
al., "Outrageously large neural networks", ICLR 2017).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from trainer.methods.checks import check_at_least, check_positive

SMALLEST_POOLED_SIDE = 16


@dataclass(frozen=True)
class ExtractorSize:
    """Sizes of the extractor.

    Attributes:
        hidden: Units of the hidden layer; their activations are the features that prototypes are made of.
        embedding: Length E of the embedding.
        temperature: Divides the normalised logits before the softmax.
        pool: Side of the squares of pixels that are averaged first, where samples are images large enough: the class mix
            shows in coarse images too, at a fraction of the weights. 1 for none.
    """

    hidden: int = 32
    embedding: int = 16
    temperature: float = 0.5
    pool: int = 1

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work."""
        check_at_least("extractor.hidden", self.hidden, 1)
        check_at_least("extractor.embedding", self.embedding, 2)
        check_positive("extractor.temperature", self.temperature)
        check_at_least("extractor.pool", self.pool, 1)


def can_pool(sample_shape: Sequence[int], pool: int) -> bool:
    """Tell whether samples are grey images, both sides divisible by ``pool`` and at least 16."""
    return len(sample_shape) == 2 and all(side >= SMALLEST_POOLED_SIDE and side % pool == 0 for side in sample_shape)


def average_squares(x: Tensor, side: int) -> Tensor:
    """Return images (B, height, width) with each ``side`` x ``side`` square averaged.

    Strided sums: several times faster than reductions over short axes, and plain slices and additions in a graph.
    """
    rows = sum_of([x[:, row::side] for row in range(side)])  # (B, height / side, width)
    return sum_of([rows[:, :, column::side] for column in range(side)]) / side**2


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    return functools.reduce(torch.add, tensors)


class DistributionExtractor(nn.Module):
    """f and noisy of HyperFedZero.

    Args:
        sample_shape: Shape of one sample.
        size: Sizes of the networks.
        with_noise: Whether the noise network exists; it reads the features, so it costs few parameters.
    """

    def __init__(self, sample_shape: Sequence[int], size: ExtractorSize, with_noise: bool) -> None:
        super().__init__()
        hidden, embedding = size.hidden, size.embedding
        self.pool = size.pool if can_pool(sample_shape, size.pool) else 1
        self.hidden = nn.Linear(math.prod(sample_shape) // self.pool**2, hidden)
        self.project = nn.Linear(hidden, embedding)
        self.normalise_logits = nn.LayerNorm(embedding, elementwise_affine=False)
        self.noisy = nn.Linear(hidden, embedding) if with_noise else None
        self.temperature = size.temperature

    def features(self, x: Tensor) -> Tensor:
        """Return the hidden activations (B, D) of normalised samples (B, *shape)."""
        if self.pool > 1:
            x = average_squares(x, self.pool)  # (B, height / pool, width / pool)
        return torch.relu(self.hidden(x.flatten(1)))  # (B, D)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return embeddings (B, E) on the simplex.

        Args:
            x: Normalised samples, (B, *shape).
            noise: Standard normal numbers, (B, E); None switches the noise off, as in deployment.
        """
        features = self.features(x)  # (B, D)
        logits = self.normalise_logits(self.project(features)) / self.temperature  # (B, E)
        if noise is not None and self.noisy is not None:
            logits = logits + noise * softplus(self.noisy(features))  # (B, E)
        return torch.softmax(logits, dim=1)  # (B, E)


def balancing_penalty(embeddings: Tensor) -> Tensor:
    """Return the squared coefficient of variation of how much each dimension is used, a scalar.

    With the mean use u over the batch it is var(u) / mean(u)^2, population variance: 0 when all dimensions are used
    alike, E - 1 when one dimension takes everything, whatever the batch size.

    Args:
        embeddings: (B, E) on the simplex.
    """
    use = embeddings.mean(dim=0)  # (E,)
    return use.var(correction=0) / use.mean().square()


def embedding_entropy(embeddings: Tensor) -> Tensor:
    """Return the mean entropy of the samples' embeddings in nats, a scalar from 0 (peaked) to ln E (uniform).

    Args:
        embeddings: (B, E) on the simplex.
    """
    entropy: Tensor = torch.special.entr(embeddings).sum(dim=1).mean()
    return entropy
