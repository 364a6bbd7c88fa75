"""A store in a file, for processes that share a file system and nothing else.

The file is a log of changes, ``<path>``. Beside it are ``<path>.leases/``, with one locked file per lease, and for a
moment ``<path>.new``, the compacted log on its way to ``<path>``. Several processes and several stores of one process
may use a path at once, on one machine or on several with a network file system that has locks. Killing any of them at
any time loses nothing that a call has confirmed. What the machine had not yet written to the disk is lost with its
power.

Others' changes are noticed by looking: every 2 ms after something has happened, down to every 50 ms when it is quiet.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from ..errors import RendezvousConnectionError, RendezvousError, RendezvousUsageError
from .arguments import (
    COUNTER_MAX,
    COUNTER_MIN,
    check_amount,
    check_keys,
    check_pairs,
    check_ttl,
    check_value,
    decode_key,
    encode_key,
    name_keys,
)
from .base import DEFAULT_TIMEOUT, Capabilities, LeaseInfo, StoreBase
from .filedisk import Disk
from .filelocks import Busy, Held
from .filelog import Append, Delete, Put, Record, Replica
from .hostclock import host_clock, host_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

__all__ = ("FileLease", "FileStore")

_T = TypeVar("_T")

#: How often to look for others' changes, at most and at least, in seconds; and how fast it slows down.
_POLL_MIN: Final = 0.002
_POLL_MAX: Final = 0.05
_POLL_GROWTH: Final = 1.3
#: How long to wait for a lock that another process holds, the first time and at most.
_BUSY_MIN: Final = 0.0003
_BUSY_MAX: Final = 0.01
#: Seconds for the last words of a lease or a store.
_FAREWELL: Final = 1.0


class _Wait:
    """One task that waits for some keys to change."""

    __slots__ = ("missing", "news")

    def __init__(self) -> None:
        self.news = anyio.Event()
        self.missing: list[bytes] = []


class FileLease:
    """A lease of a :class:`FileStore`: a locked file of its own, which the kernel frees with the process."""

    def __init__(self, store: FileStore, ttl: float) -> None:
        self._store = store
        self._ttl = ttl
        self._held = Held()
        self._ended = False

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease; an expired lease is opened anew.

        Raises:
            RendezvousConnectionError: the file cannot be used.
            RendezvousUsageError: the block of this lease is over.

        Cancellation:
            Safe: the write may or may not have happened.
        """
        name, value = encode_key(key), check_value(value)
        if self._ended:
            raise RendezvousUsageError("this lease has ended; open a new one")
        await self._store._call(lambda: self._store._disk.beat(self._held, self._ttl, name, value))


