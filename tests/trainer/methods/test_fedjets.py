"""FedJets: warm-up, choice of experts and anchors, the step and the averages by hand, top-1 routing, export."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from export.graphs import to_onnx
from export.parity import check_parity
from protocol.errors import InputError
from tests.trainer.methods.by_hand import batches_of, logits_of, named
from tests.trainer.methods.small_federation import (
    COHORT,
    LOOP,
    SEED,
    WRITTEN,
    assert_close,
    assert_equal,
    bound,
    make_clients,
    train,
)
from trainer.aggregation import weighted_mean_by_slot
from trainer.engine.base import Engine, RoundKey
from trainer.methods.base import Context, State, Updates
from trainer.methods.fedjets_routing import choose_anchors, head_of
from trainer.methods.names import part_of


def features_of(common: State, samples: Tensor) -> Tensor:
    """The common expert's hidden units, each sample brought to mean 0 and variance 1."""
    x = samples.flatten(1).double() / 16.0
    hidden = (x @ common["1.layers.0.weight"].T + common["1.layers.0.bias"]).clamp(min=0)
    centred = hidden - hidden.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()


def scores_of(server: Context, gate: Context, samples: Tensor) -> Tensor:
    return features_of(part_of(server, "common."), samples) @ gate["gate.weight"].T + gate["gate.bias"]


def experts_of(state: Context, prefix: str, count: int) -> list[State]:
    return [{name: tensor[place] for name, tensor in part_of(state, prefix).items()} for place in range(count)]


@pytest.mark.parametrize("engine", [LOOP, COHORT], ids=["loop", "cohort"])
def test_the_warm_up_is_fedavg_and_experts_are_its_copies(engine: Engine) -> None:
    server = train(bound("fedjets", warmup_rounds=3), engine, make_clients()).server
    plain = train(bound("fedavg"), engine, make_clients()).server
    assert_equal(part_of(server, "common."), plain)
    for expert in experts_of(server, "experts.", 3):
        assert_equal(expert, plain)


def test_after_the_warm_up_the_common_expert_rests() -> None:
    clients, method = make_clients(), bound("fedjets")
    first = train(method, WRITTEN, clients, rounds=1)
    later = train(method, WRITTEN, clients, rounds=2, start=first)
    assert_equal(part_of(later.server, "common."), part_of(first.server, "common."))
    assert int(later.server["rounds_done"]) == 3


def test_the_gate_chooses_on_the_clients_data_and_an_anchor_gets_its_own_expert() -> None:
    method, clients = bound("fedjets"), make_clients()
    server = train(method, WRITTEN, clients, rounds=2).server
    assert sum(name.startswith("anchors.") for name in server) == 3
    for client in clients:
        state = method.choose_experts(method.downlink(server, client.device), client.samples, client.labels, method.context(server))
        shares = torch.softmax(scores_of(server, server, client.samples), dim=1).mean(0)
        own = server.get(f"anchors.{client.device}")
        ranked = sorted(range(3), key=lambda expert: -float(shares[expert] + (0 if own is None else own[expert])))
        assert state["choice"].tolist() == sorted(ranked[:2])
        assert own is None or int(own.argmax()) in state["choice"].tolist()
        for place, expert in enumerate(state["choice"].tolist()):
            assert_equal(experts_of(state, "chosen.", 2)[place], experts_of(server, "experts.", 3)[expert])


@pytest.mark.parametrize("device", ["client-0", "client-1", "client-2", "client-3"])
def test_the_step_by_hand(device: str) -> None:
    method, clients = bound("fedjets", anchor_weight=0.7, clip_norm=0.0), make_clients()
    client = next(each for each in clients if each.device == device)
    server = train(method, WRITTEN, clients, rounds=2).server
    state = method.choose_experts(method.downlink(server, device), client.samples, client.labels, method.context(server))
    samples, labels = batch = batches_of(client, 0)[0]
    after, metrics = method.routed_step(state, named(batch), method.context(server))
    trained = {name: tensor.clone().requires_grad_() for name, tensor in state.items() if name.startswith(("gate.", "chosen."))}
    scores = scores_of(server, trained, samples)
    own = torch.softmax(scores[:, state["choice"]], dim=1)
    first, second = (torch.softmax(logits_of(expert, samples), dim=1) for expert in experts_of(trained, "chosen.", 2))
    mixed = own[:, [0]] * first + own[:, [1]] * second
    loss = torch.nn.functional.nll_loss(mixed.log(), labels)
    anchor = server.get(f"anchors.{device}")
    tied = 0.0 if anchor is None else torch.nn.functional.cross_entropy(scores, anchor.argmax().expand(len(labels)))
    gradients = torch.autograd.grad(loss + 0.7 * tied, list(trained.values()))
    torch.testing.assert_close(metrics["loss"], loss.detach())
    expected = {name: tensor.detach() - 0.1 * slope for (name, tensor), slope in zip(trained.items(), gradients, strict=True)}
    assert_close({name: after[name] for name in expected}, expected, 1e-12)


