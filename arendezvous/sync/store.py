"""The blocking store: every call of the asynchronous protocol, run in the event loop behind the process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from ..errors import RendezvousUsageError
from ..store.base import DEFAULT_TIMEOUT, check_seconds
from .portal import Portal, Resident, get_portal

if TYPE_CHECKING:
    from ..store.base import LeaseInfo
    from ..store.base import Store as AsyncStore

__all__ = ("Seconds", "Store", "seconds_of")

R = TypeVar("R")

#: A duration as torch and this library take it.
Seconds = float | timedelta


def seconds_of(name: str, value: Seconds | None) -> float | None:
    """A duration in seconds.

    Args:
        name: What it is called, for the message.
        value: Seconds, a ``timedelta`` or None for no limit.

    Raises:
        ValueError: it is not positive.
    """
    return check_seconds(name, value.total_seconds() if isinstance(value, timedelta) else value)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _close_soon(residents: list[Resident[AsyncStore]]) -> None:
    for resident in residents:
        resident.close_soon()


class Store:
    """A blocking key/value store; opened by its first call, a context manager, closed with its last reference.

    Args:
        make: Returns the asynchronous store; called in the event loop.
        what: What it is, for messages.
        timeout: Seconds that a blocking call may take unless it says otherwise; None = no limit.

    Concurrency:
        Any number of threads. After a fork the child makes stores of its own.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[AsyncStore]],
        what: str,
        timeout: Seconds | None = DEFAULT_TIMEOUT,
    ) -> None:
        self._portal: Portal = get_portal()
        self._make = make
        self._what = what
        self._timeout = seconds_of("timeout", timeout)
        self._lock = threading.Lock()
        self._residents: list[Resident[AsyncStore]] = []
        self._closed = False
        # Not at exit: the portal closes everything then, in a known order.
        weakref.finalize(self, _close_soon, self._residents).atexit = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._what}>"

    @property
    def timeout(self) -> timedelta:
        """How long a blocking call may take unless it says otherwise."""
        return timedelta.max if self._timeout is None else timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: Seconds | None) -> None:
        """Change :attr:`timeout`; None = no limit.

        Raises:
            ValueError: it is not positive.
        """
        self._timeout = seconds_of("timeout", timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value, creating the key or replacing what it had; text is stored as UTF-8."""
        self._ask("set", lambda store: store.set(key, _bytes(value)))

    def get(self, key: str, timeout: Seconds | None = None) -> bytes:
        """Wait until a key exists and return its value.

        Args:
            key: The key.
            timeout: Seconds for this call; None = the store's own.

        Raises:
            StoreTimeoutError: it is still missing; the message names it.
        """
        return self._ask("get", lambda store: store.get(key), timeout)

    def peek(self, key: str) -> bytes | None:
        """The value of a key now, None when it is missing."""
        return self._ask("peek", lambda store: store.peek(key))

    def has(self, key: str) -> bool:
        """Whether a key exists now."""
        return self._ask("check", lambda store: store.check([key]))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""
        return self._ask("check", lambda store: store.check(keys))

    def wait(self, keys: Sequence[str], timeout: Seconds | None = None) -> None:
        """Wait until all keys exist.

        Args:
            keys: The keys.
            timeout: Seconds for this call; None = the store's own.

        Raises:
            StoreTimeoutError: some are still missing; the message names them.
        """
        self._ask("wait", lambda store: store.wait(keys), timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum.

        Raises:
            ValueError: the key holds no number.
        """
        return self._ask("add", lambda store: store.add(key, amount))

    def compare_and_swap(self, key: str, expected: str | bytes, desired: str | bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return whether, and the value now stored.

        An empty ``expected`` matches a missing or an empty value; on a missing key any other gives ``(False, b"")``.
        """
        return self._ask("compare_and_swap", lambda s: s.compare_and_swap(key, _bytes(expected), _bytes(desired)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """:meth:`compare_and_swap` with what torch returns: the value now stored, or ``expected`` for a missing key."""
        return self._ask("compare_set", lambda store: store.compare_set(key, _bytes(expected), _bytes(desired)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; True if it existed."""
        return self._ask("delete_key", lambda store: store.delete_key(key))

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._ask("num_keys", lambda store: store.num_keys())

    def append(self, key: str, value: str | bytes) -> None:
        """Append to what a key holds."""
        self._ask("append", lambda store: store.append(key, _bytes(value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all keys and return their values in that order.

        Raises:
            StoreTimeoutError: some are still missing.
        """
        return self._ask("multi_get", lambda store: store.multi_get(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write all pairs.

        Raises:
            ValueError: there are not as many keys as values.
        """
        self._ask("multi_set", lambda store: store.multi_set(keys, [_bytes(value) for value in values]))

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key that starts with a prefix, and its value."""
        return self._ask("scan", lambda store: store.scan(prefix))

    def watch(self, key: str, held: bytes | None, timeout: Seconds | None = None) -> bytes | None:
        """Wait until the value of a key differs from ``held`` (None = missing) and return it.

        Raises:
            RendezvousTimeoutError: the timeout ended; None = no limit.
        """
        return self._call("watch", lambda store: store.watch(key, held), seconds_of("timeout", timeout))

    def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key that starts with a prefix."""
        return self._ask("leases", lambda store: store.leases(prefix))

    def close(self) -> None:
        """Close; idempotent. A later call is refused."""
        with self._lock:
            self._closed = True
            for resident in self._residents:
                resident.close(f"{type(self).__name__}.close()", "store.aclose()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def view(self, store: AsyncStore) -> AsyncStore:
        """What the calls of this object go to; a prefix looks at a part of it."""
        return store

    def open(self) -> Resident[AsyncStore]:
        """Open it unless it is open, and return what holds it.

        Raises:
            RendezvousConnectionError: it cannot be reached.
            RendezvousUsageError: it was closed, or this is a forked child.
        """
        self._check_open()
        with self._lock:
            if not self._residents:
                resident = Resident(self._portal, self._make, repr(self))
                resident.open(f"{type(self).__name__}", f"arendezvous.{type(self).__name__}")
                self._residents.append(resident)
            return self._residents[0]

    def _check_open(self) -> None:
        if self._closed:
            raise RendezvousUsageError(f"{self!r} is closed.")

    def _ask(self, name: str, function: Callable[[AsyncStore], Awaitable[R]], timeout: Seconds | None = None) -> R:
        """A call under the store's own limit, which names what is missing when it ends."""
        limit = self._timeout if timeout is None else seconds_of("timeout", timeout)

        async def bounded(store: AsyncStore) -> R:
            with store.limit(limit):
                return await function(store)

        return self._call(name, bounded)

    def _call(self, name: str, function: Callable[[AsyncStore], Awaitable[R]], timeout: float | None = None) -> R:
        # Before the lock, which a fork may have left locked.
        self._portal.check(f"{type(self).__name__}.{name}()", f"store.{name}() of arendezvous.{type(self).__name__}")
        return self.open().call(
            lambda store: function(self.view(store)),
            what=f"{type(self).__name__}.{name}()",
            instead=f"store.{name}() of arendezvous.{type(self).__name__}",
            timeout=timeout,
        )
