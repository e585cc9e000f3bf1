"""Does anybody answer where the broker should be, and may we believe who?"""

from __future__ import annotations

import socket
import time

from edge_runtime.doctor.findings import Finding, passed
from protocol.broker_address import BrokerAddress
from protocol.errors import FedtailorError
from protocol.mqtt_tls import explain, tls_context

SECONDS = 5.0


def check_broker(address: BrokerAddress) -> Finding:
    """Connect, with TLS if the address asks for it, and hang up."""
    started = time.perf_counter()
    try:
        with socket.create_connection((address.host, address.port), timeout=SECONDS) as connection:
            if address.tls:
                with tls_context(address.files).wrap_socket(connection, server_hostname=address.host) as secure:
                    kind = str(secure.version())
            else:
                kind = "no TLS"
    except FedtailorError as fault:
        return Finding("broker", "failed", fault.sentence(), fault.hint or "")
    except socket.gaierror as fault:
        return Finding("broker", "failed", f"{address}: no such host ({fault.strerror})", "look at the name and at DNS")
    except OSError as fault:
        explained = explain(fault, address)
        if explained is not None:
            return Finding("broker", "failed", f"{address}: {explained[0]}", explained[1])
        return Finding("broker", "failed", f"{address}: {fault.strerror or fault}", "is the broker running? is a firewall between?")
    return passed("broker", f"{address} answers in {1000 * (time.perf_counter() - started):.0f} ms, {kind}")
