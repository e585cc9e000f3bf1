"""What travels beside the numbers: every MQTT frame that a device sends for one update, counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.delivery import Settled
from protocol.messages import ParameterUpdate
from protocol.tensor_encodings import encode_tree
from protocol.topics import COORDINATOR
from tests.protocol.lossy import Pipe
from tests.protocol.samples import parameter_update
from tests.protocol.sides import Side, run

PUBACK_BYTES = 4  # of MQTT 5 without a reason, and of 3.1.1


def publish_bytes(topic: str, payload: bytes) -> int:
    """Return the size of a PUBLISH at QoS 1 in MQTT 5: name, packet number, no properties, payload (section 3.3)."""
    remaining = 2 + len(topic.encode()) + 2 + 1 + len(payload)
    digits = next(count for count in (1, 2, 3, 4) if remaining < 128**count)
    return 1 + digits + remaining


def sent_bytes(folder: Path, update: ParameterUpdate) -> int:
    """Return what a device sends until its update is accepted: its own messages, and PUBACK for what it receives."""
    pipe = Pipe(0)
    device, coordinator = Side("pi-1", folder / "device", pipe), Side(COORDINATOR, folder / "coordinator", pipe)
    device.deliverer.send(update, expires=pipe.clock() + 3600)
    run([device, coordinator], 3)
    assert device.of(Settled)[0].receipt.accepted
    heard = sum(packet.topic in device.port.topics for packet in coordinator.port.sent)
    return sum(publish_bytes(packet.topic, packet.payload) for packet in device.port.sent) + PUBACK_BYTES * heard


def layers(*shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {f"layer{place}.weight": generator.normal(size=shape).astype(np.float32) for place, shape in enumerate(shapes)}


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
@pytest.mark.parametrize("tensors", [1, 4])
def test_a_small_update_costs_at_most_700_bytes_more(tmp_path: Path, encoding: str, tensors: int) -> None:
    tree = encode_tree(layers(*[(10, 24)] * tensors), encoding)  # type: ignore[arg-type]  # from the list above
    raw = sum(tensor.nbytes for tensor in tree.values())
    update = parameter_update(round=1234, sample_count=12_345, encoding=encoding, metrics={"loss": 0.6931471805599453}, tensors=tree)
    overhead = sent_bytes(tmp_path, update) - raw
    assert overhead <= 700, f"{encoding}, {tensors} tensors"


@pytest.mark.parametrize("shapes", [[(25_600,)], [(64, 200), (64, 128), (64, 64), (10, 51)], [(32, 80)] * 10], ids=["1", "4", "10"])
def test_an_update_of_100_kilobytes_costs_at_most_two_hundredths_more(tmp_path: Path, shapes: list[tuple[int, ...]]) -> None:
    tree = layers(*shapes)
    raw = sum(tensor.nbytes for tensor in tree.values())
    total = sent_bytes(tmp_path, parameter_update(round=1234, sample_count=12_345, metrics={"loss": 0.6931471805599453}, tensors=tree))
    assert raw >= 100_000
    assert total <= 1.02 * raw
