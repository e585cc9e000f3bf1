"""``fedtailor edge``: what a device engineer types on the device."""

from __future__ import annotations

import click

from edge_runtime.bench.cli import bench
from edge_runtime.classify_cli import personalize, predict
from edge_runtime.doctor.cli import doctor
from edge_runtime.fit_cli import fit
from edge_runtime.fleet_cli import simulate_fleet
from edge_runtime.run_cli import run
from edge_runtime.store_cli import install, store


@click.group()
def edge() -> None:
    """Personalise, predict and take part, on the device; no torch needed."""


for command in (bench, doctor, fit, install, personalize, predict, run, simulate_fleet, store):
    edge.add_command(command)
