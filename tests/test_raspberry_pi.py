"""The Raspberry Pi example: its README line by line, its program under a stand-in for systemd, its unit under systemd's own check."""

from __future__ import annotations

import configparser
import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime.store import BundleStore
from protocol.keys import PrivateKey
from tests.edge_runtime.stores import computed_here
from tests.edge_runtime.tiny import raw_samples, write_tiny
from tests.source_tree import ROOT

EXAMPLE = ROOT / "examples" / "raspberry_pi"
PROGRAM = EXAMPLE / "camera_loop.py"
UNIT = EXAMPLE / "fedtailor-camera.service"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_every_line_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    for name in ("camera_loop.py", "make_pictures.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    for line in "".join(text for kind, text in BLOCKS if kind == "console").splitlines():
        result = subprocess.run(
            ["bash", "-euc", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=300
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    assert "version 1" in result.stdout
    assert "confuses 3 and 5" in result.stdout


def test_lines_that_need_root_are_well_formed() -> None:
    (*lines,) = "".join(text for kind, text in BLOCKS if kind == "sh").splitlines()
    assert len(lines) > 5
    assert {kind for kind, _ in BLOCKS} == {"console", "sh"}
    for line in lines:
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0, line


@dataclass
class Board:
    """A device with a store, pictures, and somebody who listens where systemd would."""

    root: Path
    key: PrivateKey
    heard: queue.Queue[str]

    @property
    def store(self) -> BundleStore:
        return BundleStore(self.root / "store", self.key.public, self_test=computed_here)

    def install(self, version: int) -> None:
        folder = self.root / f"bundle-{version}"
        self.store.install(folder if folder.exists() else write_tiny(folder, self.key, bundle_version=version))

    def take_pictures(self, first: int, count: int) -> None:
        for place, picture in enumerate(raw_samples(count, seed=first), start=first):
            np.save(self.root / "new.tmp.npy", picture[None])
            (self.root / "new.tmp.npy").rename(self.root / "pictures" / f"{place:04}.npy")

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Start the program as the unit does, and wait until it says that it is ready."""
        words = ["--store", "store", "--trusted", "release.pub", "--pictures", "pictures", "--state", "mine", "--every", "0", *more]
        notified = environment(NOTIFY_SOCKET=str(self.root / "notify"))
        process = subprocess.Popen([sys.executable, PROGRAM, *words], cwd=self.root, env=notified, stdout=subprocess.PIPE, text=True)
        try:
            self.hear("READY=1")
            yield process
        finally:
            process.kill()
            process.communicate()

    def hear(self, wanted: str) -> None:
        """Wait at most 20 seconds for the next message that holds a word."""
        deadline = time.monotonic() + 20
        while wanted not in self.heard.get(timeout=max(0.01, deadline - time.monotonic())):
            pass


def listen(ear: socket.socket, heard: queue.Queue[str]) -> None:
    """Take messages as fast as they come, as systemd does; the kernel keeps only ten."""
    while message := ear.recv(4096).decode():
        heard.put(message)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(address)
        board = Board(tmp_path, PrivateKey.generate(), queue.Queue())
        thread = threading.Thread(target=listen, args=(ear, board.heard))
        thread.start()
        board.key.public.save(tmp_path / "release.pub")
        (tmp_path / "pictures").mkdir()
        board.install(1)
        yield board
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", address)
        thread.join(20)


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_program_lives_under_systemd(board: Board) -> None:
    with board.running("--stop-after", "12") as process:
        board.hear("waiting for 8 pictures")  # alive while it waits
        board.take_pictures(0, 8)
        board.hear("WATCHDOG=1")
        (board.root / "pictures" / "0008.npy").write_bytes(b"no picture")
        board.take_pictures(10, 4)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    said = lines(output)
    assert said[1]["event"] == "personalised"
    assert [line["picture"] for line in said if "label" in line] == [f"{place:04}.npy" for place in (*range(8), *range(10, 14))]
    assert [line["picture"] for line in said if "error" in line] == ["0008.npy"]
    board.hear("STOPPING=1")
    trial = board.store.status().journal.trial
    assert trial is not None
    assert (trial.uses, trial.starts) == (12, 0)


def test_asked_to_end_it_ends_in_order_and_the_next_start_keeps_the_classifier(board: Board) -> None:
    board.take_pictures(0, 10)
    with board.running() as process:
        while "personalised" not in (process.stdout.readline() if process.stdout else ""):
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    made = (board.root / "mine" / "personal.json").read_bytes()
    with board.running("--stop-after", "3") as process:
        output, _ = process.communicate(timeout=20)
    assert "personalised" not in output
    assert (board.root / "mine" / "personal.json").read_bytes() == made
    trial = board.store.status().journal.trial
    assert trial is not None
    assert trial.starts == 0


def test_killed_again_and_again_it_goes_back_to_the_bundle_before(board: Board) -> None:
    board.store.promote()
    board.install(2)
    for _ in range(3):
        with board.running() as process:
            process.kill()
    with board.running():
        journal = board.store.status().journal
    assert journal.good is not None
    assert journal.good.bundle_version == 1
    assert [bad.bundle_version for bad in journal.bad] == [2]


def test_what_cannot_work_is_one_line_and_an_exit_code(board: Board) -> None:
    words = ["--store", "nowhere", "--trusted", "release.pub", "--pictures", "pictures", "--state", "mine"]
    result = subprocess.run(
        [sys.executable, PROGRAM, *words], cwd=board.root, env=environment(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 28
    assert "holds no bundle store" in lines(result.stdout)[0]["error"]
    assert result.stderr == ""


def read_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read(UNIT)
    return unit


def test_the_unit_restarts_watches_and_confines(tmp_path: Path) -> None:
    service = read_unit()["Service"]
    assert service["Type"] == "notify"
    assert service["Restart"] == "always"
    assert int(service["WatchdogSec"]) >= 10
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    _, program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == PROGRAM.name
    help_text = subprocess.run([sys.executable, PROGRAM, "--help"], env=environment(), capture_output=True, text=True, check=True).stdout
    assert all(word in help_text for word in words if word.startswith("--"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own checker")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/fedtailor/venv/bin/python", sys.executable).replace("User=fedtailor\nGroup=fedtailor\n", "")
    (tmp_path / UNIT.name).write_text(text)
    result = subprocess.run(["systemd-analyze", "verify", tmp_path / UNIT.name], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert UNIT.name not in result.stderr  # it warns about settings that it does not know