class FileStore(StoreBase):
    """The :class:`~arendezvous.store.base.Store` protocol on a file that several processes share.

    It runs no task of its own: of the calls that wait, one looks for the others. A lease ends when its lock file is
    free or its time is over, whichever of the stores that use the file notices first says so in the log. Times of
    leases are measured on a clock that all processes of a machine share; of a lease from another machine a store
    knows only when it first saw the refresh, so a store that had not been used for a while lets it live longer.

    Args:
        path: The file; made if it does not exist, in a directory that does.
        timeout: The store's own limit for a blocking call in seconds; None = no limit. Also bounds the wait for the
            file's lock.
        jitter: Returns a number from 0 up to 1, to spread the looks of many processes; random by default.

    Concurrency:
        Any number of tasks of one event loop; not thread-safe. Work on the file happens in a worker thread, one call
        at a time. After a fork the child must make a store of its own.

    Cancellation:
        Safe: a call that has reached the file is completed first, which takes a millisecond.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(timeout)
        self._path = os.path.abspath(os.fspath(path))
        self._disk = Disk(self._path)
        self._jitter = jitter if jitter is not None else _jitter
        self._open = True
        # A thread of its own: the shared ones may all be taken by whatever the caller does in threads.
        self._limiter = anyio.CapacityLimiter(1)
        self._waits: dict[_Wait, list[bytes]] = {}
        self._waiting: dict[bytes, dict[_Wait, None]] = {}
        self._poller: _Wait | None = None
        self._interval = _POLL_MIN

    @property
    def capabilities(self) -> Capabilities:
        """Watch, lease and scan are native."""
        return Capabilities()

    @property
    def endpoint(self) -> str:
        """The path of the file."""
        return self._path

    @property
    def waiting(self) -> int:
        """How many calls wait for keys or news."""
        return len(self._waits)

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            RendezvousConnectionError: it cannot be used.
            RendezvousStateError: it was not written by a file store.
        """
        try:
            await self._read(lambda replica: None)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def set(self, key: str, value: bytes) -> None:
        """Write ``value``, creating the key or replacing what it had."""
        record = Put(encode_key(key), check_value(value))
        await self._write(lambda replica: ([record], None))

    async def get(self, key: str) -> bytes:
        """Wait until ``key`` exists and return its value.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the key.
        """
        return (await self._wait_for([encode_key(key)]))[0]

    async def peek(self, key: str) -> bytes | None:
        """Return the value of ``key`` now, or None when it is missing."""
        name = encode_key(key)
        return await self._read(lambda replica: replica.get(name))

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return ``(swapped, value now stored)``."""
        swapped, stored = await self._swap(key, expected, desired)
        return swapped, stored or b""

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """:meth:`compare_and_swap` with the return value of torch's ``compare_set``."""
        _, stored = await self._swap(key, expected, desired)
        return expected if stored is None else stored

    async def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to a decimal ASCII counter (missing counts as 0) and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number; it stays as it is.
        """
        name, amount = encode_key(key), check_amount(amount)

        def decide(replica: Replica) -> tuple[list[Record], int]:
            stored = replica.get(name)
            digits = b"0" if stored is None else stored
            if not digits.removeprefix(b"-").isdigit() or len(digits) > 20:
                raise ValueError(f"the value of {key!r} is {digits[:32]!r}, not a decimal number")
            total = int(digits) + amount
            if not COUNTER_MIN <= total <= COUNTER_MAX:
                raise ValueError(f"the counter {key!r} would leave 64 bits: {int(digits)} + {amount}")
            return [Put(name, b"%d" % total)], total

        return await self._write(decide)

    async def wait(self, keys: Sequence[str]) -> None:
        """Wait until every one of ``keys`` exists; an empty list returns at once.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        await self._wait_for(check_keys(keys))

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` exist now."""
        names = check_keys(keys)
        return await self._read(lambda replica: not replica.missing(names))

    async def delete_key(self, key: str) -> bool:
        """Remove ``key``; True if it existed."""
        name = encode_key(key)

        def decide(replica: Replica) -> tuple[list[Record], bool]:
            return ([Delete(name)], True) if name in replica.items else ([], False)

        return await self._write(decide)

    async def num_keys(self) -> int:
        """How many keys exist."""
        return await self._read(lambda replica: len(replica.items))

    async def append(self, key: str, value: bytes) -> None:
        """Append ``value`` to what ``key`` holds (missing counts as empty)."""
        record = Append(encode_key(key), check_value(value))
        await self._write(lambda replica: ([record], None))

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all of ``keys`` and return their values in that order, all of one moment.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        return await self._wait_for(check_keys(keys))

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write all pairs at one moment, or none of them.

        Raises:
            ValueError: the two sequences differ in length.
        """
        records = [Put(key, value) for key, value in check_pairs(keys, values)]
        await self._write(lambda replica: (records, None))

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key that starts with ``prefix`` and its value, in the order in which the keys were created."""
        name = encode_key(prefix)
        return [(decode_key(key), value) for key, value in await self._read(lambda replica: replica.scan(name))]

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """Return the value of ``key`` as soon as it differs from ``held`` (None = missing), at once if it does now.

        Raises:
            RendezvousConnectionError: the file cannot be used (any more), or the store was closed.
        """
        name = encode_key(key)
        held = None if held is None else check_value(held)

        def look(replica: Replica) -> tuple[bytes | None] | None:
            value = replica.get(name)
            return None if value == held else (value,)

        return (await self._until(_Wait(), [name], look))[0]

    def lease(self, ttl: float) -> AbstractAsyncContextManager[FileLease]:
        """Open a lease: keys set through it are gone at the latest ``ttl`` seconds after its last refresh.

        Raises:
            ValueError: ``ttl`` is not a positive number.
        """
        return self._lease(check_ttl(ttl))

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key that starts with ``prefix``, with the age of its lease.

        All are attached: the keys of a lease whose owner has died are gone at once.
        """
        name = encode_key(prefix)
        found = await self._read(lambda replica: replica.leased(name, host_clock(), host_time()))
        return [LeaseInfo(decode_key(key), age, ttl, True) for key, age, ttl in found]

    async def aclose(self) -> None:
        """Close the file; idempotent. Calls in flight raise :class:`RendezvousConnectionError`."""
        self._open = False
        for wait in self._waits:
            wait.news.set()
        self._disk.close()
        if self._disk.closing:
            # A call is at work in the thread, at whose end everything is closed.
            with anyio.move_on_after(_FAREWELL, shield=True):
                await anyio.to_thread.run_sync(lambda: None, limiter=self._limiter)
        await checkpoint()

    # Calls

    async def _swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes | None]:
        name, expected, desired = encode_key(key), check_value(expected), check_value(desired)

        def decide(replica: Replica) -> tuple[list[Record], tuple[bool, bytes | None]]:
            stored = replica.get(name)
            if (stored or b"") != expected:
                return [], (False, stored)
            return [Put(name, desired)], (True, desired)

        return await self._write(decide)

    async def _read(self, look: Callable[[Replica], _T]) -> _T:
        return await self._call(lambda: self._disk.run(lambda replica: ((), look(replica)), False))

    async def _write(self, decide: Callable[[Replica], tuple[Sequence[Record], _T]]) -> _T:
        self._interval = _POLL_MIN
        return await self._call(lambda: self._disk.run(decide, True))

    async def _call(self, work: Callable[[], _T]) -> _T:
        """Do ``work`` in the thread, under the store's limit."""
        with self.bounded(lambda seconds: f"waited {seconds:.2f} s for {self._who_locks()}"):
            return await self._work(work)
        raise AssertionError("bounded() raises when its limit ends")  # pragma: no cover

    async def _work(self, work: Callable[[], _T]) -> _T:
        pause = _BUSY_MIN
        while True:
            self._check_open()
            try:
                result = await anyio.to_thread.run_sync(work, limiter=self._limiter)
            except Busy:
                await anyio.sleep(pause * (0.5 + self._jitter()))
                pause = min(pause * 1.5, _BUSY_MAX)
            else:
                self._publish()
                return result

    def _who_locks(self) -> str:
        return f"the lock of the file store {self._path}, which another process holds (is one stopped?)"

    def _check_open(self) -> None:
        if not self._open:
            raise RendezvousConnectionError(f"the file store {self._path} is closed")

    # Waiting

    async def _wait_for(self, keys: list[bytes]) -> list[bytes]:
        wait = _Wait()

        def describe(seconds: float) -> str:
            if not wait.missing:
                return f"waited {seconds:.2f} s for {self._who_locks()}"
            missing = name_keys([decode_key(key) for key in wait.missing])
            return f"waited {seconds:.2f} s for {missing} in the file store {self._path}, which nobody has set"

        def look(replica: Replica) -> list[bytes] | None:
            wait.missing = replica.missing(keys)
            return None if wait.missing else [replica.items[key].value for key in keys]

        with self.bounded(describe):
            return await self._until(wait, keys, look)
        raise AssertionError("bounded() raises when its limit ends")  # pragma: no cover

    async def _until(self, wait: _Wait, keys: list[bytes], look: Callable[[Replica], _T | None]) -> _T:
        """Repeat ``look`` at every change of ``keys`` until it finds something."""
        self._waits[wait] = keys
        for key in keys:
            self._waiting.setdefault(key, {})[wait] = None
        try:
            while True:
                # Before the look: what changes from here on is news.
                wait.news = anyio.Event()
                found = await self._work(lambda: self._disk.run(lambda replica: ((), look(replica)), False))
                if found is not None:
                    return found
                await self._news(wait)
        finally:
            self._leave(wait, keys)

    def _leave(self, wait: _Wait, keys: list[bytes]) -> None:
        del self._waits[wait]
        for key in keys:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.pop(wait, None)
                if not waiting:
                    del self._waiting[key]
        if self._poller is wait:
            self._poller = next(iter(self._waits), None)
            if self._poller is not None:
                # It looks once more, and then polls for the others.
                self._poller.news.set()

    async def _news(self, wait: _Wait) -> None:
        """Wait until one of the keys of ``wait`` may have changed."""
        if self._poller is None:
            self._poller = wait
        while not wait.news.is_set():
            if self._poller is not wait:
                await wait.news.wait()
                return
            with anyio.move_on_after(self._interval * (0.5 + self._jitter() / 2)):
                await wait.news.wait()
            self._interval = min(self._interval * _POLL_GROWTH, _POLL_MAX)
            self._check_open()
            with suppress(Busy):
                await anyio.to_thread.run_sync(self._disk.poll, limiter=self._limiter)
                self._publish()

    def _publish(self) -> None:
        """Wake those whose keys have changed."""
        for changed in self._disk.take_changes():
            if changed != set():
                self._interval = _POLL_MIN
            if changed is None:
                woken = list(self._waits)
            else:
                woken = [wait for key in changed for wait in self._waiting.get(key, ())]
            for wait in woken:
                wait.news.set()

    @asynccontextmanager
    async def _lease(self, ttl: float) -> AsyncIterator[FileLease]:
        await self._read(lambda replica: None)
        lease = FileLease(self, ttl)
        try:
            yield lease
        finally:
            lease._ended = True
            try:
                if lease._held.name is not None:
                    # The others learn it at once by the log. If that cannot be, they see the lock free soon.
                    with anyio.move_on_after(_FAREWELL, shield=True), suppress(RendezvousError):
                        await self._work(lambda: self._disk.end(lease._held))
            finally:
                self._disk.release(lease._held)


def _jitter() -> float:
    return int.from_bytes(os.urandom(2), "big") / 65536
