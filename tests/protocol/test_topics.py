"""Topic names come from one place, and nothing else can be smuggled into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InputError
from protocol.topics import COORDINATOR, CoordinatorRoutes, DeviceRoutes, Topics

TOPICS = Topics("demo")


def test_names() -> None:
    assert TOPICS.up("pi-17") == "fedtailor/v1/demo/devices/pi-17/up"
    assert TOPICS.down("pi-17") == "fedtailor/v1/demo/devices/pi-17/down"
    assert TOPICS.presence("pi-17") == "fedtailor/v1/demo/devices/pi-17/presence"
    assert TOPICS.any_up == "fedtailor/v1/demo/devices/+/up"
    assert TOPICS.prototypes == "fedtailor/v1/demo/all/prototypes"


@given(st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True))
def test_the_sender_is_read_back(device: str) -> None:
    assert TOPICS.sender(TOPICS.up(device)) == device


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "fedtailor/v1/demo/devices/pi-17/down",
        "fedtailor/v1/other/devices/pi-17/up",
        "fedtailor/v2/demo/devices/pi-17/up",
        "fedtailor/v1/demo/devices/pi-17/more/up",
        "fedtailor/v1/demo/devices//up",
        "fedtailor/v1/demo/devices/+/up",
        "fedtailor/v1/demo/devices/pi-17/up/",
        "/fedtailor/v1/demo/devices/pi-17/up",
    ],
)
def test_other_topics_have_no_sender(topic: str) -> None:
    assert TOPICS.sender(topic) is None


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "A", "a b", "a\n", "ä", "$SYS", "a" * 65, "a\0"])
def test_names_that_could_reach_other_topics_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        Topics(name)
    for build in (TOPICS.up, TOPICS.down, TOPICS.presence):
        with pytest.raises(InputError):
            build(name)


def test_names_of_the_fleet() -> None:
    assert TOPICS.channel == "fedtailor/v1/demo/channel"
    assert TOPICS.results == "fedtailor/v1/demo/all/down"
    assert TOPICS.any_presence == "fedtailor/v1/demo/devices/+/presence"
    assert TOPICS.present(TOPICS.presence("pi-17")) == "pi-17"
    assert TOPICS.present(TOPICS.up("pi-17")) is None


def test_a_device_hears_the_coordinator_alone() -> None:
    routes = DeviceRoutes(TOPICS, "pi-17")
    assert routes.topic_to(COORDINATOR) == TOPICS.up("pi-17")
    assert {routes.peer_of(topic) for topic in routes.subscriptions} == {COORDINATOR}
    assert routes.peer_of(TOPICS.down("pi-18")) is None
    assert routes.peer_of(TOPICS.up("pi-17")) is None
    with pytest.raises(InputError):
        routes.topic_to("pi-18")


def test_a_coordinator_knows_each_device_by_its_topics() -> None:
    routes = CoordinatorRoutes(TOPICS)
    assert routes.topic_to("pi-17") == TOPICS.down("pi-17")
    assert routes.peer_of(TOPICS.up("pi-17")) == "pi-17"
    assert routes.peer_of(TOPICS.presence("pi-17")) == "pi-17"
    assert routes.peer_of(TOPICS.down("pi-17")) is None
    assert routes.peer_of(TOPICS.channel) is None
