"""A store in the memory of one process; every handler of the process is given the same object."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from ..errors import RendezvousConnectionError, RendezvousUsageError
from .arguments import (
    check_amount,
    check_keys,
    check_pairs,
    check_ttl,
    check_value,
    decode_key,
    encode_key,
    name_keys,
)
from .base import DEFAULT_TIMEOUT, DISCONNECT_GRACE, Capabilities, LeaseInfo, StoreBase
from .table import Table, Waiter

__all__ = ("HashStore", "MemoryLease", "MemoryStore")

_T = TypeVar("_T")


class _Wait(Generic[_T]):
    """One task that waits for the table."""

    __slots__ = ("news", "scope", "waiter", "woken")

    def __init__(self) -> None:
        self.news: list[_T] = []
        self.woken = anyio.Event()
        self.scope = anyio.CancelScope()
        self.waiter: Waiter | None = None

    def tell(self, news: _T) -> None:
        """Take what the table says and wake the task."""
        self.news.append(news)
        self.woken.set()


class MemoryLease:
    """A lease of a :class:`MemoryStore`."""

    def __init__(self, store: MemoryStore, ttl: float) -> None:
        self._store = store
        self._ttl = ttl
        self._ended = False

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease; an expired lease is opened anew.

        Raises:
            RendezvousUsageError: the block of this lease is over.

        Cancellation:
            Safe: the write has happened if this returned, else it has not.
        """
        if self._ended:
            raise RendezvousUsageError("this lease has ended; open a new one")
        await self._store._lease_set(self, self._ttl, encode_key(key), check_value(value))


