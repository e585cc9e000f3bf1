"""Enrolled and revoked devices: the file, its rules, keys that must not get in, and the commands."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from protocol.console import ErrorGroup
from protocol.curve import has_prime_order
from protocol.enrolment import Enrolment, change
from protocol.errors import FedtailorError, InputError, KeyFileError, RevokedDeviceError, UnknownDeviceError
from protocol.keys import PUBLIC_PREFIX, SMALL_ORDER_Y, PrivateKey
from protocol.keys_cli import keys
from tests.protocol.test_signature_cases import BASE, ORDER, P, add, encode, recover_x, times

ONE, OTHER = PrivateKey(bytes(range(32))).public, PrivateKey(bytes(range(1, 33))).public
NOW = 1.7e9
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    root = ErrorGroup(commands={"keys": keys})
    return lambda *words: CliRunner().invoke(root, ["keys", *map(str, words), "--registry", "devices.json"])


def test_a_device_comes_goes_and_comes_back_with_another_key(tmp_path: Path) -> None:
    enrolment = Enrolment().with_key("pi-1", ONE, NOW)
    assert (enrolment.devices, enrolment.latest("pi-1").key) == (frozenset({"pi-1"}), ONE.hex)
    enrolment.check("pi-1")
    revoked = enrolment.without("pi-1", NOW + 1)
    assert revoked.devices == frozenset()
    with pytest.raises(RevokedDeviceError, match="revoked"):
        revoked.check("pi-1")
    again = revoked.with_key("pi-1", OTHER, NOW + 2)
    assert (again.devices, again.latest("pi-1").key) == (frozenset({"pi-1"}), OTHER.hex)
    again.save(tmp_path / "devices.json")
    assert Enrolment.open(tmp_path / "devices.json") == again


def test_a_revoked_key_never_comes_back() -> None:
    revoked = Enrolment().with_key("pi-1", ONE, NOW).without("pi-1", NOW)
    for device in ("pi-1", "pi-2"):
        with pytest.raises(KeyFileError, match="revoked"):
            revoked.with_key(device, ONE, NOW)


def test_a_key_belongs_to_one_device_and_a_device_has_one() -> None:
    enrolment = Enrolment().with_key("pi-1", ONE, NOW)
    assert enrolment.with_key("pi-1", ONE, NOW + 5) is enrolment
    with pytest.raises(KeyFileError, match="that of pi-1"):
        enrolment.with_key("pi-2", ONE, NOW)
    with pytest.raises(KeyFileError, match="another key"):
        enrolment.with_key("pi-1", OTHER, NOW)


@pytest.mark.parametrize("device", ["", "Pi", "coordinator", "a/b", "+", "#", "..", "a" * 65, "ä"])
def test_an_id_that_cannot_stand_in_a_topic_is_refused(device: str) -> None:
    with pytest.raises(InputError):
        Enrolment().with_key(device, ONE, NOW)


def test_what_was_never_enrolled_is_unknown() -> None:
    for ask in (Enrolment().latest, Enrolment().check, lambda device: Enrolment().without(device, NOW)):
        with pytest.raises(UnknownDeviceError):
            ask("pi-1")


def spelled(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


TORSION = (recover_x(2707385501144840649318225287225658788936804267575313519463743609750303402022, 0) or 0,
           2707385501144840649318225287225658788936804267575313519463743609750303402022)  # fmt: skip  # a point of order 8
WEAK = {
    **{f"small order {y % 1000} {sign}": spelled(y, sign) for y in SMALL_ORDER_Y for sign in (0, 1)},
    **{f"not canonical {extra} {sign}": spelled(P + extra, sign) for extra in range(19) for sign in (0, 1)},
    **{f"no point {y} {sign}": spelled(y, sign) for y in (2, 7, 8, P - 2) for sign in (0, 1)},
    **{f"mixed order {number}": encode(add(times(12345, BASE), times(number, TORSION))) for number in range(1, 8)},
    "the other sign of x = 0": spelled(1, 1),
    "all ones": b"\xff" * 32,
    "zeros": bytes(32),
}


@pytest.mark.parametrize("raw", WEAK.values(), ids=WEAK)
def test_weak_keys_do_not_get_in(run: Run, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "pi-1.pub").write_text(f"{PUBLIC_PREFIX}{raw.hex()}\n")
    result = run("enroll", "pi-1.pub")
    assert result.exit_code == 72, result.output
    assert not (tmp_path / "devices.json").exists()
    assert not has_prime_order(raw)


@pytest.mark.parametrize("scalar", [1, 2, 8, 12345, ORDER - 1])
def test_points_of_the_large_group_pass(scalar: int) -> None:
    assert has_prime_order(encode(times(scalar, BASE)))


def test_real_keys_pass() -> None:
    assert all(has_prime_order(PrivateKey(bytes([number]) * 32).public.raw) for number in range(20))
    assert not has_prime_order(ONE.raw[:31])


@pytest.mark.parametrize("content", ["", "nonsense", PUBLIC_PREFIX, PUBLIC_PREFIX + "00" * 31, PUBLIC_PREFIX + "zz" * 32, "x" * 2000])
def test_malformed_key_files_do_not_get_in(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "pi-1.pub").write_text(content)
    assert run("enroll", "pi-1.pub").exit_code == 72


ENTRY = {"device": "pi-1", "key": ONE.hex, "enrolled": 1.0, "revoked": None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps({"format": "fedtailor-registry/2", "devices": []}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": {}}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [], "more": 1}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [ENTRY, ENTRY]}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [{**ENTRY, "device": "../x"}]}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [{**ENTRY, "key": "00" * 32}]}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [ENTRY, {**ENTRY, "key": OTHER.hex}]}).encode(),
        json.dumps({"format": "fedtailor-registry/1", "devices": [ENTRY, {**ENTRY, "key": ONE.hex.upper(), "device": "pi-2"}]}).encode(),
    ],
)
def test_a_registry_that_makes_no_sense_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "devices.json").write_bytes(content)
    with pytest.raises(FedtailorError):
        Enrolment.open(tmp_path / "devices.json")
    with pytest.raises(FedtailorError):
        change(tmp_path / "devices.json", lambda before: before.with_key("pi-9", OTHER, NOW), create=True)
    assert (tmp_path / "devices.json").read_bytes() == content


def test_the_commands(run: Run, tmp_path: Path) -> None:
    ONE.save(tmp_path / "pi-1.pub")
    OTHER.save(tmp_path / "other.pub")
    assert run("enroll", "pi-1.pub").stdout == f"enrolled pi-1, fingerprint {ONE.fingerprint}\n"
    assert json.loads(run("enroll", "other.pub", "--id", "pi-2", "--json").stdout)["device"] == "pi-2"
    assert run("enroll", "other.pub", "--id", "pi-3").exit_code == 72
    assert "from the broker too" in run("revoke", "pi-1").stdout
    assert run("revoke", "pi-1").exit_code == 0  # again is no error: it is revoked
    assert run("revoke", "pi-7").exit_code == 71
    assert run("enroll", "pi-1.pub").exit_code == 72
    shown = json.loads(run("list", "--json").stdout)["devices"]
    assert [(each["device"], each["fingerprint"], each["revoked"] is None) for each in shown] == [
        ("pi-1", ONE.fingerprint, False),
        ("pi-2", OTHER.fingerprint, True),
    ]
    lines = run("list").stdout.splitlines()
    assert ("revoked" in lines[0], "revoked" in lines[1]) == (True, False)


def enroll_some(path: Path, first: int) -> None:
    for number in range(first, first + 10):
        key = PrivateKey(number.to_bytes(32, "big")).public
        change(path, partial(Enrolment.with_key, device=f"pi-{number}", key=key, now=NOW), create=True)


def test_processes_that_enrol_at_once_lose_nobody(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=enroll_some, args=(tmp_path / "devices.json", 100 * number)) for number in range(1, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(Enrolment.open(tmp_path / "devices.json").devices) == 30
    assert [path.name for path in tmp_path.iterdir()] == ["devices.json"]
