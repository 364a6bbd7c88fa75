"""A memory store behind a bad network: one :class:`SimStore` per simulated process, all over one memory store.

A call travels, is done, and its answer travels back. On the way it may be delayed, wait for the end of an outage or a
pause, be lost, or be done although its caller was told that it failed; a call that was given up may land later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from ..errors import RendezvousConnectionError, RendezvousUsageError
from ..store.base import Capabilities, LeaseInfo, StoreBase
from ..store.memory import MemoryLease, MemoryStore
from .simclock import Outage, Pause, passes
from .simplan import CALM, Weather

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ("Line", "Process", "SimLease", "SimStore", "hang")

_T = TypeVar("_T")
_FAIR = Weather()
#: Seconds that the end of a lease waits for its answer, as the real client does.
_FAREWELL = 1.0


class Process(Protocol):
    """What the network must know of a simulated process."""

    name: str
    dead: bool


async def hang() -> None:
    """What the calls of a process do once it is dead."""
    await anyio.sleep_forever()


class Line:
    """A process's way to the store: when things pass, and what becomes of them.

    Args:
        process: Whose it is.
        weather: How calls fare until the calm.
        outages: When nothing passes.
        pauses: When the process does not run.
        rng: Decides.
    """

    def __init__(
        self, process: Process, weather: Weather, outages: Sequence[Outage], pauses: Sequence[Pause], rng: Random
    ) -> None:
        self.process, self.outages, self.pauses, self.rng = process, outages, pauses, rng
        self._weather = weather

    @property
    def weather(self) -> Weather:
        """How calls fare now."""
        return self._weather if anyio.current_time() < CALM else _FAIR

    def arrival(self, since: float) -> float:
        """When what is sent at ``since`` arrives at the store."""
        weather = self.weather
        way = self.rng.uniform(*weather.delay)
        if weather.spike and self.rng.random() < weather.spike:
            way += self.rng.uniform(0, weather.spike_delay)
        return passes(self.outages, passes(self.pauses, since) + way)

    def back(self, since: float) -> float:
        """When an answer that leaves the store at ``since`` reaches a process that runs."""
        return passes(self.pauses, self.arrival(since))

    async def travel(self, seconds: float) -> None:
        """Sleep ``seconds`` and until things pass again; for ever once the process is dead."""
        weather = self.weather
        if weather.spike and self.rng.random() < weather.spike / 4:
            seconds += self.rng.uniform(0, weather.spike_delay)
        at = passes(self.pauses, passes(self.outages, anyio.current_time() + seconds))
        await anyio.sleep_until(at)
        if self.process.dead:
            await hang()


class SimLease:
    """A lease through a bad network."""

    def __init__(self, store: SimStore, inner: MemoryLease) -> None:
        self._store, self._inner = store, inner

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease."""
        await self._store.call("beat", lambda: self._store.beat(self._inner, key, value), again=True)


