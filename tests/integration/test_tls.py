"""TLS and WebSockets to a real mosquitto, with an authority of the test's own; each thing that can be wrong is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from protocol.broker_address import BrokerAddress, TlsFiles
from protocol.errors import BrokerUnreachableError, InputError, KeyFileError
from protocol.mqtt import Connection, Received
from tests.brokers import Broker, running
from tests.certificates import Authority

pytestmark = pytest.mark.broker
TOPIC = "fedtailor/v1/demo/all/down"


@dataclass
class Secure:
    """A broker with TLS, the authority behind it, and its address for a client that believes it."""

    authority: Authority
    address: BrokerAddress
    client: tuple[Path, Path]


def serve(folder: Path, settings: str = "", *, host: str = "127.0.0.1", days: int = 2, path: str | None = None) -> Iterator[Secure]:
    authority = Authority(folder)
    certificate, key = authority.issue("broker", host, days)
    lines = f"allow_anonymous true\ncafile {authority.certificate}\ncertfile {certificate}\nkeyfile {key}\n{settings}"
    with running(Broker("mosquitto", folder, lines)) as broker:
        address = BrokerAddress("127.0.0.1", broker.port, tls=True, path=path, files=TlsFiles(authority.certificate))
        yield Secure(authority, address, authority.issue("client"))


@pytest.fixture
def secure(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Secure]:
    yield from serve(tmp_path, **getattr(request, "param", {}))


def round_trip(address: BrokerAddress, size: int = 100_000) -> None:
    with Connection(address, "a", (TOPIC,)) as connection:
        connection.publish(TOPIC, bytes(size))
        assert connection.receive(10) == Received(TOPIC, bytes(size))


def refusal(address: BrokerAddress) -> str:
    with pytest.raises(BrokerUnreachableError) as caught, Connection(address, "a", (), 8.0):
        pass
    return caught.value.sentence()


@pytest.mark.parametrize("secure", [{}, {"settings": "protocol websockets", "path": "/mqtt"}], indirect=True, ids=["mqtts", "wss"])
def test_an_own_authority_is_believed(secure: Secure) -> None:
    round_trip(secure.address)


def test_websockets_without_tls(tmp_path: Path) -> None:
    with running(Broker("mosquitto", tmp_path, "protocol websockets\nallow_anonymous true")) as broker:
        round_trip(BrokerAddress("127.0.0.1", broker.port, path="/mqtt"))


def test_the_system_does_not_believe_an_own_authority(secure: Secure) -> None:
    sentence = refusal(replace(secure.address, files=TlsFiles()))
    assert "its certificate is not believed" in sentence
    assert "--ca" in sentence


def test_another_authority_of_the_same_name_is_not_believed(secure: Secure, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert "not believed" in refusal(replace(secure.address, files=TlsFiles(Authority(tmp_path / "other").certificate)))


@pytest.mark.parametrize("secure", [{"host": "another.example"}], indirect=True)
def test_a_certificate_for_another_host_is_refused(secure: Secure) -> None:
    assert "its certificate is not for 127.0.0.1" in refusal(secure.address)


@pytest.mark.parametrize("secure", [{"days": -1}], indirect=True)
def test_an_expired_certificate_is_refused(secure: Secure) -> None:
    assert "its certificate is not valid now" in refusal(secure.address)


def test_an_expired_authority_is_found_before_connecting(tmp_path: Path) -> None:
    files = TlsFiles(Authority(tmp_path, days=-1).certificate)
    with pytest.raises(InputError, match="whose time is over"), Connection(BrokerAddress("127.0.0.1", 1, tls=True, files=files), "a"):
        pass


def test_no_tls_there(tmp_path: Path) -> None:
    with running(Broker("mosquitto", tmp_path)) as broker:
        with pytest.raises(BrokerUnreachableError) as caught, Connection(BrokerAddress("127.0.0.1", broker.port, tls=True), "a", (), 2.0):
            pass
        assert "reset by peer" in caught.value.sentence() or "no TLS there" in caught.value.sentence()


@pytest.mark.parametrize("secure", [{"settings": "require_certificate true"}], indirect=True)
def test_a_client_certificate_is_shown_where_one_is_asked_for(secure: Secure) -> None:
    certificate, key = secure.client
    round_trip(replace(secure.address, files=replace(secure.address.files, certificate=certificate, key=key)))
    sentence = refusal(secure.address)
    assert "refuses this client's certificate" in sentence
    assert "--certificate" in sentence


def test_a_key_that_others_can_read_is_refused(secure: Secure) -> None:
    certificate, key = secure.client
    key.chmod(0o644)
    files = replace(secure.address.files, certificate=certificate, key=key)
    with pytest.raises(KeyFileError, match="can be read by others"), Connection(replace(secure.address, files=files), "a"):
        pass


def test_a_key_of_another_certificate_is_refused(secure: Secure) -> None:
    certificate, _ = secure.client
    _, key = secure.authority.issue("other")
    files = replace(secure.address.files, certificate=certificate, key=key)
    with pytest.raises(KeyFileError, match="is not the key of"), Connection(replace(secure.address, files=files), "a"):
        pass


def test_files_that_hold_nothing_of_the_kind(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(InputError, match="holds no certificate"), Connection(BrokerAddress("x", 1, tls=True, files=TlsFiles(empty)), "a"):
        pass
    with pytest.raises(InputError, match="go together"), Connection(BrokerAddress("x", 1, tls=True, files=TlsFiles(None, empty)), "a"):
        pass
    with pytest.raises(InputError, match="does not use TLS"):
        BrokerAddress("x", 1, files=TlsFiles(empty))
