"""A rendezvous whose membership never changes: the caller gives every node its rank."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from ..endpoint import parse_rendezvous_endpoint
from ..errors import RendezvousTimeoutError, RendezvousUsageError
from ..node import NodeDesc
from ..params import RendezvousParameters, RendezvousSettings
from ..store.client import TCPStore
from ..store.prefix import PrefixStore
from ..store.server import TCPStoreServer
from .base import RendezvousHandler
from .changes import Changes, Publisher
from .info import RendezvousInfo, RendezvousStoreInfo
from .keys import Keys
from .status import RendezvousStatus

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("StaticTCPRendezvous",)


class StaticTCPRendezvous(RendezvousHandler):
    """Every node knows its rank; node 0 serves the store at the endpoint.

    Args:
        params: ``endpoint`` with a port, ``max_nodes`` as the world size, the node's rank as ``node_rank`` or option
            ``rank``, and optionally ``timeout`` in seconds.

    Raises:
        ValueError: endpoint, port or rank is missing, or the rank is not below the world size.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        if not params.endpoint.strip():
            raise ValueError("The static rendezvous needs an endpoint HOST:PORT.")
        self._host, self._port = parse_rendezvous_endpoint(params.endpoint, -1)
        if self._port == -1:
            raise ValueError(f"The static rendezvous needs a port in its endpoint, as in {self._host}:29400.")
        rank = params.get_as_int("rank", params.node_rank)
        if rank is None:
            raise ValueError("The static rendezvous needs this node's rank: node_rank=, or the option rank=.")
        if not 0 <= rank < params.max_nodes:
            raise ValueError(f"The rank {rank} must be at least 0 and less than the world size {params.max_nodes}.")
        self._rank, self._params = rank, params
        self._settings = RendezvousSettings.from_params(params)
        self._timeout = params.get_as_seconds("timeout", self._settings.timeout.join.total_seconds()) or 600.0
        self._keys = Keys(params.run_id)
        self._publisher = Publisher()
        self._stack: AsyncExitStack | None = None
        self._store: TCPStore | None = None
        self._round = -1

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            port = self._port
            if self._rank == 0 and self._params.get_as_bool("is_host", None) is not False:
                server = await stack.enter_async_context(
                    TCPStoreServer(self._host, self._port, bind=self._params.get("bind", None))
                )
                port = server.port
                stack.push_async_callback(server.drain, self._params.get_as_seconds("linger", 30.0) or 0.0)
            self._store = await stack.enter_async_context(
                TCPStore(self._host, port, timeout=self._timeout, connect_timeout=self._timeout)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        self._publisher.close()
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(exc_type, exc, tb)
        return None

    @property
    def settings(self) -> RendezvousSettings:
        """What this handler was started with."""
        return self._settings

    def get_backend(self) -> str:
        """The backend's registered name."""
        return self._params.backend

    def get_run_id(self) -> str:
        """The run."""
        return self._params.run_id

    def _open(self) -> TCPStore:
        if self._stack is None or self._store is None:
            raise RendezvousUsageError(
                f"The rendezvous handler of {self._params.run_id!r} is not open; use it inside 'async with handler:'."
            )
        return self._store

    async def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes and return this node's given rank; repeatable.

        Raises:
            RendezvousTimeoutError: somebody did not come; the message names the missing ranks.
            RendezvousConnectionError: the store cannot be reached.

        Cancellation:
            Safe; nothing is withdrawn, since nothing is elastic.
        """
        store = self._open()
        number = self._round + 1  # counts once it is complete, so that who timed out still meets the others
        size = self._params.max_nodes
        prefix = f"{self._keys.prefix}static/{number}"
        here = PrefixStore(prefix + "/here", store)
        addr = self._params.local_addr or store.local_address or self._host
        with anyio.move_on_after(self._timeout):
            await here.set(str(self._rank), addr.encode())
            addrs = await here.multi_get([str(rank) for rank in range(size)])
            bootstrap = await RendezvousStoreInfo.build(
                self._rank,
                PrefixStore(prefix + "/meta", store),
                addr,
                self._params.get_as_int("bootstrap_port", None),
                timeout=self._timeout,
            )
            self._round = number
            return RendezvousInfo(
                store=PrefixStore(prefix + "/user", store),
                rank=self._rank,
                world_size=size,
                bootstrap_store_info=bootstrap,
                participants=tuple(
                    NodeDesc(found.decode(errors="replace"), 0, rank, node_rank=rank)
                    for rank, found in enumerate(addrs)
                ),
                round=number,
                run_id=self._params.run_id,
            )
        there = {int(key) for key, _ in await here.scan("")}
        missing = ", ".join(str(rank) for rank in range(size) if rank not in there)
        raise RendezvousTimeoutError(
            f"The static rendezvous {self._params.run_id!r} at {store.endpoint} has {len(there)} of {size} nodes after "
            f"{self._timeout:g} s; missing ranks: {missing or 'none, rank 0 published no address'}."
        )

    async def is_closed(self) -> bool:
        """False: a static rendezvous is never closed."""
        return False

    async def set_closed(self) -> None:
        """Nothing: a static rendezvous is never closed."""

    async def num_nodes_waiting(self) -> int:
        """0: nobody waits for a static rendezvous."""
        return 0

    async def leave(self) -> None:
        """Nothing: the membership is given by the caller."""

    def fail(self, reason: str) -> None:
        """Nothing: a static rendezvous counts no failures."""

    def changes(self) -> Changes:
        """An iterator that ends with the handler: the membership never changes."""
        return self._publisher.listen()

    async def status(self) -> RendezvousStatus:
        """What is known without asking: the given world."""
        store = self._open()
        size = self._params.max_nodes
        return RendezvousStatus(
            run_id=self._params.run_id,
            endpoint=store.endpoint,
            round=self._round if self._round >= 0 else None,
            complete=self._round >= 0,
            closed="no",
            min_nodes=size,
            max_nodes=size,
            failures=0,
            nodes=(),
            missing=(),
            reason=f"static world of {size} nodes, this is rank {self._rank}",
        )
