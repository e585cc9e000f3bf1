"""What stands between a bundle and a device is said in one sentence each, and a broken library breaks no doctor."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edge_runtime.bundle import Bundle
from edge_runtime.doctor import machine, system
from edge_runtime.doctor.broker import check_broker
from edge_runtime.doctor.clock import check_clock
from edge_runtime.doctor.libraries import check_libraries
from edge_runtime.doctor.machine import available_memory, check_disk, check_memory, cpu_quota
from edge_runtime.doctor.versions import check_versions
from fedtailor import main
from protocol.broker_address import BrokerAddress, TlsFiles
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import graphs, manifest, write_tiny
from tests.source_tree import ROOT

MANIFEST = manifest(graphs("device"), "device")


def doctor(*words: object) -> Result:
    return CliRunner(env={"FEDTAILOR_TRUSTED_KEY": ""}).invoke(main, ["edge", "doctor", *map(str, words)])


def checks(result: Result) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(result.output)["checks"]}


def test_a_fit_device(bundle: Bundle, trusted_file: Path) -> None:
    result = doctor(bundle.path, "--trusted", trusted_file, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.output)
    assert content["fit"] is True
    found = checks(result)
    assert list(found) == [
        *("python", "libc", "processor", "numpy", "onnxruntime", "bundle", "hardware", "graph format", "self-test"),
        *("memory", "threads", "disk", "clock"),
    ]
    assert {each["verdict"] for each in found.values()} <= {"ok", "note"}
    assert "worst difference" in found["self-test"]["found"]
    assert "measured" in found["memory"]["found"]


def test_the_table_is_for_people(bundle: Bundle, trusted_file: Path) -> None:
    result = doctor(bundle.path, "--trusted", trusted_file)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "all well"
    assert all(len(line) <= 100 for line in result.output.splitlines())


def test_without_a_bundle_the_device_alone_is_looked_at() -> None:
    result = doctor("--json")
    assert result.exit_code == 0
    assert "self-test" not in checks(result)


def test_a_bundle_needs_a_key(bundle: Bundle) -> None:
    assert doctor(bundle.path).exit_code == 2


def test_what_is_wrong_with_a_bundle(tmp_path: Path, release_key: PrivateKey, trusted_file: Path) -> None:
    write_tiny(tmp_path / "jetson", release_key, target="jetson", minimum_onnxruntime="9.9", expires=1_700_000_001)
    result = doctor(tmp_path / "jetson", "--trusted", trusted_file, "--json")
    assert result.exit_code == 42
    assert json.loads(result.output)["failed"] == ["hardware", "graph format", "self-test", "clock"]
    assert "jetson" in checks(result)["hardware"]["found"]
    assert "2023-11-14" in checks(result)["clock"]["found"]
    known = doctor(tmp_path / "jetson", "--trusted", trusted_file, "--target", "jetson", "--json")
    assert json.loads(known.output)["failed"] == ["graph format", "self-test", "clock"]
    (tmp_path / "jetson" / "README.md").write_text("x")
    result = doctor(tmp_path / "jetson", "--trusted", trusted_file)
    assert result.exit_code == 42
    assert "does not list" in " ".join(result.output.split())
    assert result.output.splitlines()[-1] == "not fit: bundle"


FAULTS = {
    "illegal instruction": (
        "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
        "this onnxruntime build does not run on this processor (illegal instruction)",
        "1.20.1",
    ),
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "killed by SIGBUS", "another version"),
    "another numpy": ("raise AttributeError('_ARRAY_API not found')", "built for another numpy than", '"numpy<2"'),
    "old libc": (
        """raise ImportError("/lib/arm/libc.so.6: version `GLIBC_2.34' not found (required by x.so)")""",
        "needs a newer system library: GLIBC_2.34",
        "update the system",
    ),
    "old libstdc++": (
        """raise ImportError("/lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by x.so)")""",
        "GLIBCXX_3.4.29",
        "update the system",
    ),
    "missing library": (
        "raise ImportError('libgomp.so.1: cannot open shared object file: No such file or directory')",
        "libgomp.so.1",
        "package manager",
    ),
    "another processor": ("raise ImportError('x.so: wrong ELF class: ELFCLASS32')", "another kind of processor", "install it again"),
    "not installed": ("raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')", "not installed", "32-bit Arm"),
    "unknown": ("raise RuntimeError('the moon is full')", "the moon is full", "install it again"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_runtime_that_cannot_be_loaded_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Bundle, trusted_file: Path
) -> None:
    program, sentence, advice = FAULTS[name]
    (tmp_path / "onnxruntime.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    libraries = check_libraries()
    numpy, runtime = libraries.findings
    assert numpy.verdict == "ok"
    assert runtime.verdict == "failed"
    assert sentence in runtime.found
    assert "\n" not in runtime.found
    assert advice in runtime.advice
    assert libraries.runtime is None


def test_a_broken_numpy_is_found_without_loading_it_here(tmp_path: Path) -> None:
    """The whole command, in a process whose numpy and ONNX Runtime are both unusable."""
    (tmp_path / "numpy.py").write_text("raise ImportError('libopenblas.so.0: cannot open shared object file')")
    (tmp_path / "onnxruntime.py").write_text("raise SystemError('no')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fedtailor; fedtailor.main(['edge', 'doctor', '--json'])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 42, result.stderr
    assert json.loads(result.stdout)["failed"] == ["numpy"]
    assert "libopenblas.so.0" in result.stdout
    assert result.stderr == ""


def test_without_the_runtime_the_bundle_is_still_judged(tmp_path: Path, bundle: Bundle, trusted_file: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(FAULTS["not installed"][0])
    words = ["edge", "doctor", str(bundle.path), "--trusted", str(trusted_file), "--json"]
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fedtailor; fedtailor.main({words!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    content = json.loads(result.stdout)
    assert content["failed"] == ["onnxruntime"]
    skipped = [each["check"] for each in content["checks"] if each["verdict"] == "skipped"]
    assert skipped == ["graph format", "self-test"]


def test_versions_against_the_measured_table() -> None:
    def verdict(runtime: str) -> str:
        return check_versions(MANIFEST, runtime).verdict

    assert [verdict(each) for each in ("1.16.3", "1.19.2", "1.32.0", "1.19.0+cuda", "2.0.0")] == ["failed", "ok", "ok", "ok", "ok"]


def test_a_thirty_two_bit_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_runtime.doctor.system.struct.calcsize", lambda _: 4)
    finding = system.check_python()
    assert finding.verdict == "failed"
    assert "arm64" in finding.advice


@pytest.mark.parametrize(
    ("libc", "verdict"), [(("glibc", "2.36"), "ok"), (("glibc", "2.24"), "failed"), (("", ""), "note"), (("glibc", "2.27"), "ok")]
)
def test_the_c_library(monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str], verdict: str) -> None:
    monkeypatch.setattr("edge_runtime.doctor.system.platform.libc_ver", lambda: libc)
    assert system.check_libc().verdict == verdict


def test_the_processor_of_a_raspberry_pi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n"
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(system, "CPUINFO", tmp_path / "cpuinfo")
    assert system.check_processor().found == "Raspberry Pi 4 Model B Rev 1.4; asimd"


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a made-up kernel's folder: 512 MB, in a group within a group."""
    (tmp_path / "meminfo").write_text("MemTotal: 900000 kB\nMemAvailable:     512000 kB\n")
    (tmp_path / "own").write_text("0::/system.slice/camera.service\n")
    (tmp_path / "groups" / "system.slice" / "camera.service").mkdir(parents=True)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def test_memory_is_what_every_group_around_grants(small_machine: Path) -> None:
    assert available_memory() == 512_000 * 1024
    assert check_memory(1 << 20, None).verdict == "ok"
    assert check_memory(0, 300 << 20).verdict == "note"
    outer = small_machine / "system.slice"
    (outer / "memory.max").write_text(f"{100 << 20}\n")
    (outer / "memory.current").write_text(f"{60 << 20}\n")
    (outer / "camera.service" / "memory.max").write_text("max\n")
    assert available_memory() == 40 << 20
    finding = check_memory(1 << 20, None)
    assert (finding.verdict, finding.found) == ("failed", "40 MB available, 63 MB estimated")


