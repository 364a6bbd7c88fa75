"""The real store server and the real client, joined by byte streams in memory that a simulation disturbs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from ..store.base import DISCONNECT_GRACE
from ..store.client import TCPStore
from ..store.connection import ROOT
from ..store.memory import MemoryStore
from ..store.service import StoreService
from ..wire.frames import MAX_FRAME
from .simcheck import WatchedTable
from .simclock import Outage
from .simstore import Line, SimStore
from .streams import FaultyStream, MemoryByteStream, memory_stream_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import ByteStream, TaskGroup

    from ..store.base import Store
    from ..store.table import Table
    from .simcheck import Checker

__all__ = ("MemoryNetwork", "Network", "Station", "TcpNetwork")


class Station:
    """A process's end of the network."""

    store: Store

    def open(self) -> AbstractAsyncContextManager[Store]:
        """The store as this process reaches it."""
        raise NotImplementedError

    async def died(self, *, noticed: bool) -> None:
        """The process is dead; ``noticed``: the store's side sees its connections close."""
        raise NotImplementedError

    async def outage(self, outage: Outage) -> None:
        """An outage begins."""
        raise NotImplementedError

    def calm(self) -> None:
        """No further faults."""

    async def dispose(self) -> None:
        """Clear away what a dead process left, after the last check."""
        raise NotImplementedError


class Network:
    """A store and the ways to it.

    Attributes:
        table: What the store holds.
    """

    table: Table

    def station(self, line: Line) -> Station:
        """A new process's end."""
        raise NotImplementedError


class MemoryNetwork(Network):
    """One memory store; faults are those of :class:`~arendezvous.testing.simstore.SimStore`."""

    def __init__(self, checker: Checker, tasks: TaskGroup) -> None:
        self._inner, self._tasks = MemoryStore(), tasks
        self.table = self._inner._table = WatchedTable(checker.see, grace=DISCONNECT_GRACE)

    def station(self, line: Line) -> Station:
        """A new process's end."""
        return _MemoryStation(SimStore(self._inner, line, self._tasks))


class _MemoryStation(Station):
    def __init__(self, store: SimStore) -> None:
        self.store = self._sim = store

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        yield self._sim

    async def died(self, *, noticed: bool) -> None:
        if noticed:
            self._sim.drop()

    async def outage(self, outage: Outage) -> None:
        if outage.reset:
            self._sim.drop()
            await anyio.sleep_until(outage.end)
            self._sim.reattach()

    async def dispose(self) -> None:
        await self._sim.dispose()


class TcpNetwork(Network):
    """One real server; every process has a real client, and its streams suffer."""

    def __init__(self, checker: Checker, tasks: TaskGroup) -> None:
        self._checker, self.tasks = checker, tasks
        self.service: StoreService | None = None

    async def serve(self, lost: float, back: float) -> None:
        """Run the server; it loses everything at ``lost`` and is empty when it is back."""
        with anyio.move_on_at(lost):
            await self._serve()
        self.service = None
        self._checker.store_lost()
        await anyio.sleep_until(back)
        await self._serve()

    async def _serve(self) -> None:
        async with StoreService() as service:
            self.table = service.table = WatchedTable(
                self._checker.see, grace=DISCONNECT_GRACE, max_value=MAX_FRAME - 65536, root=ROOT
            )
            self.service = service
            await anyio.sleep_forever()

    def station(self, line: Line) -> Station:
        """A new process's end."""
        return _TcpStation(self, line)


class _SimStream(FaultyStream):
    """A client's end that may vanish: nothing reaches the server any more, not even the end of the connection."""

    vanished = False

    async def aclose(self) -> None:
        """Close the stream within, unless it has vanished."""
        if not self.vanished:
            await super().aclose()
            return
        self._closed = True
        self._wake()
        await checkpoint()


class _TcpStation(Station):
    def __init__(self, network: TcpNetwork, line: Line) -> None:
        self._network, self._line = network, line
        self._rng = Random(line.rng.getrandbits(64))
        self._streams: list[tuple[_SimStream, MemoryByteStream]] = []
        patience = line.weather.patience
        self.store = TCPStore(
            "simulated",
            1,
            connect=self._dial,
            endpoint="simulated:1",
            rng=Random(line.rng.getrandbits(64)),
            timeout=patience * 2,
            connect_timeout=patience * 2,
            ping_after=patience,
            ping_limit=patience,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        async with self.store:
            yield self.store

    async def _dial(self) -> ByteStream:
        line, rng = self._line, self._rng
        await line.travel(rng.uniform(*line.weather.delay))
        weather = line.weather  # the calm may have come
        service = self._network.service
        if service is None or (weather.lost_request and rng.random() < 2 * weather.lost_request):
            raise ConnectionRefusedError("refused by the simulation")
        client, server = memory_stream_pair(addresses=((f"10.0.0.{rng.randint(1, 250)}", 1000), ("10.0.0.254", 1)))
        stream = _SimStream(client, delay=weather.delay, rng=rng, sleep=line.travel)
        if weather.lost_reply and rng.random() < 0.8:
            stream.drop_reply = 1 + int(rng.expovariate(weather.lost_reply))
        if weather.lost_request and rng.random() < 0.8:
            # In the middle of a request: the average one has about a hundred bytes.
            stream.cut_send_at = 40 + int(rng.expovariate(weather.lost_request / 100))
        self._streams = [(faulty, end) for faulty, end in self._streams if not end._closed]
        self._streams.append((stream, client))
        self._network.tasks.start_soon(service.serve_stream, server)
        return stream

    async def died(self, *, noticed: bool) -> None:
        for stream, client in self._streams:
            if noticed:
                client.abort()
            else:
                stream.vanished = True
                stream.stall()

    async def outage(self, outage: Outage) -> None:
        if outage.reset:
            for _, client in self._streams:
                client.abort()

    def calm(self) -> None:
        for stream, _ in self._streams:
            stream.delay = self._line.weather.delay
            if not self._line.process.dead:
                stream.heal()

    async def dispose(self) -> None:
        for _, client in self._streams:
            client.abort()
            await client.aclose()