class SimStore(StoreBase):
    """The store as one process sees it.

    Args:
        inner: The store itself.
        line: The way to it.
        tasks: Where requests land that their caller has given up.
    """

    def __init__(self, inner: MemoryStore, line: Line, tasks: TaskGroup) -> None:
        super().__init__()
        self._inner, self._line, self._tasks = inner, line, tasks
        self._leases: list[tuple[AbstractAsyncContextManager[MemoryLease], MemoryLease]] = []
        self.calls = 0

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store itself."""
        return self._inner.capabilities

    @property
    def endpoint(self) -> str:
        """That of the store itself."""
        return self._inner.endpoint

    # ---- what happens to a process ----------------------------------------------------------------------------

    def drop(self) -> None:
        """The store notices that the connection is gone."""
        for _, lease in self._leases:
            self._inner.drop(lease)

    def reattach(self) -> None:
        """The connection is back before the grace of its leases was over."""
        for _, lease in self._leases:
            self._inner._table.attach(lease, anyio.current_time())

    async def dispose(self) -> None:
        """End what a dead process left behind, after the last check."""
        leases, self._leases = self._leases, []
        for manager, _ in leases:
            await manager.__aexit__(None, None, None)

    # ---- how a call goes --------------------------------------------------------------------------------------

    async def call(self, what: str, done: Callable[[], Awaitable[_T]], *, again: bool = False) -> _T:
        """One request and its answer.

        Args:
            what: For messages.
            done: Does it on the store.
            again: It does no harm when done twice, so it is sent again when it is lost.
        """
        limit = anyio.current_time() + self._line.weather.patience
        while True:
            try:
                return await self._once(what, done, limit)
            except RendezvousConnectionError:
                pause = self._line.rng.uniform(0.02, 1.0)
                if not again or anyio.current_time() + pause >= limit:
                    raise
                await self._line.travel(pause)

    async def _once(self, what: str, done: Callable[[], Awaitable[_T]], limit: float) -> _T:
        self.calls += 1
        line, rng = self._line, self._line.rng
        weather, began = line.weather, anyio.current_time()
        arrival = line.arrival(began)
        lost = bool(weather.lost_request) and rng.random() < weather.lost_request
        try:
            await anyio.sleep_until(min(arrival, limit))
        except anyio.get_cancelled_exc_class():
            if not line.process.dead and rng.random() < weather.late:
                self._post(arrival + rng.uniform(0, 2), done)
            raise
        if line.process.dead:
            await hang()
        if lost or arrival > limit:
            if rng.random() < weather.late:
                self._post(max(arrival, limit) + rng.uniform(0, 3), done)
            raise RendezvousConnectionError(f"the connection was lost on the way of a {what}")
        result = await done()
        if weather.lost_reply and rng.random() < weather.lost_reply:
            await line.travel(rng.uniform(0, 0.5))
            raise RendezvousConnectionError(f"the connection was lost before the answer to a {what}")
        return await self._answer(result, what, weather.patience)

    async def _answer(self, result: _T, what: str, patience: float) -> _T:
        line, now = self._line, anyio.current_time()
        back, limit = line.back(now), passes(line.pauses, now + patience)
        await anyio.sleep_until(min(back, limit))
        if line.process.dead:
            await hang()
        if back > limit:
            raise RendezvousConnectionError(f"the connection was lost before the answer to a {what}")
        return result

    def _post(self, at: float, done: Callable[[], Awaitable[object]]) -> None:
        self._tasks.start_soon(self._land, min(at, CALM), done)

    async def _land(self, at: float, done: Callable[[], Awaitable[object]]) -> None:
        await anyio.sleep_until(at)
        try:
            await done()
        except (RendezvousUsageError, ValueError):
            pass  # nobody is there to be told

    # ---- the protocol -----------------------------------------------------------------------------------------

    async def set(self, key: str, value: bytes) -> None:
        """See :class:`~arendezvous.store.base.Store`."""
        await self.call(f"write of {key}", lambda: self._inner.set(key, value), again=True)

    async def get(self, key: str) -> bytes:
        """See :class:`~arendezvous.store.base.Store`."""
        return (await self.multi_get([key]))[0]

    async def peek(self, key: str) -> bytes | None:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"read of {key}", lambda: self._inner.peek(key), again=True)

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"swap of {key}", lambda: self._inner.compare_and_swap(key, expected, desired))

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"swap of {key}", lambda: self._inner.compare_set(key, expected, desired))

    async def add(self, key: str, amount: int) -> int:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"addition to {key}", lambda: self._inner.add(key, amount))

    async def wait(self, keys: Sequence[str]) -> None:
        """See :class:`~arendezvous.store.base.Store`."""
        await self.multi_get(keys)

    async def check(self, keys: Sequence[str]) -> bool:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call("check of keys", lambda: self._inner.check(keys), again=True)

    async def delete_key(self, key: str) -> bool:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"removal of {key}", lambda: self._inner.delete_key(key))

    async def num_keys(self) -> int:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call("count of keys", self._inner.num_keys, again=True)

    async def append(self, key: str, value: bytes) -> None:
        """See :class:`~arendezvous.store.base.Store`."""
        await self.call(f"append to {key}", lambda: self._inner.append(key, value))

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """See :class:`~arendezvous.store.base.Store`."""
        await self._line.travel(self._line.rng.uniform(*self._line.weather.delay))
        with self._inner.limit(self.timeout):
            values = await self._inner.multi_get(keys)
        return await self._answer(values, "wait for keys", self._line.weather.patience)

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """See :class:`~arendezvous.store.base.Store`."""
        await self.call("write of several keys", lambda: self._inner.multi_set(keys, values), again=True)

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call(f"scan of {prefix}", lambda: self._inner.scan(prefix), again=True)

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """See :class:`~arendezvous.store.base.Store`."""
        self.calls += 1
        line = self._line
        patience, began = line.weather.patience, anyio.current_time()
        arrival = line.arrival(began)
        await anyio.sleep_until(min(arrival, began + patience))
        if line.process.dead:
            await hang()
        if arrival > began + patience:
            raise RendezvousConnectionError(f"the connection was lost on the way of a watch of {key}")
        value = await self._inner.watch(key, held)
        return await self._answer(value, f"watch of {key}", patience)

    def lease(self, ttl: float) -> AbstractAsyncContextManager[SimLease]:
        """See :class:`~arendezvous.store.base.Store`."""
        return self._lease(ttl)

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """See :class:`~arendezvous.store.base.Store`."""
        return await self.call("list of leases", lambda: self._inner.leases(prefix), again=True)

    @asynccontextmanager
    async def _lease(self, ttl: float) -> AsyncIterator[SimLease]:
        manager = self._inner.lease(ttl)
        opened: list[MemoryLease] = []

        async def open_it() -> None:
            if not self._line.process.dead and not opened:
                opened.append(await manager.__aenter__())
                self._leases.append((manager, opened[0]))

        await self.call("lease", open_it, again=True)
        try:
            yield SimLease(self, opened[0])
        finally:
            if not self._line.process.dead:
                closed = anyio.Event()
                self._tasks.start_soon(
                    self._close, manager, opened[0], self._line.arrival(anyio.current_time()), closed
                )
                with anyio.move_on_after(_FAREWELL, shield=True):
                    await closed.wait()

    async def _close(
        self, manager: AbstractAsyncContextManager[MemoryLease], lease: MemoryLease, at: float, closed: anyio.Event
    ) -> None:
        await anyio.sleep_until(at)
        if (manager, lease) in self._leases:
            self._leases.remove((manager, lease))
            await manager.__aexit__(None, None, None)
        closed.set()

    async def beat(self, lease: MemoryLease, key: str, value: bytes) -> None:
        """Do a beat that has arrived; a dead process's connection carries none any more."""
        if not self._line.process.dead:
            await lease.set(key, value)