def test_the_quota_of_every_group_around_counts(small_machine: Path) -> None:
    assert cpu_quota() is None
    (small_machine / "system.slice" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota() is None
    (small_machine / "system.slice" / "camera.service" / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota() == 0.5
    assert machine.check_threads().verdict == "note"


def test_the_quota_of_an_older_kernel(small_machine: Path) -> None:
    (small_machine / "cpu").mkdir()
    (small_machine / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (small_machine / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota() is None
    (small_machine / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    assert cpu_quota() == 1.5


def test_one_core_is_one_core(bundle: Bundle) -> None:
    code = "from edge_runtime.doctor.machine import check_threads; print(check_threads().found)"
    words = ["taskset", "-c", "0", sys.executable, "-c", code]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.startswith("1 of ")


def test_disk_space(tmp_path: Path) -> None:
    assert check_disk(tmp_path / "not" / "yet" / "made", 1 << 20).verdict == "ok"
    assert check_disk(tmp_path, 1 << 60).verdict == "failed"


@pytest.mark.parametrize(
    ("now", "verdict", "words"),
    [
        (60.0, "note", "before 2024"),
        (1_750_000_000.0, "note", "before the bundle was made"),
        (1_800_000_100.0, "ok", ""),
        (1_900_000_000.0, "failed", "expired on 2027-01-15"),
    ],
)
def test_the_clock(now: float, verdict: str, words: str) -> None:
    finding = check_clock(replace(MANIFEST, created=1_800_000_000, expires=1_800_001_000), now)
    assert finding.verdict == verdict
    assert words in finding.found


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_answers(port: int) -> None:
    finding = check_broker(BrokerAddress("127.0.0.1", port))
    assert finding.verdict == "ok"
    assert "no TLS" in finding.found


def test_a_broker_that_does_not(port: int, monkeypatch: pytest.MonkeyPatch, bundle: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    assert "Connection refused" in check_broker(BrokerAddress("127.0.0.1", closed)).found
    assert "no such host" in check_broker(BrokerAddress("no-such-host.invalid", 1883)).found
    monkeypatch.setattr("edge_runtime.doctor.broker.SECONDS", 0.3)
    silent = check_broker(BrokerAddress("127.0.0.1", port, tls=True))  # it takes the connection, but shakes no hands
    assert silent.verdict == "failed"
    result = doctor("--broker", f"mqtt://user:secret@127.0.0.1:{closed}")
    assert result.exit_code == 42
    assert "secret" not in result.output


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_broker_with_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "broker.pem", tmp_path / "broker.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = BrokerAddress("localhost", server.getsockname()[1], tls=True)

        def serve(times: int) -> None:
            for _ in range(times):
                connection, _ = server.accept()
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except (OSError, ssl.SSLError):  # the client hangs up when it does not believe us
                    connection.close()

        thread = threading.Thread(target=serve, args=(2,), daemon=True)
        thread.start()
        trusted = check_broker(replace(address, files=TlsFiles(certificate)))
        stranger = check_broker(address)
        thread.join(10)
    assert trusted.verdict == "ok"
    assert "TLSv1" in trusted.found
    assert stranger.verdict == "failed"
    assert "its certificate is not believed" in stranger.found


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(sys.version_info >= (3, 12) or np.__version__ < "2", reason="that old wheel is for Python 3.8 to 3.11")
def test_a_real_wheel_that_was_built_for_numpy_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.16.3 can be imported beside numpy 2, and dies of a segmentation fault at the first array."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), "onnxruntime==1.16.3"]
    subprocess.run(install, check=True, capture_output=True)
    monkeypatch.syspath_prepend(tmp_path)
    _, finding = check_libraries().findings
    assert finding.verdict == "failed"
    assert "was built for another numpy" in finding.found
