"""How long a round takes over a real broker: devices, coordinator and mosquitto are processes of their own on one machine.

    python benchmarks/rounds.py --devices 100 --kilobytes 64 --rounds 20
    python benchmarks/rounds.py --devices 1000 --kilobytes 4 --processes 4 --rounds 5

A round lasts from the moment it opens until its result is on disk: tasks go out, every device fetches the state, sends an
update of the same size, and each is answered after it is durable. Devices rehearse: they change the state by noise and train
nothing. Prints the seed, counts, the 50th and 95th percentile of the rounds, and the most memory that the coordinator used.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_runtime.fleet_cli import create_devices
from export.bundling import Extras, export_run
from export.bundling import Release as BundleRelease
from protocol.keys import PrivateKey
from trainer.experiments import Experiment
from trainer.training import Training

ROOT = Path(__file__).resolve().parents[1]


def prepare(root: Path, kilobytes: float) -> None:
    """Write keys, a run of one round on the digits whose state has so many kilobytes, and its bundle."""
    units = max(1, round((kilobytes * 1024 / 4 - 10) / 75))  # 64 inputs, a bias, 10 outputs for each hidden unit
    release, coordinator = PrivateKey.generate(), PrivateKey.generate()
    release.public.save(root / "release.pub")
    coordinator.save(root / "coordinator.key")
    (root / "registry").mkdir()
    experiment = Experiment(data="digits", rounds=1, engine="loop", methods={"fedavg": {"model": f"mlp-{units}"}})
    training = Training.start(experiment, "fedavg", 0, root / "run")
    training.finish()
    offered = BundleRelease("digits", coordinator_key=coordinator.public.hex)
    export_run(training.run, root / "bundle", offered, release, extras=Extras((), 1.0, training=False))


def start_mosquitto(root: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Return a broker and its URL."""
    path = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        raise SystemExit("mosquitto is missing: apt-get install mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = root / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\nmax_queued_messages 10000\n"
    )
    process = subprocess.Popen([path, "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    return process, f"mqtt://127.0.0.1:{port}"


def fedtailor(*words: object, output: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "fedtailor", *map(str, words)], cwd=ROOT, env=environment, stdout=output, text=True)


def peak_memory(process: subprocess.Popen[str]) -> int:
    """Return the most resident bytes that a process had so far."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


def processor_seconds(*processes: subprocess.Popen[Any]) -> list[float]:
    """Return the processor seconds that processes used so far, and those of children that ended."""
    found = []
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        found.append(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
    return found


def measure(root: Path, devices: int, processes: int, rounds: int, deadline: float) -> dict[str, Any]:
    """Hold rounds with a fleet and return what they took."""
    create_devices(root / "keys", root / "registry", devices)
    broker, url = start_mosquitto(root)
    shared = ("--bundle", root / "bundle", "--trusted", root / "release.pub", "--broker", url, "--json")
    own = ("--method", "fedavg", "--run", root / "run", "--key", root / "coordinator.key", "--registry", root / "registry")
    limits = ("--rounds", rounds, "--min-devices", devices, "--deadline", deadline, "--patience", 120, "--linger", 2)
    fleet = fedtailor("edge", "simulate-fleet", *shared, "--keys", root / "keys", "--processes", processes)
    coordinator = fedtailor("coordinator", "run", *shared, *own, *limits)
    peak, used = 0, [0.0, 0.0, 0.0]
    try:
        while coordinator.poll() is None:
            peak = max(peak, peak_memory(coordinator))
            used = processor_seconds(coordinator, fleet, broker)
            time.sleep(0.2)
        output, _ = coordinator.communicate()
        fleet.send_signal(signal.SIGTERM)
        told, _ = fleet.communicate(timeout=60)
    finally:
        if fleet.poll() is None:
            fleet.terminate()  # it ends its own processes
            fleet.wait(60)
        for process in (coordinator, broker):
            process.kill()
            process.wait()
    summary, fleet_summary = json.loads(output), json.loads(told)
    seconds = [row["seconds"] for row in summary["rounds"] if row["seconds"] is not None]
    return {
        "devices": devices,
        "processes": processes,
        "rounds": len(seconds),
        "seed": summary["seed"],
        "counted": sum(row["counted"] for row in summary["rounds"]),
        "lost": devices * rounds - sum(row["counted"] for row in summary["rounds"]),
        "told_accepted": fleet_summary["accepted"],
        "refused": summary["refused"],
        "dropped": summary["dropped"],
        "p50_seconds": float(np.percentile(seconds, 50)),
        "p95_seconds": float(np.percentile(seconds, 95)),
        "first_seconds": seconds[0],
        "peak_megabytes": peak / 2**20,
        "processor_seconds": dict(zip(("coordinator", "fleet", "broker"), used, strict=True)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--kilobytes", type=float, default=64.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends too
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), chosen.kilobytes)
        found = measure(Path(folder), chosen.devices, chosen.processes, chosen.rounds, chosen.deadline) | {"kilobytes": chosen.kilobytes}
    if chosen.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, value in found.items():
        sys.stdout.write(f"{name:>16}: {value:.3f}\n" if isinstance(value, float) else f"{name:>16}: {value}\n")


if __name__ == "__main__":
    main()
