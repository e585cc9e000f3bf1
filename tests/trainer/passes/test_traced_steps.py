"""Traced steps with every pass compute what the step as written computes, and touch nothing but the state they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State, Task
from trainer.methods.fedavg import FedAvg
from trainer.optimisation import sgd_step
from trainer.passes import drop_empty_operations, fuse_bias, fuse_descent, separate_outputs
from trainer.passes.memory import memory_of
from trainer.tracing import ACTIVE, cohort_step, trace_step

aten = torch.ops.aten
RATE: Context = {"learning_rate": torch.tensor(0.1, dtype=torch.float64)}
CLIENTS = 3
Case = tuple[LocalStep, State, Batch, Context]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def regression() -> Batch:
    return {"x": normal(8, 6), "y": normal(8, 4)}


def squares(predict: Callable[[State, Tensor], Tensor]) -> Callable[[State, Batch], Tensor]:
    return lambda state, batch: (predict(state, batch["x"]) - batch["y"]).square().mean()


def descent(loss: Callable[[State, Batch], Tensor], clip_norm: float = 0.0) -> LocalStep:
    return lambda state, batch, context: sgd_step(lambda own: loss(own, batch), state, context["learning_rate"], clip_norm)


def classifier(model: str, shape: tuple[int, ...], clip_norm: float) -> Case:
    method = FedAvg(model=model, clip_norm=clip_norm).bind(Task(shape, "uint8", 0.0, 255.0, ("a", "b", "c")), torch.float64)
    generator = torch.Generator().manual_seed(7)
    samples = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=generator)
    batch = {"samples": samples, "labels": torch.tensor([0, 1, 2, 1, 0, 2]), "weights": torch.tensor([1.0] * 5 + [0.0]).double()}
    return method.step, method.initial_state(1), batch, method.context({})


class Residual(nn.Module):
    """A hidden layer beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x + self.outer(torch.relu(self.inner(x))))
        return logits


def residual() -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = Residual().double()
    state = {name: tensor.detach() for name, tensor in network.named_parameters()}
    return descent(squares(lambda own, x: functional_call(network, own, (x,)))), state, regression(), RATE


def linear(clip_norm: float = 0.0) -> Case:
    return descent(squares(lambda own, x: x @ own["w"]), clip_norm), {"w": normal(6, 4)}, regression(), RATE


def two_factors(order: str, decayed: str) -> Case:
    """Each factor's gradient is a product with the other, so neither may be overwritten before both are made."""
    fit = squares(lambda own, x: x @ (own["u"] @ own["v"]))
    sizes = {"u": (6, 5), "v": (5, 4)}
    step = descent(lambda own, batch: fit(own, batch) + 0.1 * own[decayed].square().sum())
    return step, {name: normal(*sizes[name]) for name in order}, regression(), RATE


def used_twice() -> Case:
    step = descent(squares(lambda own, x: torch.relu(x @ own["w"]) @ own["w"] @ own["head"]))
    return step, {"w": normal(6, 6), "head": normal(6, 4)}, regression(), RATE


def read_after_update() -> Case:
    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = descent(squares(lambda own, x: x @ own["w"]))({"w": state["w"]}, batch, context)
        return {"w": after["w"], "moved": after["w"] - state["w"]}, metrics | {"size": state["w"].t().reshape(-1).sum()}

    return step, {"w": normal(6, 4), "moved": normal(6, 4)}, regression(), RATE


def untouched() -> Case:
    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = descent(squares(lambda own, x: x @ own["w"]))({"w": state["w"]}, batch, context)
        return {**state, **after}, metrics

    return step, {"idle": normal(3), "w": normal(6, 4), "count": torch.tensor([1, 2])}, regression(), RATE


def exchanged() -> Case:
    return (
        lambda state, batch, context: ({"a": state["b"], "b": state["a"]}, {"loss": state["a"].sum()}),
        {
            "a": normal(4),
            "b": normal(4) + 1,
        },
        regression(),
        RATE,
    )


def one_tensor_twice() -> Case:
    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        moved = state["w"] - context["learning_rate"] * (state["w"] + state["old"] + state["sent"].sum())
        return {"w": moved, "old": moved, "sent": context["anchor"], "seen": batch["y"]}, {"loss": moved.sum()}

    state = {"w": normal(4), "old": normal(4), "sent": normal(4), "seen": normal(8, 4)}
    return step, state, regression(), {**RATE, "anchor": normal(4)}