class MemoryStore(StoreBase):
    """The :class:`~arendezvous.store.base.Store` protocol in the memory of this process.

    It runs no task: leases that are over end at the next call, and while somebody waits, at their time.

    Args:
        timeout: The store's own limit for a blocking call in seconds; None = no limit.

    Concurrency:
        Any number of tasks of one event loop; not thread-safe.

    Cancellation:
        A cancelled call has not changed anything.
    """

    def __init__(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        super().__init__(timeout)
        self._table = Table(grace=DISCONNECT_GRACE)
        self._open = True
        # Everybody who waits, in order of arrival. The first is the timekeeper: its scope also ends at the next expiry.
        self._waits: dict[_Wait[object], None] = {}
        self._keeper: _Wait[object] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Watch, lease and scan are native."""
        return Capabilities()

    @property
    def endpoint(self) -> str:
        """``memory``: the data is in this process."""
        return "memory"

    @property
    def waiting(self) -> int:
        """How many calls wait for keys or news."""
        return len(self._waits)

    async def set(self, key: str, value: bytes) -> None:
        """Write ``value``, creating the key or replacing what it had."""
        name, value = encode_key(key), check_value(value)
        await self._turn()
        self._table.set(name, value)

    async def get(self, key: str) -> bytes:
        """Wait until ``key`` exists and return its value.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the key.
        """
        return (await self._wait_for([encode_key(key)]))[0]

    async def peek(self, key: str) -> bytes | None:
        """Return the value of ``key`` now, or None when it is missing."""
        name = encode_key(key)
        await self._turn()
        return self._table.get(name)

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return ``(swapped, value now stored)``."""
        name, expected, desired = encode_key(key), check_value(expected), check_value(desired)
        await self._turn()
        return self._table.compare_and_swap(name, expected, desired)

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """:meth:`compare_and_swap` with the return value of torch's ``compare_set``."""
        name, expected, desired = encode_key(key), check_value(expected), check_value(desired)
        await self._turn()
        if expected and self._table.get(name) is None:
            return expected
        return self._table.compare_and_swap(name, expected, desired)[1]

    async def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to a decimal ASCII counter (missing counts as 0) and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number; it stays as it is.
        """
        name, amount = encode_key(key), check_amount(amount)
        await self._turn()
        return self._table.add(name, amount)

    async def wait(self, keys: Sequence[str]) -> None:
        """Wait until every one of ``keys`` exists; an empty list returns at once.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        await self._wait_for(check_keys(keys))

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` exist now."""
        names = check_keys(keys)
        await self._turn()
        return not self._table.missing(names)

    async def delete_key(self, key: str) -> bool:
        """Remove ``key``; True if it existed."""
        name = encode_key(key)
        await self._turn()
        return self._table.delete(name)

    async def num_keys(self) -> int:
        """How many keys exist."""
        await self._turn()
        return len(self._table)

    async def append(self, key: str, value: bytes) -> None:
        """Append ``value`` to what ``key`` holds (missing counts as empty)."""
        name, value = encode_key(key), check_value(value)
        await self._turn()
        self._table.append(name, value)

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all of ``keys`` and return their values in that order, all of one moment.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        return await self._wait_for(check_keys(keys))

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write all pairs at one moment.

        Raises:
            ValueError: the two sequences differ in length.
        """
        pairs = check_pairs(keys, values)
        await self._turn()
        self._table.set_many(pairs)

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key that starts with ``prefix`` and its value, in the order in which the keys were created."""
        name = encode_key(prefix)
        await self._turn()
        return [(decode_key(key), value) for key, value in self._table.scan(name)]

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """Return the value of ``key`` as soon as it differs from ``held`` (None = missing), at once if it does now.

        Raises:
            RendezvousConnectionError: the store was closed.
        """
        name = encode_key(key)
        held = None if held is None else check_value(held)
        return await self._await_news(lambda tell: self._table.watch(name, held, tell))

    def lease(self, ttl: float) -> AbstractAsyncContextManager[MemoryLease]:
        """Open a lease: keys set through it are gone at the latest ``ttl`` seconds after its last refresh.

        Raises:
            ValueError: ``ttl`` is not a positive number.
        """
        return self._lease(check_ttl(ttl))

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key that starts with ``prefix``."""
        name = encode_key(prefix)
        await self._turn()
        now = anyio.current_time()
        return [
            LeaseInfo(decode_key(key), age, ttl, attached) for key, age, ttl, attached in self._table.leases(name, now)
        ]

    def drop(self, lease: MemoryLease) -> None:
        """Do to ``lease`` what the loss of a connection does on a networked store: start its disconnect grace.

        The next :meth:`MemoryLease.set` brings it back, as a reconnecting client does. For tests and simulations.
        """
        self._table.detach(lease, anyio.current_time())
        self._retime()

    async def aclose(self) -> None:
        """Close; idempotent. Calls in flight raise :class:`RendezvousConnectionError`."""
        self._open = False
        for wait in list(self._waits):
            wait.woken.set()
        await checkpoint()

    async def _turn(self) -> None:
        # The checkpoint comes first: who is cancelled here has changed nothing, and what follows does not await.
        await checkpoint()
        self._check_open()
        self._expire()

    def _check_open(self) -> None:
        if not self._open:
            raise RendezvousConnectionError("the memory store is closed")

    def _expire(self) -> None:
        if self._table.next_expiry() < math.inf:
            self._table.expire(anyio.current_time())

    async def _wait_for(self, keys: list[bytes]) -> list[bytes]:
        started = anyio.current_time()

        def describe(seconds: float) -> str:
            missing = [decode_key(key) for key in self._table.missing(keys)]
            waited = anyio.current_time() - started
            return f"waited {waited:.2f} s for {name_keys(missing)} in the memory store, which nobody has set"

        with self.bounded(describe):
            return await self._await_news(lambda tell: self._table.wait(keys, tell))
        raise AssertionError("bounded() raises when its limit ends")  # pragma: no cover

    async def _await_news(self, register: Callable[[Callable[[_T], None]], Waiter | None]) -> _T:
        await self._turn()
        wait: _Wait[_T] = _Wait()
        waiter = register(wait.tell)
        if waiter is None:
            return wait.news[0]
        self._waits[wait] = None  # type: ignore[index]
        try:
            while True:
                self._retime()
                with wait.scope:
                    await wait.woken.wait()
                if wait.news:
                    return wait.news[0]
                self._check_open()
                # Told nothing, so this is the timekeeper and its time has come.
                wait.scope = anyio.CancelScope()
                self._expire()
                if wait.news:
                    return wait.news[0]
        finally:
            waiter.cancel()
            del self._waits[wait]  # type: ignore[arg-type]
            if self._keeper is wait:
                self._keeper = None
                self._retime()

    def _retime(self) -> None:
        """Have the first of those who wait wake up at the next expiry, whatever has changed."""
        if self._keeper is None:
            self._keeper = next(iter(self._waits), None)
        if self._keeper is not None:
            self._keeper.scope.deadline = self._table.next_expiry()

    async def _lease_set(self, lease: MemoryLease, ttl: float, key: bytes, value: bytes) -> None:
        await self._turn()
        self._table.lease_set(lease, lease, ttl, key, value, anyio.current_time())
        self._retime()

    @asynccontextmanager
    async def _lease(self, ttl: float) -> AsyncIterator[MemoryLease]:
        await self._turn()
        lease = MemoryLease(self, ttl)
        self._table.lease_open(lease, lease, ttl, anyio.current_time())
        self._retime()
        try:
            yield lease
        finally:
            lease._ended = True
            # Synchronous, so that no cancellation comes between.
            self._expire()
            self._table.lease_close(lease)
            self._retime()


#: The name that torch gives to this kind of store.
HashStore = MemoryStore
