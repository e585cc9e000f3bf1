"""One small network for each kind of layer whose gradient must survive the way to ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State

Loss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


class SelfAttention(nn.Module):
    """Attention over a sequence, by torch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, samples: Tensor) -> Tensor:
        attended: Tensor = self.attention(samples, samples, samples, need_weights=False)[0]
        return attended


class FusedAttention(nn.Module):
    """Attention by the fused function, whose gradient has no translation of its own."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.causal = causal

    def forward(self, samples: Tensor) -> Tensor:
        batch, length, _ = samples.shape
        query, key, value = self.qkv(samples).reshape(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return mixed.transpose(1, 2).reshape(batch, length, 8)


class Steps(nn.Module):
    """Rounds so coarsely that most windows hold equals, and lets gradients through as they come."""

    def forward(self, samples: Tensor) -> Tensor:
        return (2 * samples.detach()).floor() / 2 + (samples - samples.detach())


def after_convolution(*layers: nn.Module) -> nn.Sequential:
    """Return layers behind a convolution, so that the gradient of their input is used."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers)


def between_linear(layer: nn.Module) -> nn.Sequential:
    """Return a layer between two linear ones."""
    return nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 3))


IMAGE = (3, 10, 9)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear on sequences": (lambda: nn.Linear(6, 4), (5, 6)),
    "conv": (lambda: nn.Conv2d(3, 4, 3), IMAGE),
    "conv with stride and padding": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), IMAGE),
    "conv with stride that leaves pixels": (lambda: nn.Conv2d(3, 4, 3, stride=3), IMAGE),
    "conv in groups": (lambda: nn.Conv2d(3, 6, 3, groups=3, padding=1), IMAGE),
    "depthwise conv": (lambda: nn.Conv2d(3, 3, (3, 2), groups=3, stride=(2, 1), bias=False), IMAGE),
    "conv 1x1": (lambda: nn.Conv2d(3, 5, 1), IMAGE),
    "dilated conv": (lambda: nn.Conv2d(3, 4, 3, dilation=2, padding=(2, 1)), IMAGE),
    "conv behind conv": (lambda: after_convolution(nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2)), IMAGE),
    "conv in one dimension": (lambda: nn.Conv1d(3, 4, 3, stride=2), (3, 11)),
    "transposed conv": (lambda: nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), (3, 5, 4)),
    "transposed conv in groups": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 5, 4)),
    "transposed conv, padded by a stride": (lambda: after_convolution(nn.ConvTranspose2d(4, 2, 3, output_padding=1, dilation=2)), IMAGE),
    "transposed conv, padded by more": (
        lambda: after_convolution(nn.ConvTranspose2d(4, 2, 3, stride=(2, 1), padding=1, output_padding=(2, 2), dilation=3)),
        IMAGE,
    ),
    "transposed conv behind conv": (lambda: after_convolution(nn.ConvTranspose2d(4, 2, 3, stride=2)), IMAGE),
    "max pooling": (lambda: after_convolution(nn.MaxPool2d(2)), IMAGE),
    "max pooling that leaves a rim": (lambda: after_convolution(nn.MaxPool2d((3, 4))), IMAGE),
    "max pooling of equals": (lambda: after_convolution(nn.Tanh(), Steps(), nn.MaxPool2d(2)), IMAGE),
    "max pooling that overlaps": (lambda: after_convolution(nn.MaxPool2d(3, 2)), IMAGE),
    "max pooling that overhangs": (lambda: after_convolution(nn.MaxPool2d(3, ceil_mode=True)), IMAGE),
    "max pooling, spread": (lambda: after_convolution(nn.MaxPool2d(2, 2, dilation=2)), IMAGE),
    "max pooling with padding": (lambda: after_convolution(nn.MaxPool2d(3, 2, 1)), IMAGE),
    "average pooling": (lambda: after_convolution(nn.AvgPool2d(2)), IMAGE),
    "average pooling with padding": (lambda: after_convolution(nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)), IMAGE),
    "average pooling, counted": (lambda: after_convolution(nn.AvgPool2d(3, 2, 1, ceil_mode=True)), IMAGE),
    "average pooling, own divisor": (lambda: after_convolution(nn.AvgPool2d((3, 2), divisor_override=5)), IMAGE),
    "average pooling, own divisor, overhanging": (
        lambda: after_convolution(nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=5)),
        IMAGE,
    ),
    "average pooling, own divisor, padded": (
        lambda: after_convolution(nn.AvgPool2d(3, (2, 3), 1, ceil_mode=True, divisor_override=7)),
        IMAGE,
    ),
    "adaptive pooling": (lambda: after_convolution(nn.AdaptiveAvgPool2d((3, 2))), IMAGE),
    "global pooling": (lambda: after_convolution(nn.AdaptiveAvgPool2d(1), nn.Flatten()), IMAGE),
    "batch norm in training": (lambda: after_convolution(nn.BatchNorm2d(4, track_running_stats=False)), IMAGE),
    "frozen batch norm": (lambda: after_convolution(nn.BatchNorm2d(4).eval()), IMAGE),
    "layer norm": (lambda: between_linear(nn.LayerNorm(5)), (6,)),
    "group norm": (lambda: after_convolution(nn.GroupNorm(2, 4)), IMAGE),
    "instance norm": (lambda: after_convolution(nn.InstanceNorm2d(4, affine=True)), IMAGE),
    "attention": (SelfAttention, (5, 8)),
    "fused attention": (FusedAttention, (5, 8)),
    "causal attention": (lambda: FusedAttention(causal=True), (5, 8)),
    "relu": (lambda: between_linear(nn.ReLU()), (6,)),
    "relu6": (lambda: between_linear(nn.ReLU6()), (6,)),
    "leaky relu": (lambda: between_linear(nn.LeakyReLU()), (6,)),
    "prelu": (lambda: between_linear(nn.PReLU()), (6,)),
    "elu": (lambda: between_linear(nn.ELU()), (6,)),
    "gelu": (lambda: between_linear(nn.GELU()), (6,)),
    "gelu by tanh": (lambda: between_linear(nn.GELU("tanh")), (6,)),
    "silu": (lambda: between_linear(nn.SiLU()), (6,)),
    "mish": (lambda: between_linear(nn.Mish()), (6,)),
    "hardswish": (lambda: between_linear(nn.Hardswish()), (6,)),
    "hardsigmoid": (lambda: between_linear(nn.Hardsigmoid()), (6,)),
    "softplus": (lambda: between_linear(nn.Softplus()), (6,)),
    "tanh": (lambda: between_linear(nn.Tanh()), (6,)),
    "sigmoid": (lambda: between_linear(nn.Sigmoid()), (6,)),
}