def test_each_expert_is_the_mean_over_those_who_trained_it() -> None:
    method, clients = bound("fedjets", experts=4), make_clients((20, 13))
    server = train(method, WRITTEN, clients, rounds=1).server
    updates = WRITTEN.run_round(method, server, clients, RoundKey(SEED, 1)).updates
    after = method.aggregate(server, updates)
    sent = updates.state
    for expert in range(4):
        owners = [(place, row) for place in range(2) for row in range(2) if int(sent["choice"][place, row]) == expert]
        weights = torch.tensor([float([20, 13][place]) for place, _ in owners], dtype=torch.float64)
        for name, before in part_of(server, "experts.").items():
            rows = [sent[f"chosen.{name}"][place, row] for place, row in owners]
            mean = (
                before[expert] if not rows else torch.stack([w * row for w, row in zip(weights, rows, strict=True)]).sum(0) / weights.sum()
            )
            torch.testing.assert_close(after[f"experts.{name}"][expert], mean, rtol=0, atol=1e-12)


def test_a_mean_by_slot_leaves_what_nobody_sent() -> None:
    chunks = (
        {"w": torch.tensor([[[2.0], [4.0]]]), "slot": torch.tensor([[0, 2]])},
        {"w": torch.tensor([[[6.0], [8.0]]]), "slot": torch.tensor([[2, 3]])},
    )
    found = weighted_mean_by_slot(
        Updates(("a", "b"), chunks, torch.tensor([1, 3])), "slot", {"w": torch.tensor([[9.0], [9.0], [9.0], [9.0]])}
    )
    assert found["w"].flatten().tolist() == [2.0, 9.0, 5.5, 8.0]


def test_anchors_have_distinct_classes_and_do_not_depend_on_the_order() -> None:
    counts = {"a": [9, 1, 0], "b": [8, 2, 0], "c": [0, 9, 1], "d": [0, 0, 10], "e": [5, 5, 5]}
    tensors = {device: torch.tensor(each) for device, each in counts.items()}
    found = choose_anchors(tensors, 3, torch.float32)
    assert set(found) == {"a", "c", "d"}
    assert torch.equal(torch.stack([found[device] for device in sorted(found)]).sum(0), torch.ones(3))
    again = choose_anchors(dict(reversed(tensors.items())), 3, torch.float32)
    assert all(torch.equal(found[device], again[device]) for device in found)


def test_fewer_clients_than_experts_and_equal_mixes_make_one_anchor_each() -> None:
    assert choose_anchors({}, 3, torch.float32) == {}
    found = choose_anchors({"a": torch.tensor([1, 1]), "b": torch.tensor([2, 2])}, 3, torch.float32)
    assert {device: int(expert.argmax()) for device, expert in found.items()} == {"a": 0, "b": 1}


def test_each_sample_goes_to_the_expert_that_the_gate_puts_first() -> None:
    method, clients = bound("fedjets"), make_clients()
    server = train(method, WRITTEN, clients).server
    samples = torch.cat([client.samples for client in clients])
    first = scores_of(server, server, samples).argmax(1)
    assert len(first.unique()) > 1
    logits = torch.stack([logits_of(expert, samples) for expert in experts_of(server, "experts.", 3)])
    found = method.predictor(server, None)(samples)
    torch.testing.assert_close(found, logits[first, torch.arange(len(samples))], rtol=0, atol=1e-12)


def test_the_exported_classifier_passes_the_parity_gate() -> None:
    method, clients = bound("fedjets", torch.float32), make_clients()
    (part,) = method.parts(train(method, COHORT, clients).server)
    assert part.entry_point == "classify"
    assert check_parity(part, to_onnx(part), "1.19").label_agreement == 1.0


def test_a_model_without_a_linear_end_is_refused() -> None:
    with pytest.raises(InputError, match="ends in a linear layer"):
        head_of({"1.conv.weight": torch.zeros(3, 2, 1, 1), "1.conv.bias": torch.zeros(3)}, 3)
