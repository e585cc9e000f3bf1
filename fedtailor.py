"""The command line: a click group that loads each command's package only when that command runs."""

from __future__ import annotations

import importlib
import sys

import click

from protocol.console import ErrorGroup
from protocol.errors import MissingExtraError

# name: (module, attribute, what the overview says)
COMMANDS = {
    "demo": ("export.demo.command", "demo", "The whole way on real data, in one command."),
    "train": ("trainer.cli", "train", "Train a federated method on one machine."),
    "pretrain": ("trainer.pretraining_cli", "pretrain_command", "Train a backbone for low-rank adaptation."),
    "compare": ("trainer.comparison_cli", "compare", "Compare methods over paired seeds, with intervals."),
    "bench": ("trainer.bench.cli", "bench", "Measure speed on this machine."),
    "report": ("trainer.report.cli", "report", "One HTML page about runs."),
    "export": ("export.cli", "export", "Make a signed bundle from a run."),
    "adapter": ("export.adapter_cli", "adapter", "Write LoRA factors as ONNX Runtime's own kind of file."),
    "bundle": ("protocol.bundle_cli", "bundle", "Verify, inspect, sign or compare bundles."),
    "keys": ("protocol.keys_cli", "keys", "Make and show keys, enrol and revoke devices."),
    "edge": ("edge_runtime.cli", "edge", "Personalise, predict and take part, on the device."),
    "coordinator": ("trainer.coordinator.cli", "coordinator", "Collect prototypes from devices over a broker."),
    "broker": ("protocol.broker_cli", "broker", "Run the embedded MQTT broker, for first tries."),
}
EXTRA_OF_MODULE = {
    "torch": "train",
    "onnx": "train",
    "onnxscript": "train",
    "sklearn": "train",
    "rich": "train",
    "onnxruntime": "edge",
    "PIL": "edge",
    "amqtt": "broker",
}


class LazyGroup(ErrorGroup):
    """Lists all commands at once and imports one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of a first use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its package.

        Raises:
            MissingExtraError: The package needs an extra that is not installed.
        """
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            extra = EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            hint = f'pip install "fedtailor[{extra}]"'
            raise MissingExtraError(f"fedtailor {cmd_name} needs {error.name}, which is not installed", hint=hint) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup)
@click.version_option(package_name="fedtailor")
def main() -> None:
    """Train once on servers; tailor a model for every edge device.

    \b
    First steps:
      fedtailor demo
      fedtailor train hyperfedzero --data digits --out runs/first
      fedtailor COMMAND --help

    Exit codes: 0 done, 2 wrong usage, 10-19 bad input, 20-29 bad bundle, 30-39 bad message, 40-49 incompatible
    version, 50-59 network or broker, 60-69 numerical failure, 70-79 not allowed.
    """  # noqa: D301  # click looks for the character itself


if __name__ == "__main__":
    sys.exit(main())
