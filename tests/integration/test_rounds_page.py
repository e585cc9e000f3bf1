"""Every command of docs/rounds.md that stands in a console block runs as printed, in order, in one empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.brokers import ROOT

BLOCKS = re.findall(r"^```console\n(.*?)^```$", (ROOT / "docs" / "rounds.md").read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.broker
@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("amqtt")
    assert len(BLOCKS) == 2
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = tmp_path / "commands" / "fedtailor"  # that of these sources, whatever is installed
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedtailor "$@"\n')
    command.chmod(0o755)
    environment["PATH"] = f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-euc", "".join(BLOCKS)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert "round 2: published, 2 of 2 updates" in output
