"""The connection to Ray: the cluster in RAY_ADDRESS, or one of this machine's own that listens on loopback only."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import Any

from protocol.errors import ConnectionLostError, InputError, MissingExtraError

LOOPBACK = "127.0.0.1"
LOCAL = "local"
CONNECT_SECONDS = 10.0


def import_ray() -> Any:
    """Return the library, set to loopback unless RAY_ADDRESS names a cluster.

    Raises:
        MissingExtraError: It is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a default to come
    if _address() == LOCAL:
        # Only without clusters does Ray keep to loopback, and it reads this once, on import; the name says where it is the default.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray is not installed", hint='pip install "fedtailor[cluster]"') from error
    return ray


@dataclass(frozen=True)
class RaySession:
    """A connection.

    Attributes:
        ray: The library.
        is_own: Whether it was opened here; only then is it closed here.
    """

    ray: Any
    is_own: bool

    @classmethod
    def open(cls) -> RaySession:
        """Return the connection that this process has already, or a new one.

        Raises:
            MissingExtraError: Ray is not installed.
            InputError: Ray would listen on other interfaces than loopback.
            ConnectionLostError: There is no cluster at RAY_ADDRESS.
        """
        ray, address = import_ray(), _address()
        if ray.is_initialized():
            return cls(ray, is_own=False)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            return cls._start(ray, quiet)
        try:
            _knock(address)
            ray.init(address, **quiet)
        except OSError as error:
            hint = "run ray start on each machine, set RAY_AUTH_MODE=token where it asks for a token, or unset RAY_ADDRESS"
            raise ConnectionLostError("no Ray cluster answers", got=f"RAY_ADDRESS={address}", hint=hint) from error
        return cls(ray, is_own=True)

    @classmethod
    def _start(cls, ray: Any, quiet: dict[str, Any]) -> RaySession:
        """Return the connection to a new cluster of this machine alone."""
        os.environ.setdefault("RAY_worker_niceness", "0")  # else workers yield to all else, while the round waits for them
        ray.init(LOCAL, num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
        session, found = cls(ray, is_own=True), ray.util.get_node_ip_address()
        if found != LOOPBACK:
            session.close()
            hint = "make the engine before anything imports ray, call ray.init yourself, or set RAY_ADDRESS"
            raise InputError("Ray would listen on the network", expected=LOOPBACK, got=found, hint=hint)
        return session

    def count(self, kind: str) -> int:
        """Return how many of a resource the cluster has: ``CPU`` or ``GPU``."""
        return int(self.ray.cluster_resources().get(kind, 0))

    @property
    def is_open(self) -> bool:
        """Tell whether the connection still stands."""
        return bool(self.ray.is_initialized())

    def close(self) -> None:
        """Disconnect, and stop a cluster that was started here."""
        if self.is_own:
            self.ray.shutdown()


def _knock(address: str) -> None:
    """Connect to ``host:port`` and hang up: Ray itself tries for many minutes where nobody listens."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), CONNECT_SECONDS).close()


def _address() -> str:
    """Return the cluster to use."""
    return os.environ.get("RAY_ADDRESS") or LOCAL