def squared_error(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean squared error, a scalar."""
    return functional.mse_loss(outputs, batch["target"])


def distillation(temperature: float) -> Loss:
    """Return the divergence of softened probabilities from a teacher's, Hinton et al., arXiv 1503.02531."""

    def loss(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        ours = functional.log_softmax(outputs / temperature, 1)
        return functional.kl_div(ours, functional.softmax(batch["teacher"] / temperature, 1), reduction="batchmean") * temperature**2

    return loss


def gaussian_divergence(outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the divergence of diagonal Gaussians (mean, log variance) from the standard one, a scalar."""
    mean, log_variance = outputs[:, :2], outputs[:, 2:]
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


LOSSES: dict[str, Loss] = {
    "cross-entropy": lambda outputs, batch: functional.cross_entropy(outputs, batch["labels"]),
    "cross-entropy, summed": lambda outputs, batch: functional.cross_entropy(outputs, batch["labels"], reduction="sum"),
    "cross-entropy, smoothed": lambda outputs, batch: functional.cross_entropy(outputs, batch["labels"], label_smoothing=0.1),
    "cross-entropy, classes weighted": lambda outputs, batch: functional.cross_entropy(
        outputs, batch["labels"], weight=torch.tensor([1.0, 2.0, 3.0, 4.0])
    ),
    "cross-entropy, a label ignored": lambda outputs, batch: functional.cross_entropy(outputs, batch["labels"], ignore_index=2),
    "cross-entropy, each by itself": lambda outputs, batch: functional.cross_entropy(outputs, batch["labels"], reduction="none").max(),
    "distillation": distillation(4.0),
    "Gaussian divergence": gaussian_divergence,
    "squared error": lambda outputs, batch: functional.mse_loss(outputs, batch["teacher"]),
    "absolute error": lambda outputs, batch: functional.l1_loss(outputs, batch["teacher"]),
    "smooth absolute error": lambda outputs, batch: functional.smooth_l1_loss(outputs, batch["teacher"]),
    "binary cross-entropy": lambda outputs, batch: functional.binary_cross_entropy_with_logits(outputs, batch["teacher"].sigmoid()),
    "normalised features": lambda outputs, batch: functional.normalize(outputs, dim=1).pow(3).sum(),
}


def step_of(network: nn.Module, loss: Loss) -> LocalStep:
    """Return one step of gradient descent on all weights of a network."""

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        gradients, value = grad_and_value(lambda weights: loss(functional_call(network, weights, (batch["samples"],)), batch))(state)
        return {name: tensor - context["rate"] * gradients[name] for name, tensor in state.items()}, {"loss": value}

    return step


def weights_of(network: nn.Module) -> State:
    """Return a network's weights by name."""
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
