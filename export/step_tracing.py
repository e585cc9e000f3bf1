"""A local step, its gradients included, as a traced program with a free batch axis.

``torch.onnx.export`` cannot look through ``torch.func.grad``; ``make_fx`` can. It records what a step does to fake tensors
whose first batch axis is a symbol, so nothing of the example's size is left in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from export.advice import cannot_export
from export.decompositions import DECOMPOSITIONS
from protocol.errors import FedtailorError, InputError
from trainer.methods.base import Batch, Context, LocalStep, State

STATE, NEXT_STATE, BATCH, CONTEXT, METRICS = "state.", "next_state.", "batch.", "context.", "metrics."


@dataclass(frozen=True, eq=False)
class StepExample:
    """What a step is traced with, and tried with.

    Attributes:
        state: Tensors that the step replaces.
        batch: Tensors that change with every step; the first axis of each is the batch axis B, at least 2, and free in the graph.
        context: Tensors that the step reads only.
    """

    state: State
    batch: Batch
    context: Context

    def __post_init__(self) -> None:
        """Refuse a batch that cannot stand for others."""
        sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in self.batch.values()}
        if len(sizes) != 1 or min(sizes) < 2:
            got = {name: tuple(tensor.shape) for name, tensor in self.batch.items()}
            raise InputError("the example batch is wrong", expected="tensors with the same first axis, at least 2 long", got=got)

    @property
    def batch_size(self) -> int:
        """Return the number of rows B of the example batch."""
        return next(iter(self.batch.values())).shape[0]

    def inputs(self) -> dict[str, Tensor]:
        """Return all tensors by their name in the graph."""
        trees: tuple[tuple[str, Mapping[str, Tensor]], ...] = ((STATE, self.state), (BATCH, self.batch), (CONTEXT, self.context))
        return {prefix + name: tensor.detach() for prefix, tree in trees for name, tensor in tree.items()}


@dataclass(frozen=True, eq=False)
class TracedStep:
    """A step as a program of tensors in order.

    Attributes:
        program: Takes the inputs and returns the outputs, positionally.
        inputs: Names in order.
        outputs: Names in order.
    """

    program: GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def trace_for_export(step: LocalStep, example: StepExample) -> TracedStep:
    """Return a step with its gradients written out in operations that the exporter translates.

    Raises:
        InputError: The step loses part of the state, or only works for one batch size.
    """
    inputs = example.inputs()
    outputs: list[str] = []

    def positional(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(inputs, tensors, strict=True))
        after, metrics = step(*({n.removeprefix(p): t for n, t in given.items() if n.startswith(p)} for p in (STATE, BATCH, CONTEXT)))
        if after.keys() != example.state.keys():
            raise InputError("the step changes which tensors its state holds", expected=sorted(example.state), got=sorted(after))
        named = {NEXT_STATE + name: after[name] for name in example.state} | {METRICS + name: metrics[name] for name in sorted(metrics)}
        outputs[:] = named
        return tuple(named.values())

    environment = ShapeEnv()
    fakes = _fake_tensors(inputs, environment)
    with _PlainLinear(), sdpa_kernel(SDPBackend.MATH):  # the fused attention has no translation of its gradient
        try:
            program = make_fx(positional, tracing_mode="symbolic", decomposition_table=DECOMPOSITIONS)(*fakes)
        except FedtailorError:
            raise
        except Exception as error:  # whatever torch raises where an operation cannot be followed
            raise cannot_export("the training step", error) from error
    if environment.replacements:
        raise InputError(
            "the step only works for the batch size of its example",
            expected="sizes read as tensor.shape[0]",
            got="a size that became a plain number, by len() or by a condition on it",
            hint="use tensor.shape[0] instead of len(tensor), and no Python branch on sizes",
        )
    return TracedStep(program, tuple(inputs), tuple(outputs))


class _PlainLinear(TorchFunctionMode):
    """Writes a linear layer of more than two axes as a product and a sum: torch's own fast path for those reads sizes as numbers."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the one function, and call the others."""
        if function is torch.nn.functional.linear and args[0].dim() > 2:
            samples, weight, bias = (*args, *(kwargs or {}).values(), None)[:3]  # (B, *, I), (O, I), (O,)
            product = torch.matmul(samples, weight.transpose(0, 1))  # (B, *, O)
            return product if bias is None else product + bias
        return function(*args, **(kwargs or {}))


def _fake_tensors(inputs: Mapping[str, Tensor], environment: ShapeEnv) -> list[Tensor]:
    """Return stand-ins without data: the first axis of what belongs to the batch is one common symbol."""
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes: list[Tensor] = []
    for name, tensor in inputs.items():
        kinds = [DimDynamic.DUCK if name.startswith(BATCH) and axis == 0 else DimDynamic.STATIC for axis in range(tensor.dim())]
        free: Any = StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=[None] * tensor.dim())
        fakes.append(mode.from_tensor(tensor.cpu().clone(), symbolic_context=free))
    return fakes
