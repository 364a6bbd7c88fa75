"""A store on the network: the client of :class:`~arendezvous.store.server.TCPStoreServer`."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

import anyio

from ..errors import RendezvousConnectionError, RendezvousUsageError
from ..wire import messages as say
from ..wire.digest import summarize
from ..wire.frames import MAX_FRAME
from .arguments import check_amount, check_keys, check_pairs, check_ttl, check_value, decode_key, encode_key
from .base import DEFAULT_TIMEOUT, Capabilities, LeaseInfo, StoreBase, check_seconds
from .calls import Calls, check_count
from .dialer import ConnectFailure, Dialer, Randomness
from .link import reason_of

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

__all__ = ("CONNECT_TIMEOUT", "TCPLease", "TCPStore")

#: Seconds that connecting, and each loss of the connection, may last before calls fail.
CONNECT_TIMEOUT: Final = 60.0
#: Seconds for the last words of a client.
_FAREWELL: Final = 1.0

_R = TypeVar("_R", bound=say.Reply)


class TCPLease:
    """A lease of a :class:`TCPStore`; the server hands it to the client's next connection when one is lost."""

    def __init__(self, store: TCPStore, number: int, ttl: float) -> None:
        self._store = store
        self._number = number
        self._ttl = ttl
        self._ended = False

    async def set(self, key: str, value: bytes) -> None:
        """Write ``key`` under this lease and refresh the lease; an expired lease is opened anew.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousUsageError: the block of this lease is over.

        Cancellation:
            Safe: the write may or may not have happened.
        """
        if self._ended:
            raise RendezvousUsageError("this lease has ended; open a new one")
        name, value = encode_key(key), check_value(value)
        await self._store._ask(
            say.LeaseSet(self._store._id(), self._number, self._ttl, name, value), say.Done, f"a write of {key!r}"
        )


