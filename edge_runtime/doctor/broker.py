"""Does anybody answer where the broker should be, and may we believe who?"""

from __future__ import annotations

import socket
import ssl
import time

from edge_runtime.doctor.findings import Finding, passed
from protocol.broker_address import BrokerAddress

SECONDS = 5.0


def check_broker(address: BrokerAddress, authority: str | None = None) -> Finding:
    """Connect, with TLS if the address asks for it, and hang up.

    Args:
        address: The broker.
        authority: File of certificates to believe; the system's when None.
    """
    started = time.perf_counter()
    try:
        with socket.create_connection((address.host, address.port), timeout=SECONDS) as connection:
            if address.tls:
                with ssl.create_default_context(cafile=authority).wrap_socket(connection, server_hostname=address.host) as secure:
                    kind = str(secure.version())
            else:
                kind = "no TLS"
    except ssl.SSLCertVerificationError as fault:
        advice = "is the clock right? is this the broker's certificate authority (--broker-ca)?"
        return Finding("broker", "failed", f"{address}: certificate refused, {fault.verify_message}", advice)
    except ssl.SSLError as fault:
        return Finding("broker", "failed", f"{address}: no TLS there ({fault.reason})", "is it mqtt:// rather than mqtts://?")
    except socket.gaierror as fault:
        return Finding("broker", "failed", f"{address}: no such host ({fault.strerror})", "look at the name and at DNS")
    except OSError as fault:
        return Finding("broker", "failed", f"{address}: {fault.strerror or fault}", "is the broker running? is a firewall between?")
    return passed("broker", f"{address} answers in {1000 * (time.perf_counter() - started):.0f} ms, {kind}")
