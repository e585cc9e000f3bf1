"""pFedES in both forms and the methods beside it, against closed forms and hand-written references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from protocol.errors import InputError
from tests.trainer.methods.small_federation import (
    COHORT,
    LOOP,
    SEED,
    TASK,
    assert_close,
    begin,
    bound,
    make_clients,
    settings_of,
    train,
    view_of,
)
from tests.trainer.methods.test_every_method import tiny_federation
from trainer.distillation import softened_divergence
from trainer.engine.base import RoundKey
from trainer.evaluation import evaluate
from trainer.methods.base import State
from trainer.methods.class_means import COUNTS, MEANS
from trainer.methods.names import part_of
from trainer.methods.proxy_averaging import capped_shares, clipped, moving_average, without_bias
from trainer.methods.unlike_method import LOCAL
from trainer.models.five_cnns import FIVE_CNNS
from trainer.models.proxies import PooledProxy, ShapePreservingProxy, StridedProxy
from trainer.models.registry import build_model
from trainer.models.small_cnn import ResidualCNN, SmallCNN
from trainer.models.split import SplitClassifier


def size(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


def local_of(private: dict[str, State]) -> dict[str, State]:
    return {device: {name: each for name, each in state.items() if name.startswith(LOCAL)} for device, state in private.items()}


def test_without_the_reverse_term_devices_are_bit_for_bit_alone() -> None:
    clients = make_clients()
    alone = train(bound("standalone", torch.float32), LOOP, clients, rounds=3)
    forward = train(bound("pfedes", torch.float32, reverse_weight=0.0), LOOP, clients, rounds=3)
    own, others = local_of(alone.private), local_of(forward.private)
    for device, state in own.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, others[device][name]), (device, name)


def test_the_reverse_term_begins_in_the_round_that_the_settings_name() -> None:
    clients = make_clients()
    alone, taught = (
        [train(each, LOOP, clients, rounds=rounds).private["client-0"]["local.0.head.weight"] for rounds in (2, 3)]
        for each in (bound("standalone"), bound("pfedes", reverse_from=2))
    )
    assert torch.equal(alone[0], taught[0])
    assert not torch.equal(alone[1], taught[1])


def test_the_global_proxy_is_the_mean_and_the_teacher_its_corrected_average() -> None:
    clients, method = make_clients(), bound("pfedes", decay=0.8)
    server, private, means = begin(method, clients), dict[str, State](), []
    for number in range(3):
        result = LOOP.run_round(method, server, clients, RoundKey(SEED, number), private)
        counts = result.updates.sample_counts.numpy()
        own = result.updates.state["proxy.layers.0.weight"].numpy()
        means.append(np.tensordot(counts / counts.sum(), own, 1))
        server, private = method.aggregate(server, result.updates), {**private, **result.private}
    np.testing.assert_allclose(server["proxy.layers.0.weight"].numpy(), means[-1], rtol=1e-12)
    powers = 0.8 ** np.arange(3)[::-1]
    expected = np.tensordot(powers / powers.sum(), np.array(means), 1)
    np.testing.assert_allclose(method.teacher(server)["layers.0.weight"].numpy(), expected, rtol=1e-10)
    assert {name.split(".")[0] for name in method.downlink(server, "client-0")} == {"proxy", "teacher"}
    assert method.sizes(server)["parameters"] == 2 * size(method.proxy)


def test_proxies_that_stay_at_home_send_nothing_and_differ() -> None:
    method = bound("pfedes", federated=False)
    states = train(method, COHORT, make_clients(), rounds=2)
    assert method.downlink(states.server, "client-0") == {}
    first, second = (states.private[f"client-{place}"]["proxy.layers.0.weight"] for place in (0, 2))
    assert not torch.equal(first, second)
    assert torch.equal(states.private["client-0"]["rounds_done"], torch.full((1,), 2.0, dtype=torch.float64))


def test_one_proxy_step_is_that_of_torch_on_the_paper_s_divergence() -> None:
    method, client = bound("pfedes", label_weight=0.5), make_clients()[0]
    server = begin(method, make_clients())
    state = method.downlink(server, client.device) | method.private_state(server, client.device)
    batch = {"samples": client.samples[:8], "labels": client.labels[:8]}
    after, metrics = method.proxy_step(state, batch, method.context(server))
    proxy = build_model("mlp-5", TASK.sample_shape, 3).double()
    proxy.load_state_dict(part_of(state, "proxy."))
    x = client.samples[:8].double() / 16
    logits = functional_call(method.networks[0], part_of(state, "local.0."), (x,))[1].detach()
    kl = nn.KLDivLoss(reduction="batchmean")(torch.log_softmax(proxy(x) / 4, 1), torch.softmax(logits / 4, 1)) * 16
    loss = kl + 0.5 * nn.CrossEntropyLoss()(proxy(x), batch["labels"])
    loss.backward()
    nn.utils.clip_grad_norm_(proxy.parameters(), 5.0)
    torch.optim.SGD(proxy.parameters(), lr=0.1, momentum=0.9).step()
    assert abs(float(metrics["loss"]) - float(loss.detach())) < 1e-9
    assert_close(part_of(after, "proxy."), {name: each.detach() for name, each in proxy.named_parameters()}, 1e-6)


def test_both_phases_of_the_paper_are_those_of_torch() -> None:
    method, client = bound("pfedes-paper", mu=0.3, clip_norm=0.0, momentum=0.0), make_clients()[1]
    server = begin(method, make_clients())
    state = method.downlink(server, client.device) | method.private_state(server, client.device)
    batch = {"samples": client.samples[:8], "labels": client.labels[:8]}
    local, proxy = SplitClassifier("mlp-5-4", TASK.sample_shape, 3, 4).double(), ShapePreservingProxy(TASK.sample_shape).double()
    local.load_state_dict(part_of(state, "local.1."))
    proxy.load_state_dict(part_of(state, "proxy."))
    x, cross_entropy = client.samples[:8].double() / 16, nn.CrossEntropyLoss()
    loss = 0.3 * cross_entropy(local(proxy(x).detach())[1], batch["labels"]) + 0.7 * cross_entropy(local(x)[1], batch["labels"])
    loss.backward()
    torch.optim.SGD(local.parameters(), lr=0.03).step()
    trained, metrics = method.step(state, batch, method.context(server))
    assert abs(float(metrics["loss"]) - float(loss.detach())) < 1e-9
    assert_close(part_of(trained, "local.1."), {name: each.detach() for name, each in local.named_parameters()}, 1e-9)
    assert torch.equal(trained["proxy.first.weight"], state["proxy.first.weight"])
    cross_entropy(local(proxy(x))[1], batch["labels"]).backward()
    torch.optim.SGD(proxy.parameters(), lr=0.03).step()
    after, _ = method.proxy_step(trained, batch, method.context(server))
    assert_close(part_of(after, "proxy."), {name: each.detach() for name, each in proxy.named_parameters()}, 1e-9)
    assert torch.equal(after["local.1.head.weight"], trained["local.1.head.weight"])


def test_the_paper_s_mean_is_over_the_selected_alone() -> None:
    clients, method = make_clients(), bound("pfedes-paper")
    server = begin(method, clients)
    result = LOOP.run_round(method, server, clients[:2], RoundKey(SEED, 0), {})
    own = result.updates.state["proxy.first.weight"]
    expected = (20 * own[0] + 13 * own[1]) / 33
    torch.testing.assert_close(method.aggregate(server, result.updates)["proxy.first.weight"], expected)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_capped_shares_add_up_and_keep_the_cap_and_the_order(counts: list[int], cap: float) -> None:
    shares = capped_shares(counts, cap)
    assert abs(sum(shares) - 1) < 1e-9
    assert max(shares) <= max(cap, 1 / len(counts)) + 1e-9
    below = [(share, count) for share, count in zip(shares, counts, strict=True) if share < cap - 1e-9]
    for share, count in below:  # whoever is not capped keeps the proportions
        assert abs(share * below[0][1] - count * below[0][0]) < 1e-6 * max(count, below[0][1])


def test_capped_shares_by_hand() -> None:
    assert capped_shares([90, 5, 5], 0.5) == pytest.approx([0.5, 0.25, 0.25])
    assert capped_shares([60, 30, 10], 0.4) == pytest.approx([0.4, 0.4, 0.2])
    assert capped_shares([8, 1], 0.3) == [0.5, 0.5]  # nothing else adds up to 1


def test_a_clipped_update_lies_at_the_limit_in_its_direction() -> None:
    start = {"a": torch.zeros(3), "b": torch.ones(2)}
    far = {"a": torch.full((3,), 10.0), "b": torch.full((2,), -9.0)}
    near = clipped(far, start, 5.0)
    moves = torch.cat([(near[name] - start[name]).flatten() for name in start])
    whole = torch.cat([(far[name] - start[name]).double().flatten() for name in start])
    assert float(moves.norm()) == pytest.approx(5.0)
    torch.testing.assert_close(moves, whole * (5 / whole.norm()))
    assert clipped(far, start, 0.0) is far


def test_the_corrected_average_of_equal_terms_is_the_term() -> None:
    average, term = {"w": torch.zeros(2, dtype=torch.float64)}, {"w": torch.tensor([3.0, -1.0])}
    for count in range(1, 5):
        average = moving_average(average, term, 0.9)
        torch.testing.assert_close(without_bias(average, 0.9, count)["w"], term["w"].double())


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_divergence_is_torch_s(temperature: float) -> None:
    target, logits = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    wanted = torch.softmax(target / temperature, 1)
    expected = nn.functional.kl_div(torch.log_softmax(logits / temperature, 1), wanted, reduction="batchmean") * temperature**2
    torch.testing.assert_close(softened_divergence(target, logits, temperature), expected)
    padded = softened_divergence(target, logits, temperature, torch.tensor([1.0, 1, 1, 1, 0, 0]))
    torch.testing.assert_close(padded, softened_divergence(target[:4], logits[:4], temperature))


def test_networks_have_the_published_sizes() -> None:
    five = [2_621_558, 1_815_142, 1_320_558, 1_060_358, 670_058]
    assert [size(FIVE_CNNS[f"cnn-{number}"]((3, 32, 32), 10)) for number in range(1, 6)] == five
    assert size(ShapePreservingProxy((3, 32, 32))) == 443
    assert size(ShapePreservingProxy((28, 28))) == 153
    assert size(StridedProxy((28, 28), 10)) == 43_338
    assert size(PooledProxy((3, 32, 32), 10)) == 29_002
    assert size(SmallCNN((28, 28), 64)) == 19_872
    assert ResidualCNN((3, 20, 17), 7)(torch.rand(2, 3, 20, 17)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (9,)])
def test_the_proxy_in_front_keeps_the_shape_and_stays_above_zero(shape: tuple[int, ...]) -> None:
    changed = ShapePreservingProxy(shape)(torch.randn(2, *shape))
    assert changed.shape == (2, *shape)
    assert (changed >= 0).all()


def test_global_class_means_are_those_of_all_samples_together() -> None:
    clients, method = make_clients(), bound("fedproto")
    server = begin(method, clients)
    result = LOOP.run_round(method, server, clients, RoundKey(SEED, 0), {})
    features = []
    for client in clients:
        own = local_of(dict(result.private))[client.device]
        features.append(method.local_outputs(own, client.samples)[0])
    outputs, labels = torch.cat(features), torch.cat([client.labels for client in clients])
    after = method.aggregate(server, result.updates)
    for each in range(3):
        torch.testing.assert_close(after[MEANS][each], outputs[labels == each].mean(dim=0))
        assert after[COUNTS][each] == (labels == each).sum()


def test_a_class_with_too_few_samples_is_not_told() -> None:
    method, client = bound("fedproto", minimum_count=10), make_clients((12,))[0]
    state = method.private_state(begin(method, [client]), client.device)
    told = method.tell(state, client.samples, client.labels, {})
    counts = torch.bincount(client.labels, minlength=3)
    assert torch.equal(told[COUNTS] > 0, counts >= 10)
    assert (told[MEANS][counts < 10] == 0).all()


def test_the_head_of_fedgh_takes_the_steps_of_torch() -> None:
    clients, method = make_clients(), bound("fedgh", server_steps=3)
    server = begin(method, clients)
    result = LOOP.run_round(method, server, clients, RoundKey(SEED, 0), {})
    head = nn.Linear(4, 3).double()
    head.load_state_dict(part_of(server, "head."))
    optimiser = torch.optim.SGD(head.parameters(), lr=0.03)
    means, counts = result.updates.state[MEANS].flatten(0, 1), result.updates.state[COUNTS].flatten()
    for _ in range(3):
        optimiser.zero_grad()
        losses = nn.functional.cross_entropy(head(means), torch.arange(3).repeat(4), reduction="none")
        ((losses * counts).sum() / counts.sum()).backward()
        optimiser.step()
    assert_close(part_of(method.aggregate(server, result.updates), "head."), {n: p.detach() for n, p in head.named_parameters()}, 1e-9)


def test_devices_get_architectures_in_turn_and_keep_them() -> None:
    method = bound("standalone")
    assert [method.group(f"client-{place:02d}") for place in range(4)] == ["mlp-6", "mlp-5-4", "mlp-6", "mlp-5-4"]
    assert method.group("camera") == method.group("camera")
    states = train(method, COHORT, make_clients(), rounds=1)
    assert {name.split(".")[1] for name in states.private["client-1"] if name.startswith(LOCAL)} == {"1"}


def test_a_vote_of_the_teacher_knows_the_device_s_classes() -> None:
    clients = make_clients()
    states = train(bound("pfedes"), LOOP, clients, rounds=2)
    own, mixed, teacher = (
        bound("pfedes", proxy_vote=share).predictor(states.server, view_of(clients[0], states.private["client-0"]))(clients[0].samples)
        for share in (0.0, 0.5, 1.0)
    )
    torch.testing.assert_close(mixed, (torch.log_softmax(own, 1) + teacher) / 2)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("standalone", {"architectures": ()}),
        ("standalone", {"momentum": 1.0}),
        ("pfedes", {"temperature": 0.0}),
        ("pfedes", {"weight_cap": 0.0}),
        ("pfedes", {"proxy_vote": 1.5}),
        ("pfedes-paper", {"mu": 0.6}),
        ("fedproto", {"minimum_count": 0}),
        ("fedgh", {"server_rate": float("nan")}),
        ("fd", {"temperature": float("inf")}),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(values))):
        settings_of(name, **values)


def test_a_network_with_dropout_is_refused_by_name() -> None:
    settings = settings_of("standalone", architectures=("cnn",))
    with pytest.raises(InputError, match=r"no dropout.*cnn"):
        settings.bind(TASK.__class__((28, 28), "uint8", 0.0, 255.0, ("a", "b")))


def test_the_evaluation_tells_the_groups_apart() -> None:
    federation = tiny_federation("standalone")
    plain = evaluate(federation.fit(1).trained, federation.data, federation.answers, federation.split).plain
    assert plain.groups == {
        "mlp-5-4": plain.participants["participant-01"],
        "mlp-6": pytest.approx((plain.participants["participant-00"] + plain.participants["participant-02"]) / 2),
    }
    alike = tiny_federation("fedavg")
    assert evaluate(alike.fit(1).trained, alike.data, alike.answers, alike.split).plain.groups == {}