def losses_are_state() -> Case:
    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        return {"w": state["w"] - context["learning_rate"] * batch["y"].sum()}, {"loss": state["w"]}

    return step, {"w": normal(1).squeeze()}, regression(), RATE


def old_value_of_another() -> Case:
    """The second weight takes the first one's old value for its gradient."""

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        rate = context["learning_rate"]
        steps = {"a": rate * batch["y"], "b": rate * state["a"]}
        return {name: state[name] - steps[name] for name in ("a", "b")}, {"loss": batch["y"].sum()}

    return step, {"a": normal(8, 4), "b": normal(8, 4) + 1}, regression(), RATE


def own_rate() -> Case:
    """The rate is itself part of the state, and changes first."""

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        move = state["rate"] * batch["y"]
        return {"rate": state["rate"] - context["learning_rate"], "w": state["w"] - move}, {"loss": batch["y"].sum()}

    return step, {"rate": torch.tensor(0.3).double(), "w": normal(8, 4)}, regression(), RATE


def own_transpose() -> Case:
    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        moved = {"w": state["w"] - context["learning_rate"] * state["w"].t(), "v": state["v"] - state["v"].t()}
        return moved, {"loss": batch["y"].sum()}

    return step, {"w": normal(5, 5), "v": normal(5, 5) + 1}, regression(), RATE


def mixed_kinds() -> Case:
    """Counters become numbers, single numbers meet double ones, and a copy is written to."""

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        copy = torch.ops.aten.mul.Scalar(state["w"], 1)
        copy.add_(1)
        scaled = torch.ops.aten.mul.Scalar(state["count"], 1.0)
        after = {"count": state["count"] - 1, "half": state["half"] - 0.5 * batch["y"].float(), "w": copy * 2, "real": scaled / 2}
        return after, {"loss": state["w"].sum()}

    state = {"count": torch.tensor([3, 4]), "half": normal(8, 4).float(), "w": normal(4), "real": normal(2)}
    return step, state, regression(), RATE


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: classifier("mlp-6", (4, 4), 0.0),
    "mlp clipped": lambda: classifier("mlp-6-5", (4, 4), 0.5),
    "lenet-s": lambda: classifier("lenet-s", (16, 16), 0.0),
    "residual": residual,
    "linear": linear,
    "linear clipped": lambda: linear(0.01),
    "two factors, first decayed": lambda: two_factors("uv", "u"),
    "two factors, second decayed": lambda: two_factors("uv", "v"),
    "two factors in the other order": lambda: two_factors("vu", "v"),
    "used twice": used_twice,
    "read after update": read_after_update,
    "untouched": untouched,
    "exchanged": exchanged,
    "one tensor twice": one_tensor_twice,
    "losses are state": losses_are_state,
    "old value of another": old_value_of_another,
    "own rate": own_rate,
    "own transpose": own_transpose,
    "mixed kinds": mixed_kinds,
}


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def stacked(tensors: Any) -> dict[str, Tensor]:
    """Return slightly different tensors for each client, integers alike."""
    scales = [1.0, 0.9, 1.2]
    return {name: torch.stack([(scale * each).to(each.dtype) for scale in scales]) for name, each in tensors.items()}


