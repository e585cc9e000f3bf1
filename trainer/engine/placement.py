"""What lies in Ray's object store: the method and the clients for as long as they are in use, the server state for a round."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from protocol.errors import InputError
from trainer.engine.base import Client
from trainer.engine.parcels import PackedClient, to_arrays
from trainer.methods.base import Method, State


class Placement:
    """Places objects once and hands out references. A client's data leave the store with the last use of the client.

    Args:
        ray: The library, connected.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._clients: WeakKeyDictionary[Client, Any] = WeakKeyDictionary()
        self._method: tuple[Method, Any] | None = None

    def client(self, client: Client) -> Any:
        """Return the reference to a client."""
        if client not in self._clients:
            self._clients[client] = self._ray.put(PackedClient.of(client))
        return self._clients[client]

    def server(self, server: State) -> Any:
        """Return a new reference to a server state."""
        return self._ray.put(to_arrays(server))

    def method(self, method: Method) -> Any:
        """Return the reference to a method.

        Raises:
            InputError: The method cannot be sent.
        """
        if self._method is None or self._method[0] is not method:
            try:
                self._method = (method, self._ray.put(method))
            except TypeError as error:
                hint = "keep open files, sessions and locks out of it"
                raise InputError("the method cannot be sent to other processes", got=str(error).splitlines()[0], hint=hint) from error
        return self._method[1]