class TCPStore(StoreBase):
    """The :class:`~arendezvous.store.base.Store` protocol over one connection; an async context manager.

    Entering connects, waiting for a server that is not up yet. A lost connection is made again in the background.
    Calls that only read, ``set``, ``multi_set`` and a lease's ``set`` are then simply sent again. ``add``, ``append``,
    ``compare_and_swap`` and ``delete_key`` would count, append or answer wrongly if they were done twice: when their
    answer is lost they raise :class:`RendezvousConnectionError` that says so, and the caller reads to find out.

    Args:
        host: Where the server is; a literal address (without brackets) is dialled as it is.
        port: Its port.
        timeout: The store's own limit for a call in seconds; None = no limit.
        connect_timeout: Seconds that connecting, and each loss of the connection, may last before calls fail.
        connect: Opens the byte stream instead of dialling ``host``, for example in memory.
        path: Dial the UNIX socket at this path instead.
        endpoint: What messages call the other end; follows from the rest unless given.
        token: What the server asks for, if it does.
        rng: Anything with ``random()``, for the jitter of the pauses between attempts.
        max_frame: Largest message in bytes.
        ping_after: Seconds of silence after which the server is asked whether it is there.
        ping_limit: Seconds that it then has to answer before the connection counts as lost.

    Raises:
        ValueError: an empty host, an impossible port or limit.

    Concurrency:
        Any number of tasks of one event loop; any number of calls share the connection. Not thread-safe.

    Cancellation:
        Any call may be cancelled: it may or may not have happened, and its answer goes to nobody.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 29400,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        connect: Callable[[], Awaitable[ByteStream]] | None = None,
        path: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        token: bytes = b"",
        rng: Randomness | None = None,
        max_frame: int = MAX_FRAME,
        ping_after: float = 10.0,
        ping_limit: float = 10.0,
    ) -> None:
        super().__init__(timeout)
        if connect is None and path is None:
            if not 0 < port <= 65535:
                raise ValueError(f"a port to dial is 1 to 65535, not {port}")
            if not host:
                raise ValueError("the host to dial is empty; give a name or an address")
        limit = check_seconds("connect_timeout", connect_timeout)
        self._host = host
        self._port = port
        self._path = None if path is None else os.fspath(path)
        if endpoint is None:
            endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if path is not None:
                endpoint = f"unix:{self._path}"
        self._endpoint = endpoint
        self._dialer = Dialer(
            connect or (self._dial_tcp if path is None else self._dial_unix),
            endpoint=endpoint,
            token=token,
            connect_timeout=limit,
            rng=rng,
            max_frame=max_frame,
            ping_after=ping_after,
            ping_limit=ping_limit,
        )
        self._calls = Calls(self._dialer, endpoint=endpoint, max_frame=max_frame)
        self._id = self._calls.next_id
        self._lease_numbers = 0
        self._tasks: TaskGroup | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Watch, lease and scan are native."""
        return Capabilities()

    @property
    def endpoint(self) -> str:
        """``host:port`` with IPv6 in brackets, or ``unix:path``."""
        return self._endpoint

    @property
    def host(self) -> str:
        """The host as it was given."""
        return self._host

    @property
    def port(self) -> int:
        """The port as it was given."""
        return self._port

    @property
    def epoch(self) -> bytes:
        """Names the data of the server that is, or was last, connected; empty before the first connection."""
        return self._dialer.epoch

    @property
    def epoch_changes(self) -> int:
        """How often a reconnect met other data than before: each time, everything written before is gone."""
        return self._dialer.epoch_changes

    @property
    def connects(self) -> int:
        """How many connections there have been."""
        return self._dialer.connects

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._dialer.link is not None

    @property
    def local_address(self) -> str | None:
        """This machine's address on the connection, which is how the server's host sees it; None if it is no TCP."""
        return self._dialer.local_address

    async def __aenter__(self) -> Self:
        if self._tasks is not None or self._dialer.closed:
            raise RendezvousUsageError("a TCPStore is entered once; make a new one")
        await self._dialer.connect()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._dialer.run)
        self._calls.opened = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        try:
            await self.aclose()
        finally:
            self._dialer.close()
            # Without the exception of the body, which a task group would wrap.
            await self._tasks.__aexit__(None, None, None)
        return None

    async def aclose(self) -> None:
        """Send what is still to be sent, then disconnect; idempotent. Calls in flight raise.

        Cancellation:
            Works in a cancelled scope too: it takes at most two seconds and is shielded for that long.
        """
        dialer = self._dialer
        if self._tasks is None or dialer.closed:
            dialer.closed = True
            return
        # From here on no call gets in.
        dialer.closed = True
        with anyio.move_on_after(_FAREWELL, shield=True):
            if dialer.link is not None:
                await dialer.link.flushed()
        dialer.close()
        with anyio.move_on_after(_FAREWELL, shield=True):
            await dialer.finished.wait()

    # Calls

    async def set(self, key: str, value: bytes) -> None:
        """Write ``value``, creating the key or replacing what it had."""
        name, value = encode_key(key), check_value(value)
        await self._ask(say.Set(self._id(), name, value), say.Done, f"a write of {key!r}")

    async def get(self, key: str) -> bytes:
        """Wait until ``key`` exists and return its value.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the key.
        """
        return (await self._calls.wait_for([encode_key(key)], self.timeout, want=True))[0]

    async def peek(self, key: str) -> bytes | None:
        """Return the value of ``key`` now, or None when it is missing."""
        name = encode_key(key)
        return (await self._ask(say.Peek(self._id(), name), say.Value, f"a read of {key!r}")).value

    async def compare_and_swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired`` atomically; return ``(swapped, value now stored)``.

        Raises:
            RendezvousConnectionError: also when the connection was lost before the answer came: the swap may have
                happened.
        """
        swapped, value = await self._swap(key, expected, desired)
        return swapped, value or b""

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """:meth:`compare_and_swap` with the return value of torch's ``compare_set``."""
        value = (await self._swap(key, expected, desired))[1]
        return check_value(expected) if value is None else value

    async def add(self, key: str, amount: int) -> int:
        """Add ``amount`` to a decimal ASCII counter (missing counts as 0) and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number; it stays as it is.
            RendezvousConnectionError: also when the connection was lost before the answer came: it may be added.
        """
        name, amount = encode_key(key), check_amount(amount)
        what = f"an addition to {key!r}"
        return (await self._ask(say.Add(self._id(), name, amount), say.Number, what, again=False)).number

    async def wait(self, keys: Sequence[str]) -> None:
        """Wait until every one of ``keys`` exists; an empty list returns at once.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        await self._calls.wait_for(check_keys(keys), self.timeout, want=False)

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all of ``keys`` exist now."""
        names = check_keys(keys)
        return not (await self._ask(say.Check(self._id(), names), say.Values, "a check of keys")).values

    async def delete_key(self, key: str) -> bool:
        """Remove ``key``; True if it existed.

        Raises:
            RendezvousConnectionError: also when the connection was lost before the answer came: it may be removed.
        """
        name = encode_key(key)
        what = f"a removal of {key!r}"
        return bool((await self._ask(say.Delete(self._id(), name), say.Number, what, again=False)).number)

    async def num_keys(self) -> int:
        """How many keys exist."""
        return (await self._ask(say.NumKeys(self._id()), say.Number, "a count of keys")).number

    async def append(self, key: str, value: bytes) -> None:
        """Append ``value`` to what ``key`` holds (missing counts as empty).

        Raises:
            RendezvousConnectionError: also when the connection was lost before the answer came: it may be appended.
        """
        name, value = encode_key(key), check_value(value)
        await self._ask(say.Append(self._id(), name, value), say.Number, f"an append to {key!r}", again=False)

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for all of ``keys`` and return their values in that order, all of one moment.

        Raises:
            StoreTimeoutError: the store's own limit ended; the message names the missing keys.
        """
        return await self._calls.wait_for(check_keys(keys), self.timeout, want=True)

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write all pairs at one moment.

        Raises:
            ValueError: the two sequences differ in length.
        """
        pairs = check_pairs(keys, values)
        check_count(len(pairs))
        await self._ask(say.MultiSet(self._id(), pairs), say.Done, "a write of several keys")

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Every key that starts with ``prefix`` and its value, in the order in which the keys were created."""
        name = encode_key(prefix)
        reply = await self._ask(say.Scan(self._id(), name), say.Pairs, f"a scan of {prefix!r}")
        return [(decode_key(key), value) for key, value in reply.pairs]

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        """Return the value of ``key`` as soon as it differs from ``held`` (None = missing), at once if it does now.

        Goes on across reconnects. A long ``held`` costs 20 bytes on the wire.

        Raises:
            RendezvousConnectionError: the store could not be reached for ``connect_timeout``.
        """
        name = encode_key(key)
        # Once, not at each reconnect: it may be long.
        held_summary = None if held is None else summarize(check_value(held))
        request = say.Watch(self._id(), name, held_summary)
        return (await self._calls.exchange(request, say.Value, f"a watch of {key!r}")).value

    def lease(self, ttl: float) -> AbstractAsyncContextManager[TCPLease]:
        """Open a lease: keys set through it are gone at the latest ``ttl`` seconds after its last refresh.

        Raises:
            ValueError: ``ttl`` is not a positive number.
        """
        return self._lease(check_ttl(ttl))

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """Every leased key that starts with ``prefix``; ages are on the server's clock."""
        name = encode_key(prefix)
        reply = await self._ask(say.Leases(self._id(), name), say.LeaseList, f"a list of leases of {prefix!r}")
        return [LeaseInfo(decode_key(key), age, ttl, attached) for key, age, ttl, attached in reply.leases]

    # How a call goes

    def _ask(self, request: say.Request, answer: type[_R], what: str, *, again: bool = True) -> Awaitable[_R]:
        return self._calls.ask(request, answer, what, self.timeout, again=again)

    async def _swap(self, key: str, expected: bytes, desired: bytes) -> tuple[bool, bytes | None]:
        name, wanted, desired = encode_key(key), summarize(check_value(expected)), check_value(desired)
        request = say.CompareAndSwap(self._id(), name, wanted, desired)
        reply = await self._ask(request, say.Swapped, f"a compare-and-swap of {key!r}", again=False)
        return reply.swapped, desired if reply.swapped else reply.value

    # Leases

    @asynccontextmanager
    async def _lease(self, ttl: float) -> AsyncIterator[TCPLease]:
        self._lease_numbers += 1
        lease = TCPLease(self, self._lease_numbers, ttl)
        await self._ask(say.LeaseOpen(self._id(), lease._number, ttl), say.Done, "a lease")
        try:
            yield lease
        finally:
            lease._ended = True
            ended = anyio.Event()
            if not self._dialer.closed and self._tasks is not None:
                # In a task of the store: on asyncio a second cancellation of this one would pierce the shield.
                self._tasks.start_soon(self._end_lease, lease._number, ended)
                # Without a connection there is nothing to wait for: the server ends the lease by itself.
                if self._dialer.link is not None:
                    with anyio.move_on_after(_FAREWELL, shield=True):
                        await ended.wait()

    async def _end_lease(self, number: int, ended: anyio.Event) -> None:
        # Shielded until the store is closed: the next connection would bring the lease back to life, so it is told.
        try:
            with anyio.CancelScope(shield=True), suppress(RendezvousConnectionError):
                request = say.LeaseClose(self._id(), number)
                await self._calls.exchange(request, say.Number, "the end of a lease")
        finally:
            ended.set()

    # Dialling

    async def _dial_tcp(self) -> ByteStream:
        try:
            return await anyio.connect_tcp(self._host, self._port)
        except socket.gaierror as exc:
            raise ConnectFailure(f"the name {self._host!r} does not resolve ({reason_of(exc)})") from exc
        except ValueError as exc:
            # A label that is too long, say, or a character that no name has: waiting would not help.
            raise ConnectFailure(f"{self._host!r} is no host name ({reason_of(exc)})", final=True) from exc

    async def _dial_unix(self) -> ByteStream:
        assert self._path is not None
        return await anyio.connect_unix(self._path)