def assert_near(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        torch.testing.assert_close(tensor, other[name], rtol=1e-12, atol=1e-12, msg=name)


def assert_own_memory(outputs: list[Tensor], foreign: list[Tensor]) -> None:
    """Compare where tensors lie: what comes out shares its memory with nothing else, and can be written to."""
    places = [tensor.untyped_storage().data_ptr() for tensor in outputs]
    assert len(set(places)) == len(places)
    assert not set(places) & {tensor.untyped_storage().data_ptr() for tensor in foreign}
    assert all(0 not in tensor.stride() for tensor in outputs)


def assert_three_steps_agree(step: LocalStep, traced: GraphModule, state: State, batch: Batch, context: Context) -> None:
    """Run both three times, each from what it gave before, and look at every input that neither may change."""
    kept = {"batch": copies(batch), "context": copies(context)}
    plain, own, losses = state, copies(state), []
    for _ in range(3):
        plain, expected = step(plain, batch, context)
        own, found = traced(own, batch, context)
        assert_own_memory([*own.values(), *found.values()], [*batch.values(), *context.values()])
        losses.append((expected, found))
    assert_near(plain, own)
    for expected, found in losses:
        assert_near(expected, found)  # still what they were, after later steps
    assert all(torch.equal(tensor, kept["batch"][name]) for name, tensor in batch.items())
    assert all(torch.equal(tensor, kept["context"][name]) for name, tensor in context.items())


@pytest.mark.parametrize("name", CASES)
def test_a_traced_step_computes_what_the_step_computes(name: str) -> None:
    step, state, batch, context = CASES[name]()
    assert_three_steps_agree(step, trace_step(step, state, batch, context), state, batch, context)


@pytest.mark.parametrize("name", [name for name in CASES if name != "mixed kinds"])  # whose copy vmap cannot write to
def test_a_traced_step_of_many_computes_what_the_step_computes(name: str) -> None:
    step, state, batch, context = CASES[name]()
    many, states, batches = cohort_step(step), stacked(state), stacked(batch)
    assert_three_steps_agree(many, trace_step(many, states, batches, context), states, batches, context)
    alone, _ = step({name: tensor[1] for name, tensor in states.items()}, {name: tensor[1] for name, tensor in batches.items()}, context)
    together, _ = many(states, batches, context)
    assert_near(alone, {name: tensor[1] for name, tensor in together.items()})


@pytest.mark.parametrize("name", ["mlp", "two factors, first decayed", "untouched"])
def test_clients_that_stopped_stay_as_they_are(name: str) -> None:
    step, state, batch, context = CASES[name]()
    many, states = cohort_step(step), stacked(state)
    batches = stacked(batch) | {ACTIVE: torch.tensor([True, False, True])}
    assert_three_steps_agree(many, trace_step(many, states, batches, context), states, batches, context)
    after, metrics = trace_step(many, states, batches, context)(copies(states), batches, context)
    for key, tensor in states.items():
        assert torch.equal(after[key][1], tensor[1]), key
    assert float(metrics["loss"][1]) == 0.0


@pytest.mark.parametrize("name", ["mlp", "lenet-s", "one tensor twice"])
def test_without_leave_the_state_is_not_written_to(name: str) -> None:
    step, state, batch, context = CASES[name]()
    before = copies(state)
    after, _ = trace_step(step, state, batch, context, in_place=False)(state, batch, context)
    assert all(torch.equal(tensor, before[key]) for key, tensor in state.items())
    assert_near(step(state, batch, context)[0], after)


def targets(graph: GraphModule) -> set[Any]:
    return {node.target for node in graph.graph.nodes}


@pytest.mark.parametrize(("many", "product"), [(False, aten.addmm_.default), (True, aten.baddbmm_.default)])
def test_plain_descent_of_a_linear_layer_is_one_product_into_the_weight(many: bool, product: Any) -> None:
    step, state, batch, context = linear()
    if many:
        step, state, batch = cohort_step(step), stacked(state), stacked(batch)
    graph = trace_step(step, state, batch, context)
    assert product in targets(graph)
    assert not targets(graph) & {aten.sub_.Tensor, aten.addcmul_.default}
    own = copies(state)
    place = own["w"].data_ptr()
    after, _ = graph(own, batch, context)
    assert after["w"].data_ptr() == place


@pytest.mark.parametrize("name", ["mlp", "mlp clipped", "lenet-s", "residual", "linear clipped"])
def test_descent_writes_every_weight_where_it_lies(name: str) -> None:
    step, state, batch, context = CASES[name]()
    own = copies(state)
    places = {key: tensor.data_ptr() for key, tensor in own.items()}
    after, _ = trace_step(step, state, batch, context)(own, batch, context)
    assert {key: tensor.data_ptr() for key, tensor in after.items()} == places


def test_what_is_read_later_is_left_alone() -> None:
    step, state, batch, context = read_after_update()
    own = copies(state)
    trace_step(step, state, batch, context)(own, batch, context)
    assert torch.equal(own["w"], state["w"])
    step, state, batch, context = own_transpose()
    own = copies(state)
    trace_step(step, state, batch, context)(own, batch, context)
    assert torch.equal(own["v"], state["v"])


# One pass at a time, on graphs made for it.


def graph_of(function: Callable[..., Any], *examples: Tensor) -> GraphModule:
    return make_fx(function)(*examples)


def test_empty_operations_go() -> None:
    def idle(x: Tensor) -> Tensor:
        viewed = x.view(3, 4).t().t().expand(3, 4)
        return aten.mul.Scalar(aten.transpose.int(aten.transpose.int(viewed, 0, -1), -1, 0), 1) + 1

    graph = graph_of(idle, normal(3, 4))
    drop_empty_operations(graph)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [aten.add.Tensor]
    assert torch.equal(graph(normal(3, 4)), normal(3, 4) + 1)


def test_operations_that_do_something_stay() -> None:
    def busy(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        turned = aten.transpose.int(aten.transpose.int(x, 0, 1), 1, 2)
        return turned, aten.mul.Scalar(count, 1.0), x.expand(2, 3, 4, 5), aten.mul.Scalar(x, 2)

    examples = normal(3, 4, 5), torch.tensor([1, 2])
    graph = graph_of(busy, *examples)
    drop_empty_operations(graph)
    for one, other in zip(busy(*examples), graph(*examples), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_bias_joins_its_product() -> None:
    def layer(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return bias + torch.bmm(left, right)

    examples = normal(2, 1, 5), normal(2, 3, 4), normal(2, 4, 5)
    graph = graph_of(layer, *examples)
    fuse_bias(graph)
    assert targets(graph) >= {aten.baddbmm.default}
    assert aten.bmm.default not in targets(graph)
    torch.testing.assert_close(graph(*examples), layer(*examples), rtol=1e-14, atol=1e-14)


def read_twice(bias: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    return product + bias, product * 2


def doubled(product: Tensor) -> Tensor:
    return product + product


@pytest.mark.parametrize(
    "layer",
    [
        lambda bias, left, right: (torch.bmm(left, right) + bias, torch.bmm(left, right)),
        lambda bias, left, right: read_twice(bias, torch.bmm(left, right)),
        lambda bias, left, right: torch.add(bias, torch.bmm(left, right), alpha=2),
        lambda bias, left, right: bias.float() + torch.bmm(left, right),
        lambda bias, left, right: bias[0] + torch.bmm(left, right),
        lambda bias, left, right: bias.expand(2, 3, 5)[None] + torch.bmm(left, right),
        lambda bias, left, right: doubled(torch.bmm(left, right)),
    ],
)
def test_other_sums_keep_their_values(layer: Callable[..., Any]) -> None:
    examples = normal(2, 1, 5), normal(2, 3, 4), normal(2, 4, 5)
    graph = graph_of(layer, *examples)
    fuse_bias(graph)
    torch.testing.assert_close(graph(*examples), layer(*examples), rtol=1e-12, atol=1e-12)


def test_two_descents_of_one_weight_are_left_alone() -> None:
    def step(weight: Tensor, gradient: Tensor) -> list[Tensor]:
        return [weight - gradient, weight - 2 * gradient]

    graph = graph_of(step, normal(4), normal(4))
    fuse_descent(graph, 1)
    own = normal(4)
    graph(own, normal(4))
    assert torch.equal(own, normal(4))


def test_memory_is_followed_through_views_and_pieces() -> None:
    def pieces(x: Tensor) -> Tensor:
        first, _ = x.t().split(2)
        values, _ = torch.max(x, dim=0)
        return first.sum() + values.sum()

    nodes = {str(node.target): node for node in graph_of(pieces, normal(3, 4)).graph.nodes}
    source = next(node for node in nodes.values() if node.op == "placeholder")
    assert memory_of(nodes["aten.split.Tensor"]) is source
    maximum = next(user for user in nodes["aten.max.dim"].users)
    assert memory_of(maximum) is maximum


def test_outputs_that_are_their_own_stay() -> None:
    graph = graph_of(lambda w, x: [w, x * 2, w.sum()], normal(4), normal(4))
    before = len(graph.graph.nodes)
    separate_outputs(graph, 1)
    assert len(graph.graph.nodes) == before
