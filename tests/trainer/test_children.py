"""Child processes end with the block that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.children import Children

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def test_what_a_command_prints_comes_back() -> None:
    with Children() as children:
        done = children.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_an_error_ends_the_children_of_other_threads() -> None:
    codes: list[int] = []
    began = time.monotonic()
    children = Children()
    thread = threading.Thread(target=lambda: codes.append(children.run(SLEEP).returncode))

    def fail_while_it_runs() -> None:
        with children:
            thread.start()
            time.sleep(1.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_it_runs()
    thread.join(20)
    assert codes == [-signal.SIGTERM]
    assert time.monotonic() - began < 30
    assert children.run(SLEEP).returncode == -signal.SIGTERM  # none starts any more


def test_a_killed_comparison_leaves_no_training(tmp_path: Path) -> None:
    out = tmp_path / "c"
    words = ["compare", "fedavg", "fedprox", "--data", "digits", "--rounds", "100000", "--seeds", "1", "--workers", "2", "--out", str(out)]
    command = subprocess.Popen([sys.executable, "-m", "fedtailor", *words, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    configs = [out / f"{name}-seed0" / "config.json" for name in ("fedavg", "fedprox")]
    while not all(path.is_file() for path in configs):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    children = subprocess.run(["pgrep", "-P", str(command.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert len(children) == 2
    command.terminate()
    assert command.wait(60) == 128 + signal.SIGTERM
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
