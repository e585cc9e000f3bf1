"""How every command fails: one sentence on standard error, or one JSON object on standard output, and the error's code."""

from __future__ import annotations

import json
from typing import Any

import click

from protocol.errors import FedtailorError, InputError

AS_JSON_KEY = "protocol.console.as_json"
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class ErrorGroup(click.Group):
    """A click group that turns errors of our tree into a sentence and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether any command below was asked for JSON; its own context is gone when an error arrives here."""
        ctx.meta[AS_JSON_KEY] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of the tree ends the process with its exit code."""
        try:
            return super().invoke(ctx)
        except FedtailorError as error:
            report(error, as_json=ctx.meta[AS_JSON_KEY])
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            raise  # whoever read our output has gone; click ends quietly
        except OSError as fault:
            where = f"{fault.filename}: " if fault.filename else ""
            refused = InputError(f"{where}{fault.strerror or fault}", hint="look at the path, its permissions and the free space")
            report(refused, as_json=ctx.meta[AS_JSON_KEY])
            ctx.exit(refused.exit_code)


def report(error: FedtailorError, *, as_json: bool) -> None:
    """Print an error for people or for machines."""
    if not as_json:
        click.echo(f"error: {error.sentence()}", err=True)
        return
    fields = {
        name: None if value is None else str(value)
        for name, value in (("expected", error.expected), ("got", error.got), ("hint", error.hint))
    }
    content = {"error": type(error).__name__, "message": error.sentence(), "exit_code": error.exit_code, **fields}
    click.echo(json.dumps(content))
