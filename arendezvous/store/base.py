"""The asynchronous store protocol that everything above is written against, and what all stores share.

Semantics are settled by one public suite, :func:`arendezvous.testing.check_store`. A store is an async context manager;
``aclose()`` is idempotent. Keys are ``str`` (any text, the empty string included), values are ``bytes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from ..errors import StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = (
    "DEFAULT_TIMEOUT",
    "DISCONNECT_GRACE",
    "Capabilities",
    "Lease",
    "LeaseInfo",
    "Store",
    "StoreBase",
)

#: A store's own limit for one blocking call, in seconds (design.md section 4).
DEFAULT_TIMEOUT = 300.0
#: How long a lease outlives a connection that dropped, in seconds (design.md section 4).
DISCONNECT_GRACE = 1.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store does natively; what it does not is emulated by polling with jitter.

    Attributes:
        watch: It says itself when a key changes.
        lease: It lets keys of a dead owner vanish.
        scan: It lists keys by prefix.
    """

    watch: bool = True
    lease: bool = True
    scan: bool = True


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One leased key as the store sees it.

    Attributes:
        key: The key that the lease holds.
        age: Seconds since its last refresh, on the store's own clock.
        ttl: Seconds that it lives without a refresh.
        attached: False while the owner's connection is gone and the disconnect grace runs: a hint of a death.
    """

    key: str
    age: float
    ttl: float
    attached: bool


class Lease(Protocol):
    """A key's life insurance: what was set through it vanishes when its owner does."""

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease.

        A lease that the store had already let expire is opened anew. One lease may hold several keys.

        Raises:
            RendezvousConnectionError: the store cannot be reached.

        Cancellation:
            Safe: the write may or may not have happened.
        """
        ...


class Store(Protocol):
    """Asynchronous key/value store with compare-and-swap, watches and leases.

    Concurrency:
        Any number of tasks of one event loop may call one store at the same time. Not thread-safe.

    Cancellation:
        Cancelling any call is safe: it may or may not have happened, and nothing later gets its reply.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Which of watch, lease and scan are native."""
        ...

    @property
    def endpoint(self) -> str:
        """The place of the data as an operator would type it, for messages."""
        ...

    async def set(self, key: str, value: bytes) -> None:
        """Write ``value``, creating the key or replacing what it had."""
        ...

    async def get(self, key: str) -> bytes:
        """Wait until ``key`` exists and return its value.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the key.
        """
        ...

    async def peek(self, key: str) -> bytes | None:
        """Return the value of ``key`` now, or None when it is missing; never waits for it."""
        ...

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return ``(swapped, value now stored)``.

        An empty ``expected`` matches a missing or an empty value. A wrong ``expected`` on a missing key creates
        nothing and returns ``(False, b"")``.
        """
        ...

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """:meth:`compare_and_swap` with the return value of torch's ``compare_set``.

        The stored value, ``desired`` if it was written, except that a non-empty ``expected`` on a missing key comes
        back itself.
        """
        ...

    async def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to a decimal ASCII counter (missing counts as 0) and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number; it stays as it is.
        """
        ...

    async def wait(self, keys: Sequence[str]) -> None:
        """Wait until every one of ``keys`` exists; an empty list returns at once.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        ...

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` exist now."""
        ...

    async def delete_key(self, key: str) -> bool:
        """Remove ``key``; True if it existed."""
        ...

    async def num_keys(self) -> int:
        """How many keys exist."""
        ...

    async def append(self, key: str, value: bytes) -> None:
        """Append ``value`` to what ``key`` holds (missing counts as empty)."""
        ...

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all of ``keys`` and return their values in that order."""
        ...

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write all pairs.

        Raises:
            ValueError: the two sequences differ in length.
        """
        ...

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key that starts with ``prefix`` and its value, in the order in which the keys were created."""
        ...

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """Return the value of ``key`` as soon as it differs from ``held`` (None = missing), at once if it does now.

        Intermediate values may be skipped; the newest never is. Not bounded by the store's own limit: waiting for
        news is not an error. Reconnecting stores go on watching across a reconnect.

        Raises:
            RendezvousConnectionError: the store cannot be reached (any more).
        """
        ...

    def lease(self, ttl: float) -> AbstractAsyncContextManager[Lease]:
        """Open a lease: keys set through it are gone at the latest ``ttl`` seconds after its last refresh.

        Measured on the store's clock. At once after a clean exit of the block, within :data:`DISCONNECT_GRACE`
        after the owner's connection dropped or its process died.
        """
        ...

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key that starts with ``prefix`` (plain keys are not listed)."""
        ...

    def limit(self, seconds: float | None) -> AbstractContextManager[None]:
        """Change the store's own limit for this block and task (None = no limit)."""
        ...

    async def aclose(self) -> None:
        """Close; idempotent. Calls in flight raise :class:`RendezvousConnectionError`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None: ...


# One per process and keyed by store, so that ``with a.limit(1)`` does not bound a call on another store.
_limits: ContextVar[tuple[tuple[int, float | None], ...]] = ContextVar("arendezvous_store_limits", default=())


def check_seconds(name: str, seconds: float | None) -> float | None:
    """Validate a limit in seconds: a positive number, or None for no limit.

    Raises:
        ValueError: zero, negative, NaN or not a number.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"{name} must be a positive number of seconds or None, not {seconds!r}")
    return None if seconds == math.inf else float(seconds)


class StoreBase:
    """The parts of :class:`Store` that follow from the others; built-in stores derive from it.

    Args:
        timeout: The store's own limit for a blocking call in seconds; None = no limit.
    """

    def __init__(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        self._timeout = check_seconds("timeout", timeout)

    @property
    def timeout(self) -> float | None:
        """The limit in force for the calling task, in seconds; None = no limit."""
        for owner, seconds in reversed(_limits.get()):
            if owner == id(self):
                return seconds
        return self._timeout

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        """Change the store's own limit for this block and task.

        Args:
            seconds: The new limit; None = no limit.

        Raises:
            ValueError: ``seconds`` is not positive.
        """
        token = _limits.set((*_limits.get(), (id(self), check_seconds("limit", seconds))))
        try:
            yield
        finally:
            _limits.reset(token)

    @contextmanager
    def bounded(self, describe: Callable[[float], str]) -> Iterator[None]:
        """Run a block under the store's limit; turn *its* end into :class:`StoreTimeoutError`.

        A scope of our own rather than ``fail_after``: its error must name what is missing, and a caller's scope that
        ends first must stay anonymous.

        Args:
            describe: Called with the seconds waited when the limit ended; returns the message.
        """
        seconds = self.timeout
        if seconds is None:
            yield
            return
        with anyio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise StoreTimeoutError(describe(seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None

    async def aclose(self) -> None:
        """Close; idempotent."""
