"""What a bundle store takes, refuses, trusts after a trial, and goes back to."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edge_runtime.store as store_module
import edge_runtime.store_rules as rules_module
from edge_runtime.bundle import Bundle
from edge_runtime.opened import opened_bundle
from edge_runtime.selftest import SelfTestReport, check_selftest
from edge_runtime.store import BundleStore, StoreSettings
from edge_runtime.store_journal import read_journal, write_journal
from protocol.errors import (
    BundleError,
    BundleFileError,
    BundleSignatureError,
    IncompatibleVersionError,
    NumericalError,
    RefusedBundleError,
    SampleShapeError,
    SelfTestError,
    StoreBusyError,
    StoreError,
)
from protocol.files import write_atomically
from protocol.keys import PrivateKey
from tests.edge_runtime.stores import computed_here
from tests.edge_runtime.tiny import golden, raw_samples, write_tiny
from tests.protocol.samples import sign_as
from tests.source_tree import ROOT

SETTINGS = StoreSettings(trial_uses=3, trial_seconds=0, wait_seconds=0.3)
MakeBundle = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, release_key: PrivateKey) -> MakeBundle:
    """Return a maker of bundles that differ in fields of their manifest."""

    def make_bundle(version: int = 1, **changes: object) -> Path:
        folder = tmp_path / "-".join(["bundle", str(version), *(f"{key}{value}" for key, value in changes.items())])
        return folder if folder.exists() else write_tiny(folder, release_key, "device", bundle_version=version, **changes)

    return make_bundle


@pytest.fixture
def open_store(tmp_path: Path, release_key: PrivateKey) -> Callable[..., BundleStore]:
    """Return an opener of the one store, as another process would open it."""

    def opened(settings: StoreSettings = SETTINGS, self_test: store_module.SelfTest = computed_here) -> BundleStore:
        return BundleStore(tmp_path / "store", release_key.public, settings, self_test)

    return opened


@pytest.fixture
def store(open_store: Callable[..., BundleStore]) -> BundleStore:
    return open_store()


def version_in_use(store: BundleStore) -> int:
    return store.current().manifest.bundle_version


def folders(store: BundleStore) -> set[str]:
    return {path.name for path in (store.path / "bundles").iterdir()}


def test_a_bundle_passes_every_state_in_order(store: BundleStore, make: MakeBundle) -> None:
    states: list[str] = []
    status = store.install(make(), states.append)
    assert states == ["offered", "staged", "verified", "tested", "trial"]
    assert status.state == "trial"
    assert status.journal.rollback_counter == 0
    assert status.journal.trial is not None
    assert 0 < status.journal.trial.worst_difference < 1e-4
    bundle = store.current()
    assert isinstance(bundle, Bundle)
    for _ in range(3):
        assert store.status().state == "trial"
        store.succeeded()
    assert store.status().state == "good"
    assert store.status().journal.rollback_counter == 1
    store.close()
    assert store.status().journal.good is not None


def test_the_self_test_of_a_real_child_reports_what_it_measured(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    reports: list[SelfTestReport] = []

    def noted(*arguments: object) -> SelfTestReport:
        reports.append(check_selftest(*arguments))  # type: ignore[arg-type]  # passed on as they come
        return reports[0]

    open_store(self_test=noted).install(make())
    (report,) = reports
    assert set(report.differences) == {"features", "embedding", "logits"}
    assert report.worst_difference == max(report.differences.values())
    assert 20e6 < report.peak_bytes < 200e6
    assert report.load_seconds > 0


def test_installing_what_is_in_use_does_nothing(store: BundleStore, make: MakeBundle) -> None:
    bundle, states = make(), list[str]()
    store.install(bundle)
    before = (store.path / "state.json").read_bytes()
    store.install(bundle, states.append)
    assert states == ["offered"]
    assert (store.path / "state.json").read_bytes() == before


def test_at_most_three_bundles_are_kept(store: BundleStore, make: MakeBundle) -> None:
    for version in range(1, 6):
        store.install(make(version))
        store.promote()
    store.install(make(6))
    journal = store.status().journal
    assert [stored.bundle_version for stored in journal.kept()] == [6, 5, 4]
    assert folders(store) == {stored.digest for stored in journal.kept()}


def test_a_bundle_that_computes_otherwise_is_bad_for_ever(store: BundleStore, make: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    store.install(make())
    monkeypatch.setattr("tests.edge_runtime.tiny.golden", lambda scope: golden(scope, 0.01))
    wrong = make(2)
    with pytest.raises(SelfTestError, match="other logits"):
        store.install(wrong)
    with pytest.raises(RefusedBundleError, match=r"failed here before.*other logits"):
        store.install(wrong)
    assert version_in_use(store) == 1
    assert len(folders(store)) == 1


def test_a_bundle_without_golden_samples_is_refused_but_not_called_bad(
    store: BundleStore, make: MakeBundle, release_key: PrivateKey
) -> None:
    bare = make()
    (bare / "selftest.safetensors").unlink()
    content = json.loads((bare / "manifest.json").read_bytes())
    del content["files"]["selftest.safetensors"]
    sign_as(bare, json.dumps(content).encode(), release_key)
    with pytest.raises(BundleFileError, match="no golden samples"):
        store.install(bare)
    assert not (store.path / "state.json").exists()  # nothing is noted against it


def test_each_unacceptable_bundle_is_refused_in_one_sentence(
    store: BundleStore, make: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.install(make(5))
    store.promote()
    before = (store.path / "state.json").read_bytes()
    altered = make(6)
    (altered / "README.md").write_text("unlisted")
    stranger = write_tiny(tmp_path / "stranger", PrivateKey.generate(), bundle_version=6)
    refused: list[tuple[Path, type[Exception], str]] = [
        (make(4), RefusedBundleError, "older than what ran here: expected version 5 or newer, got version 4"),
        (make(6, target="jetson-orin"), RefusedBundleError, "other hardware"),
        (make(6, expires=1_700_000_001), IncompatibleVersionError, "expired"),
        (make(6, minimum_onnxruntime="9.0"), IncompatibleVersionError, "too old"),
        (stranger, BundleSignatureError, "does not verify"),
        (altered, BundleError, "does not list"),
        (tmp_path / "nowhere", BundleFileError, "cannot be opened"),
    ]
    for bundle, kind, words in refused:
        with pytest.raises(kind, match=words) as caught:
            store.install(bundle)
        assert "\n" not in str(caught.value)
        assert (store.path / "state.json").read_bytes() == before
        assert len(folders(store)) == 1
    assert version_in_use(store) == 5


def test_hardware_groups(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    open_store().install(make(1, target=platform.machine()))
    open_store(StoreSettings(targets=("jetson",))).install(make(2, target="jetson"))


def test_the_counter_rises_only_when_a_bundle_is_good(store: BundleStore, make: MakeBundle) -> None:
    store.install(make(1))
    store.promote()
    store.install(make(9))
    assert store.status().journal.rollback_counter == 1
    store.reject("it is slow")
    store.install(make(2))  # older than the rejected one, newer than the good one
    store.promote()
    assert store.status().journal.rollback_counter == 2


def test_a_bundle_that_keeps_crashing_gives_way_to_the_good_one(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    open_store().install(make(1))
    open_store().promote()
    bad = make(2)
    open_store().install(bad)
    assert [version_in_use(open_store()) for _ in range(5)] == [2, 2, 2, 1, 1]  # never closed: each process crashed
    with pytest.raises(RefusedBundleError, match="did not end in order 3 times"):
        open_store().install(bad)


def test_starts_that_end_in_order_do_not_count_against_a_bundle(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    open_store().install(make(1))
    open_store().promote()
    open_store().install(make(2))
    for _ in range(3):
        store = open_store(StoreSettings(trial_uses=4, trial_seconds=0))
        assert version_in_use(store) == 2
        store.succeeded()
        store.close()
    trial = store.status().journal.trial
    assert trial is not None
    assert (trial.starts, trial.uses) == (0, 3)
    store.current()
    store.succeeded()
    assert store.status().state == "good"


def test_the_only_bundle_stays_on_trial_however_often_power_fails(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    open_store().install(make())
    assert [version_in_use(open_store()) for _ in range(6)] == [1] * 6
    assert open_store().status().state == "trial"


def test_a_trial_takes_its_time(store: BundleStore, open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    store.install(make())
    patient = open_store(StoreSettings(trial_uses=1, trial_seconds=0.2))
    patient.current()
    patient.succeeded(100)
    assert patient.status().state == "trial"
    time.sleep(0.25)
    patient.succeeded()
    assert patient.status().state == "good"


def test_uses_of_another_bundle_prove_nothing(open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    user, operator = open_store(), open_store()
    operator.install(make(1))
    user.current()
    operator.install(make(2))
    user.succeeded(100)
    user.close()
    trial = operator.status().journal.trial
    assert trial is not None
    assert (trial.bundle_version, trial.uses, trial.starts) == (2, 0, 0)


def test_rollback_by_hand(store: BundleStore, make: MakeBundle) -> None:
    with pytest.raises(StoreError, match="holds no bundle store"):
        store.rollback("no store yet")
    second = make(2)
    for bundle in (make(1), second):
        store.install(bundle)
        store.promote()
    assert store.rollback("it confuses cats").state == "good"
    assert version_in_use(store) == 1
    assert store.status().journal.rollback_counter == 2
    with pytest.raises(RefusedBundleError, match="confuses cats"):
        store.install(second)
    with pytest.raises(StoreError, match="no earlier bundle"):
        store.rollback("again")
    with pytest.raises(StoreError, match="on trial"):
        store.promote()
    with pytest.raises(StoreError, match="on trial"):
        store.reject("nothing there")


def damage_manifest(folder: Path) -> None:
    data = bytearray((folder / "manifest.json").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "manifest.json").write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "folder gone": shutil.rmtree,
    "file gone": lambda folder: (folder / "graphs" / "classify.onnx").unlink(),
    "signature gone": lambda folder: (folder / "manifest.sig").unlink(),
    "flipped bit": damage_manifest,
    "file emptied": lambda folder: (folder / "graphs" / "embed.onnx").write_bytes(b""),
    "file too many": lambda folder: (folder / "core").write_bytes(b"x"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bundle_gives_way_to_the_one_before(store: BundleStore, make: MakeBundle, damage: str) -> None:
    for version in (1, 2):
        store.install(make(version))
        store.promote()
    good = store.status().journal.good
    assert good is not None
    DAMAGE[damage](store.path / "bundles" / good.digest)
    assert version_in_use(store) == 1
    store.install(make(2))  # damaged by the disk, not bad
    assert version_in_use(store) == 2


def test_when_all_are_damaged_a_sentence_says_so_and_nothing_is_forgotten(store: BundleStore, make: MakeBundle) -> None:
    store.install(make())
    before = (store.path / "state.json").read_bytes()
    counted = before.replace(b'"starts": 0', b'"starts": 1')
    shutil.rmtree(store.path / "bundles")
    with pytest.raises(BundleFileError, match="cannot be opened"):
        store.current()
    assert (store.path / "state.json").read_bytes() == counted


def test_a_wrong_key_is_not_taken_for_damage(store: BundleStore, make: MakeBundle) -> None:
    for version in (1, 2):
        store.install(make(version))
        store.promote()
    with pytest.raises(BundleSignatureError):
        BundleStore(store.path, PrivateKey.generate().public).current()
    assert version_in_use(store) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b'{"format": "fedtailor-store/2"}'])
def test_a_damaged_memory_is_one_sentence(store: BundleStore, make: MakeBundle, content: bytes) -> None:
    store.install(make())
    (store.path / "state.json").write_bytes(content)
    for call in (store.current, store.status, store.promote, lambda: store.install(make(2))):
        with pytest.raises(StoreError, match=r"is damaged.*remove the store"):
            call()


def test_a_lost_memory_is_not_taken_for_a_new_store(store: BundleStore, make: MakeBundle) -> None:
    store.install(make())
    (store.path / "state.json").unlink()
    with pytest.raises(StoreError, match=r"lost its state\.json"):
        store.install(make())
    with pytest.raises(StoreError, match="holds no bundle store"):
        store.current()


def test_an_absent_store_is_one_sentence(store: BundleStore) -> None:
    for call in (store.current, store.status, store.promote):
        with pytest.raises(StoreError, match="edge install makes one"):
            call()
    assert not store.path.exists()


def test_a_clock_in_1970_still_refuses_what_had_expired(store: BundleStore, make: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    store.install(make(1, created=1_800_000_000))  # a signature vouches that it is at least 2027
    for module in (store_module, rules_module):
        monkeypatch.setattr(module.time, "time", lambda: 60.0)
    with pytest.raises(IncompatibleVersionError, match="expired"):
        store.install(make(2, expires=1_799_999_999))
    lasting = make(3, expires=1_800_000_500)
    store.install(lasting)
    store.promote()
    store.note_time(1_800_000_400)
    assert version_in_use(store) == 3
    store.note_time(1_800_000_501)
    store.note_time(5)  # never goes back
    with pytest.raises(IncompatibleVersionError, match="expired"):
        store.current()


def test_a_clock_that_runs_ahead_does_no_lasting_harm(store: BundleStore, make: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    store.install(make(1))
    store.promote()
    store.install(make(2, expires=int(time.time()) + 1000))
    store.promote()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: 9e9)
        assert version_in_use(store) == 1
    assert version_in_use(store) == 2


def test_a_read_only_store_goes_on_working(store: BundleStore, make: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (1, 2):
        store.install(make(version))
        store.promote()
    store.install(make(3))

    def refuse(path: Path, data: bytes, mode: int = 0o644) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("edge_runtime.store_journal.write_atomically", refuse)
    assert version_in_use(store) == 2  # a trial that cannot be counted is not begun
    store.succeeded()
    with pytest.raises(StoreError, match="Read-only file system"):
        store.promote()
    monkeypatch.setattr("edge_runtime.store_journal.write_atomically", write_atomically)
    assert version_in_use(store) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_one_sentence(make: MakeBundle, tmp_path: Path, release_key: PrivateKey) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(StoreError, match="Permission denied"):
        BundleStore(tmp_path / "closed" / "store", release_key.public).install(make())


def test_too_little_space_is_noticed_before_anything_is_written(
    store: BundleStore, make: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=4096)
    monkeypatch.setattr("edge_runtime.store_staging.shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match="not enough free space"):
        store.install(make())
    assert folders(store) == set()


HOLD = """
import sys, time
from pathlib import Path
from protocol.errors import StoreBusyError
from protocol.locks import locked_folder
with locked_folder(Path(sys.argv[1]), 1, StoreBusyError):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_waits_and_then_gives_up(store: BundleStore, open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    store.install(make())
    store.current()
    with hold(store.path, 60) as other:
        started = time.monotonic()
        with pytest.raises(StoreBusyError, match="is in use"):
            store.status()
        assert 0.3 <= time.monotonic() - started < 5
        started = time.monotonic()
        store.succeeded(100)  # a device's loop is never held up; the uses are counted with the next report
        assert time.monotonic() - started < 0.2
        other.kill()
    store.succeeded()
    assert store.status().state == "good"
    with hold(store.path, 0.3):
        assert open_store(StoreSettings(wait_seconds=30)).status().state == "good"


def test_an_installation_holds_nobody_up(store: BundleStore, open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    """While one thread's self-test takes its time, others open and decide; only a second installation has to wait."""
    store.install(make(1))
    testing, go_on = threading.Event(), threading.Event()

    def slow(*arguments: object) -> SelfTestReport:
        testing.set()
        assert go_on.wait(30)
        return computed_here(*arguments)  # type: ignore[arg-type]  # passed on as they come

    bundle = make(2)
    thread = threading.Thread(target=lambda: open_store(self_test=slow).install(bundle))
    thread.start()
    assert testing.wait(30)
    assert version_in_use(store) == 1
    store.promote()
    with pytest.raises(StoreBusyError):
        store.install(bundle)
    go_on.set()
    thread.join(30)
    assert version_in_use(store) == 2
    assert store.status().journal.rollback_counter == 1


def test_what_was_decided_during_a_self_test_counts(store: BundleStore, open_store: Callable[..., BundleStore], make: MakeBundle) -> None:
    store.install(make(9))

    def promoting(*arguments: object) -> SelfTestReport:
        store.promote()
        return computed_here(*arguments)  # type: ignore[arg-type]  # passed on as they come

    with pytest.raises(RefusedBundleError, match="older than what ran here"):
        open_store(self_test=promoting).install(make(2))
    assert version_in_use(store) == 9
    assert len(folders(store)) == 1


def test_a_store_stands_where_a_bundle_may(store: BundleStore, make: MakeBundle, release_key: PrivateKey) -> None:
    bundle = make()
    with opened_bundle(bundle, release_key.public) as opened:
        assert opened.path == bundle
    store.install(bundle)
    for error in (SampleShapeError("wrong"), NumericalError("NaN")):
        with pytest.raises(type(error)), opened_bundle(store.path, release_key.public):
            raise error
    with opened_bundle(store.path, release_key.public) as opened:
        assert opened.personalize(raw_samples(9)).predict(raw_samples(2)).shape == (2,)
    trial = store.status().journal.trial
    assert trial is not None
    assert (trial.starts, trial.uses) == (1, 1)  # only the numbers counted against it


def test_a_store_without_a_key_opens_nothing(store: BundleStore, make: MakeBundle) -> None:
    store.install(make())
    keyless = BundleStore(store.path, None)
    assert keyless.promote().state == "good"
    with pytest.raises(StoreError, match="needs a trusted key"):
        keyless.current()


def test_bad_bundles_are_remembered_in_bounds(store: BundleStore, make: MakeBundle) -> None:
    journal = store.install(make()).journal
    stored = journal.trial
    assert stored is not None
    rng = np.random.default_rng(0)
    for _ in range(1010):
        journal = journal.condemned(replace(stored, digest=rng.bytes(32).hex()), "x" * 300)
    assert len(journal.bad) == 1000
    write_journal(store.path, journal)
    assert read_journal(store.path) == journal
