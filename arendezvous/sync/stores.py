"""Blocking stores under the names of the documented API: over TCP, in a file, in memory, and a part of another."""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import anyio

from ..errors import StoreTimeoutError
from ..store.base import DEFAULT_TIMEOUT
from ..store.client import TCPStore as AsyncTCPStore
from ..store.file import FileStore as AsyncFileStore
from ..store.memory import MemoryStore as AsyncMemoryStore
from ..store.prefix import PrefixStore as AsyncPrefixStore
from ..store.server import TCPStoreServer as AsyncTCPStoreServer
from .portal import Resident, get_portal
from .store import Seconds, Store, seconds_of

if TYPE_CHECKING:
    from types import TracebackType

    from ..store.base import Store as AsyncStore

__all__ = ("FileStore", "HashStore", "MemoryStore", "PrefixStore", "TCPStore", "TCPStoreServer")

#: Counts the workers that have connected to a store of a fixed world size.
_WORKERS = "arendezvous/workers"


class TCPStoreServer:
    """Serves a store on TCP until it is closed; a context manager.

    Args:
        host: What clients dial and, unless ``bind`` is given, what is bound.
        port: The port; 0 = a free one.
        bind: Address to bind instead, such as ``0.0.0.0``.

    Raises:
        ValueError: an impossible port.
        RendezvousConnectionError: the port is taken, or the host is not this machine.

    Concurrency:
        Any number of threads. It serves from the event loop behind the blocking calls.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, bind: str | None = None) -> None:
        self._resident = Resident(
            get_portal(), lambda: AsyncTCPStoreServer(host, port, bind=bind), f"the store server at {host}:{port}"
        )
        self._resident.open("TCPStoreServer()", "arendezvous.TCPStoreServer")
        weakref.finalize(self, self._resident.close_soon).atexit = False
        server = self._resident.value
        self.host, self.port, self.endpoint = server.host, server.port, server.endpoint

    def __repr__(self) -> str:
        return f"<TCPStoreServer {self.endpoint}>"

    @property
    def clients(self) -> int:
        """How many clients are connected."""

        async def count(server: AsyncTCPStoreServer) -> int:
            return server.clients

        return self._resident.call(count, what="TCPStoreServer.clients", instead="TCPStoreServer.clients")

    def close(self) -> None:
        """Stop serving; idempotent. Clients lose their connections."""
        self._resident.close("TCPStoreServer.close()", "TCPStoreServer.aclose()")

    stop = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class TCPStore(Store):
    """A store over TCP: its client and, on the master, its server as well.

    The client connects with its first call, and again when the connection was lost.

    Args:
        host: Where the server is, or what it binds.
        port: Its port; 0 on the master = a free one, to be read from :attr:`port`.
        world_size: How many stores, the master's included, take part; None or not positive = any number.
        is_master: Serve the store here.
        timeout: Seconds that a blocking call, and connecting, may take.
        wait_for_workers: With a world size: return once so many have connected.

    Raises:
        ValueError: an impossible host, port or timeout.
        RendezvousConnectionError: the master cannot serve there.
        StoreTimeoutError: not all workers came; the message counts them.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        world_size: int | None = -1,
        is_master: bool = False,
        timeout: Seconds = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
    ) -> None:
        limit = seconds_of("timeout", timeout)
        self._server = TCPStoreServer(host, port) if is_master else None
        if self._server is not None:
            port = self._server.port
        self.host = host
        self.port = port

        async def endpoint() -> str:
            return AsyncTCPStore(host, port).endpoint  # never opened: it says now what is wrong with host or port

        shown = get_portal().call(endpoint, what="TCPStore()", instead="arendezvous.TCPStore")
        super().__init__(
            lambda: AsyncTCPStore(host, port, timeout=limit, connect_timeout=limit or DEFAULT_TIMEOUT),
            shown,
            limit,
        )
        if world_size is not None and world_size > 0 and wait_for_workers:
            self._await_workers(world_size)

    @property
    def master_addr_port(self) -> tuple[str, int]:
        """Where the server is."""
        return self.host, self.port

    def stop(self) -> None:
        """Close the client and, on the master, the server; idempotent."""
        self.close()

    def close(self) -> None:
        """Close the client and, on the master, the server; idempotent."""
        super().close()
        if self._server is not None:
            self._server.close()

    def _await_workers(self, world_size: int) -> None:
        limit = self._timeout

        async def wait(store: AsyncStore) -> None:
            count = await store.add(_WORKERS, 1)
            with anyio.move_on_after(limit) as scope:
                while count < world_size:
                    count = int(await store.watch(_WORKERS, str(count).encode()) or b"0")
            if scope.cancelled_caught:
                raise StoreTimeoutError(
                    f"{count} of {world_size} workers came to the store at {store.endpoint} within {limit:g} s."
                )

        self._call("wait_for_workers", wait)


class FileStore(Store):
    """A store in a file that several processes share.

    Args:
        path: The file; made if it does not exist.
        world_size: Taken for compatibility; the file serves any number.
        timeout: Seconds that a blocking call may take.

    Raises:
        ValueError: an impossible timeout.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        world_size: int = -1,
        *,
        timeout: Seconds = DEFAULT_TIMEOUT,
    ) -> None:
        limit = seconds_of("timeout", timeout)
        self.path = where = os.path.abspath(os.fspath(path))
        super().__init__(lambda: AsyncFileStore(where, timeout=limit), where, limit)  # no reference to itself


class MemoryStore(Store):
    """A store in the memory of this process.

    Args:
        timeout: Seconds that a blocking call may take.

    Raises:
        ValueError: an impossible timeout.
    """

    def __init__(self, timeout: Seconds = DEFAULT_TIMEOUT) -> None:
        limit = seconds_of("timeout", timeout)
        super().__init__(lambda: AsyncMemoryStore(limit), "in memory", limit)


HashStore = MemoryStore


class PrefixStore(Store):
    """A part of another store: every key gets a prefix.

    It opens nothing of its own; closing it leaves the other store open.

    Args:
        prefix: What its keys start with in the other store.
        store: The other store.

    Raises:
        TypeError: ``store`` is no blocking store of this module.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"a store of arendezvous.sync is needed, not {type(store).__name__}")
        self.underlying_store = store
        self.prefix = prefix
        self._views: list[tuple[AsyncStore, AsyncStore]] = []

        @asynccontextmanager
        async def never() -> AsyncIterator[AsyncStore]:
            raise AssertionError("the underlying store is opened instead")
            yield  # makes it a generator

        super().__init__(never, f"{prefix!r} of {store!r}", store._timeout)

    def view(self, store: AsyncStore) -> AsyncStore:
        """The part of it; one object for each opening of the other store."""
        base = self.underlying_store.view(store)
        if not self._views or self._views[0][0] is not base:
            self._views[:] = [(base, AsyncPrefixStore(self.prefix, base))]
        return self._views[0][1]

    def open(self) -> Resident[AsyncStore]:
        """Open the other store.

        Raises:
            RendezvousConnectionError: it cannot be reached.
            RendezvousUsageError: this or the other store was closed.
        """
        self._check_open()
        return self.underlying_store.open()
