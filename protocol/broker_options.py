"""The options of every command that connects to a broker, said once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from protocol.broker_address import BrokerAddress, TlsFiles, parse_broker

AUTHORITY, CERTIFICATE, KEY = "--ca", "--certificate", "--certificate-key"  # --key is that of signatures


def broker_options(help_text: str = "mqtt://, mqtts://, ws:// or wss://, then host:port.", *, required: bool = True) -> Callable[..., Any]:
    """Return a decorator that gives a command the options of a broker, and its function one ``BrokerAddress`` as ``broker``.

    Args:
        help_text: Help of ``--broker``.
        required: Whether there must be a broker; without one the function gets None.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_address(
            *arguments: Any, broker: str | None, ca: Path | None, certificate: Path | None, certificate_key: Path | None, **options: Any
        ) -> Any:
            files = TlsFiles(ca, certificate, certificate_key)
            return command(*arguments, broker=None if broker is None else parse_broker(broker, files), **options)

        file = click.Path(path_type=Path)
        for option in (
            click.option(KEY, type=file, help="Private key of --certificate, in PEM, readable by its owner alone."),
            click.option(CERTIFICATE, type=file, help="This client's certificate, in PEM, for brokers that ask for one."),
            click.option(AUTHORITY, "--broker-ca", "ca", type=file, help="Certificates to believe, in PEM; the system's if left out."),
            click.option("--broker", required=required, metavar="URL", help=help_text),
        ):
            with_address = option(with_address)
        return with_address

    return decorate


def broker_words(address: BrokerAddress) -> list[str]:
    """Return the options that name an address, for a child process."""
    files = ((AUTHORITY, address.files.authority), (CERTIFICATE, address.files.certificate), (KEY, address.files.key))
    return ["--broker", address.url, *(word for option, path in files if path is not None for word in (option, str(path)))]
