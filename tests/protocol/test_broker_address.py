"""Broker URLs."""

from __future__ import annotations

import pytest

from protocol.broker_address import BrokerAddress, parse_broker
from protocol.errors import InputError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", BrokerAddress("broker", 1883)),
        ("mqtts://broker", BrokerAddress("broker", 8883, tls=True)),
        ("mqtt://10.0.0.1:1999/", BrokerAddress("10.0.0.1", 1999)),
        ("mqtt://[::1]:1883", BrokerAddress("::1", 1883)),
        ("mqtts://pi:p%40ss%2Fword@broker", BrokerAddress("broker", 8883, True, "pi", "p@ss/word")),
        ("mqtt://pi@broker", BrokerAddress("broker", 1883, False, "pi", None)),
    ],
)
def test_urls(url: str, address: BrokerAddress) -> None:
    assert parse_broker(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "broker",
        "broker:1883",
        "http://broker",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://b:0",
        "mqtt://b:99999",
        "mqtt://b:x",
        "mqtt://b/path",
    ],
)
def test_nonsense_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        parse_broker(url)


@pytest.mark.parametrize("url", ["mqtts://pi:secret@broker/path", "mqtts://pi:secret@broker:99999"])
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_broker(url)
    assert "secret" not in caught.value.sentence()
    address = parse_broker("mqtts://pi:secret@broker")
    assert "secret" not in f"{address} {address!r}"
