"""Each integration test runs on every broker we know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import Broker, running


@pytest.fixture(scope="module", params=["amqtt", "mosquitto"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "amqtt":
        pytest.importorskip("amqtt", reason='needs amqtt: pip install "fedtailor[broker]"')
    return request.param


@pytest.fixture(scope="module")
def broker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(Broker(kind, tmp_path_factory.mktemp("broker"))) as started:
        yield started
