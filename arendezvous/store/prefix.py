"""A part of a store as a store of its own.

The stored key is ``<prefix>/:<key>``, where ``%`` and ``:`` in the prefix are written ``%25`` and ``%3A``. A prefix
store within a prefix store joins the prefixes by ``%/``. Prefixes stay readable and keep their slashes, so that a scan
of the underlying store for ``a/b/`` finds what is under the prefix ``a/b/c``. The first ``:`` ends the prefixes and a
``%`` before a slash separates two, whence no two nestings of prefixes with a key share a stored key: ``"job"`` with the
key ``"1/x"`` is ``job/:1/x``, ``"job/1"`` with ``"x"`` is ``job/1/:x``, and ``"1"`` within ``"job"`` is ``job%/1/:x``.
(A prefix store that is hidden in a wrapper of another kind cannot be seen; its keys are prefixed once more.)
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import anyio

from ..errors import RendezvousConnectionError
from .arguments import check_keys, encode_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from types import TracebackType

    from .base import Capabilities, Lease, LeaseInfo, Store

__all__ = ("PrefixLease", "PrefixStore")


class PrefixLease:
    """A lease of a :class:`PrefixStore`."""

    def __init__(self, store: PrefixStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease; an expired lease is opened anew.

        Raises:
            RendezvousConnectionError: the store cannot be reached, or this view of it was closed.

        Cancellation:
            Safe: the write may or may not have happened.
        """
        await self._lease.set(self._store._full(key), value)


class PrefixStore:
    """The keys of a store that begin with a prefix, under their names without it.

    Limits are those of the underlying store: ``with prefix_store.limit(1)`` bounds calls on either.

    Args:
        prefix: Any text; two prefixes that differ never share a key.
        store: The store that holds the keys. It stays the caller's: closing the prefix store leaves it open.

    Attributes:
        prefix: The prefix that was given.
        underlying_store: The store that was given.

    Concurrency:
        As the underlying store.

    Cancellation:
        As the underlying store.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        encode_key(prefix)
        self.prefix = prefix
        self.underlying_store = store
        self._outer: tuple[PrefixStore, ...] = ()
        self._store = store
        place: str = prefix.replace("%", "%25").replace(":", "%3A")
        if isinstance(store, PrefixStore):
            self._outer = (*store._outer, store)
            self._store = store._store
            place = f"{store._place}%/{place}"
        self._place: str = place
        self._head = f"{place}/:"
        self._open = True
        self._flights: set[anyio.CancelScope] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the underlying store."""
        return self._store.capabilities

    @property
    def endpoint(self) -> str:
        """That of the underlying store."""
        return self._store.endpoint

    @property
    def timeout(self) -> float | None:
        """The underlying store's limit for the calling task, in seconds; None = no limit."""
        limit: float | None = getattr(self._store, "timeout", None)
        return limit

    async def set(self, key: str, value: bytes) -> None:
        """Write ``value``, creating the key or replacing what it had."""
        await self._store.set(self._full(key), value)

    async def get(self, key: str) -> bytes:
        """Wait until ``key`` exists and return its value.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the key as the underlying store has it.
            RendezvousConnectionError: the store cannot be reached, or was closed.
        """
        with self._flight():
            return await self._store.get(self._full(key))
        raise self._closed()

    async def peek(self, key: str) -> bytes | None:
        """Return the value of ``key`` now, or None when it is missing."""
        return await self._store.peek(self._full(key))

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return ``(swapped, value now stored)``."""
        return await self._store.compare_and_swap(self._full(key), expected, desired)

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """:meth:`compare_and_swap` with the return value of torch's ``compare_set``."""
        return await self._store.compare_set(self._full(key), expected, desired)

    async def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to a decimal ASCII counter (missing counts as 0) and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number; it stays as it is.
        """
        return await self._store.add(self._full(key), amount)

    async def wait(self, keys: Sequence[str]) -> None:
        """Wait until every one of ``keys`` exists; an empty list returns at once.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        with self._flight():
            return await self._store.wait(self._all(keys))
        raise self._closed()

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` exist now."""
        return await self._store.check(self._all(keys))

    async def delete_key(self, key: str) -> bool:
        """Remove ``key``; True if it existed."""
        return await self._store.delete_key(self._full(key))

    async def num_keys(self) -> int:
        """How many keys exist under the prefix; of the whole underlying store if that cannot scan."""
        if self._store.capabilities.scan:
            return len(await self.scan(""))
        self._check_open()
        return await self._store.num_keys()

    async def append(self, key: str, value: bytes) -> None:
        """Append ``value`` to what ``key`` holds (missing counts as empty)."""
        await self._store.append(self._full(key), value)

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all of ``keys`` and return their values in that order."""
        with self._flight():
            return await self._store.multi_get(self._all(keys))
        raise self._closed()

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write all pairs.

        Raises:
            ValueError: the two sequences differ in length.
        """
        await self._store.multi_set(self._all(keys), values)

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key here that starts with ``prefix`` and its value, in the order in which the keys were created."""
        found = await self._store.scan(self._full(prefix))
        return [(key[len(self._head) :], value) for key, value in found]

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """Return the value of ``key`` as soon as it differs from ``held`` (None = missing), at once if it does now.

        Raises:
            RendezvousConnectionError: the store cannot be reached (any more), or was closed.
        """
        with self._flight():
            return await self._store.watch(self._full(key), held)
        raise self._closed()

    def lease(self, ttl: float) -> AbstractAsyncContextManager[PrefixLease]:
        """Open a lease of the underlying store for keys here."""
        return self._lease(ttl)

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key here that starts with ``prefix``."""
        found = await self._store.leases(self._full(prefix))
        return [replace(info, key=info.key[len(self._head) :]) for info in found]

    def limit(self, seconds: float | None) -> AbstractContextManager[None]:
        """Change the underlying store's limit for this block and task (None = no limit)."""
        return self._store.limit(seconds)

    async def aclose(self) -> None:
        """Close this view, not the underlying store; idempotent.

        Calls in flight through it, and through prefix stores within it, raise :class:`RendezvousConnectionError`.
        """
        self._open = False
        for scope in list(self._flights):
            scope.cancel()
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _full(self, key: str) -> str:
        self._check_open()
        encode_key(key)
        return self._head + key

    def _all(self, keys: Sequence[str]) -> list[str]:
        self._check_open()
        check_keys(keys)
        return [self._head + key for key in keys]

    def _views(self) -> tuple[PrefixStore, ...]:
        return (*self._outer, self)

    def _check_open(self) -> None:
        if not all(view._open for view in self._views()):
            raise self._closed()

    def _closed(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(f"the view of {self.endpoint} under the prefix {self.prefix!r} is closed")

    @contextmanager
    def _flight(self) -> Iterator[None]:
        """A block that ends, without an error, when this view is closed."""
        self._check_open()
        with anyio.CancelScope() as scope:
            for view in self._views():
                view._flights.add(scope)
            try:
                yield
            finally:
                for view in self._views():
                    view._flights.discard(scope)

    @asynccontextmanager
    async def _lease(self, ttl: float) -> AsyncIterator[PrefixLease]:
        self._check_open()
        async with self._store.lease(ttl) as lease:
            yield PrefixLease(self, lease)
