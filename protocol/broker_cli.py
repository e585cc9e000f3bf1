"""``fedtailor broker``."""

from __future__ import annotations

import json

import click

from protocol.broker import LOOPBACK, serve
from protocol.console import AS_JSON


@click.command(epilog="Example: fedtailor broker --port 1883")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=1883, show_default=True, help="Port to listen on.")
@AS_JSON
def broker(host: str, port: int, as_json: bool) -> None:
    """Run the embedded MQTT broker until Ctrl-C. Anybody who reaches it may use it: for first tries only."""
    text = json.dumps({"url": f"mqtt://{host}:{port}"}) if as_json else f"broker on mqtt://{host}:{port}, Ctrl-C ends it"
    serve(host, port, lambda: click.echo(text))
