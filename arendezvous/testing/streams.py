"""Byte streams in memory, and a wrapper that makes any byte stream fail in a chosen way at a chosen byte.

Nothing here is random unless a generator is passed in and nothing knows the real time, so a simulation that runs over
these streams in virtual time is repeatable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ("FaultyStream", "MemoryByteStream", "Uniform", "memory_stream_pair")

#: How a kernel's socket buffers are sized, roughly.
DEFAULT_CAPACITY = 65536

Address = tuple[str, int]
_T = TypeVar("_T")


class Uniform(Protocol):
    """What is needed of a random generator; ``random.Random`` has it."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""
        ...


class _Pipe:
    """One direction: bytes under way from a sender to a receiver."""

    __slots__ = ("_changed", "aborted", "buffer", "capacity", "finished", "unread")

    def __init__(self, capacity: int) -> None:
        self.buffer = bytearray()
        self.capacity = capacity
        self.finished = False  # nothing will be added
        self.unread = False  # nothing will be taken: the receiver has closed
        self.aborted = False  # the connection was reset
        self._changed = anyio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def change(self) -> None:
        await self._changed.wait()


class MemoryByteStream(ByteStream):
    """One end of :func:`memory_stream_pair`.

    It behaves as a TCP stream does: a send waits while the peer does not read, a peer that closed is
    :class:`~anyio.EndOfStream` to a receiver and :class:`~anyio.BrokenResourceError` to a sender, and closing with
    unread data resets the connection.

    Cancellation:
        A cancelled receive has taken nothing. A cancelled send may have delivered any part.

    Concurrency:
        One sender and one receiver at a time, others raise :class:`~anyio.BusyResourceError`.
    """

    def __init__(self, inbound: _Pipe, outbound: _Pipe, local: Address | None, remote: Address | None) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._local = local
        self._remote = remote
        self._closed = False
        self._sending = False
        self._receiving = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return between 1 and ``max_bytes`` bytes.

        Raises:
            EndOfStream: the peer has sent its last byte.
            BrokenResourceError: the connection was reset.
            ClosedResourceError: this end was closed.
        """
        if max_bytes <= 0:
            raise ValueError(f"max_bytes must be positive, not {max_bytes}")
        if self._receiving:
            raise BusyResourceError("receiving from")
        self._receiving = True
        try:
            await checkpoint()
            pipe = self._inbound
            while True:
                if self._closed:
                    raise ClosedResourceError
                if pipe.buffer:
                    taken = bytes(pipe.buffer[:max_bytes])
                    del pipe.buffer[:max_bytes]
                    pipe.notify()
                    return taken
                if pipe.aborted:
                    raise BrokenResourceError
                if pipe.finished:
                    raise EndOfStream
                await pipe.change()
        finally:
            self._receiving = False

    async def send(self, item: bytes) -> None:
        """Send all of ``item``; wait while the peer's buffer is full.

        Raises:
            BrokenResourceError: the peer has closed or the connection was reset.
            ClosedResourceError: this end was closed, or its sending side by :meth:`send_eof`.
        """
        if self._sending:
            raise BusyResourceError("sending to")
        self._sending = True
        try:
            await checkpoint()
            pipe = self._outbound
            view = memoryview(item)
            while True:
                if self._closed or pipe.finished:
                    raise ClosedResourceError
                if pipe.aborted or pipe.unread:
                    raise BrokenResourceError
                space = pipe.capacity - len(pipe.buffer)
                if space > 0 and view:
                    pipe.buffer += view[:space]
                    view = view[space:]
                    pipe.notify()
                if not view:
                    return
                await pipe.change()
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Tell the peer that nothing more will come; receiving goes on. Idempotent."""
        if self._closed:
            raise ClosedResourceError
        if self._sending:
            raise BusyResourceError("sending to")
        self._finish()
        await checkpoint()

    def abort(self) -> None:
        """Reset the connection as a dying network does: both ends get :class:`~anyio.BrokenResourceError`."""
        for pipe in (self._inbound, self._outbound):
            pipe.aborted = True
            pipe.notify()

    async def aclose(self) -> None:
        """Close both directions; idempotent. What was sent before stays readable for the peer."""
        if not self._closed:
            self._closed = True
            if self._inbound.buffer:
                # Data that nobody will read: TCP answers it with a reset.
                self._outbound.aborted = True
            self._inbound.unread = True
            self._inbound.buffer.clear()
            self._inbound.notify()
            self._finish()
        await checkpoint()

    def _finish(self) -> None:
        self._outbound.finished = True
        self._outbound.notify()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The addresses that the pair was given, under the names that sockets use."""
        attributes: dict[Any, Callable[[], Any]] = {}
        if self._local is not None:
            attributes[SocketAttribute.local_address] = partial(_constant, self._local)
            attributes[SocketAttribute.local_port] = partial(_constant, self._local[1])
        if self._remote is not None:
            attributes[SocketAttribute.remote_address] = partial(_constant, self._remote)
            attributes[SocketAttribute.remote_port] = partial(_constant, self._remote[1])
        return attributes


def memory_stream_pair(
    capacity: int = DEFAULT_CAPACITY, addresses: tuple[Address, Address] | None = None
) -> tuple[MemoryByteStream, MemoryByteStream]:
    """Return two connected byte streams: what one sends the other receives.

    Args:
        capacity: How many bytes may be under way in each direction before a sender waits.
        addresses: ``(host, port)`` of the first and of the second end, for those who ask a stream for its addresses.

    Raises:
        ValueError: ``capacity`` is not positive.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, not {capacity}")
    there, back = _Pipe(capacity), _Pipe(capacity)
    first, second = addresses or (None, None)
    return MemoryByteStream(back, there, first, second), MemoryByteStream(there, back, second, first)


class FaultyStream(ByteStream):
    """A byte stream that passes everything on to another one until its fault is due.

    All positions count bytes or chunks of this stream from its start. Every fault may also be set, moved or taken
    away (None) while the stream runs, through the attribute of the same name; it counts from the next call on.

    Args:
        stream: The stream that does the work.
        cut_send_at: Deliver exactly so many sent bytes, then cut: close the stream, so that the peer sees an end
            in the middle of a message; what is left to send raises :class:`~anyio.BrokenResourceError`.
        cut_receive_at: The same after so many received bytes.
        stall_send_at: Deliver exactly so many sent bytes, then let senders wait until :meth:`heal`.
        stall_receive_at: The same for receivers.
        drop_reply: Swallow the received chunk of this number (from 1) and cut: the peer has done what it was asked,
            and this side cannot know.
        half_close_at: Deliver exactly so many sent bytes, then end the sending side only: what is left to send raises
            :class:`~anyio.BrokenResourceError`, replies go on.
        chunk: Largest piece in bytes that a receive returns and a send passes on; 1 = byte by byte.
        delay: Seconds that each chunk waits, both ways: a number, or two for a range to draw from.
        rng: Draws from the range; needed when ``delay`` is one.
        sleep: How to wait.

    Attributes:
        sent: Bytes passed on so far.
        received: Bytes returned so far.
        replies: Chunks received so far.

    Cancellation:
        As the stream within.

    Concurrency:
        One sender and one receiver at a time, as every byte stream.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        cut_send_at: int | None = None,
        cut_receive_at: int | None = None,
        stall_send_at: int | None = None,
        stall_receive_at: int | None = None,
        drop_reply: int | None = None,
        half_close_at: int | None = None,
        chunk: int | None = None,
        delay: float | tuple[float, float] = 0.0,
        rng: Uniform | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        if isinstance(delay, tuple) and rng is None:
            raise ValueError("a range of delays needs rng= to draw from")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {chunk}")
        self.stream = stream
        self.cut_send_at = cut_send_at
        self.cut_receive_at = cut_receive_at
        self.stall_send_at = stall_send_at
        self.stall_receive_at = stall_receive_at
        self.drop_reply = drop_reply
        self.half_close_at = half_close_at
        self.chunk = chunk
        self.delay = delay
        self.sent = 0
        self.received = 0
        self.replies = 0
        self._rng = rng
        self._sleep = sleep
        self._broken = False
        self._closed = False
        # A chunk that has come and must still wait: a cancelled receive may not lose it.
        self._held = b""
        self._delayed = False
        self._woken = anyio.Event()

    def heal(self) -> None:
        """Take away every fault that has not struck; whoever stalls goes on."""
        self.cut_send_at = self.cut_receive_at = self.stall_send_at = self.stall_receive_at = None
        self.drop_reply = self.half_close_at = None
        self._wake()

    def stall(self) -> None:
        """Let nothing pass from now on, in either direction, with both ends open: a host that has vanished."""
        self.stall_send_at, self.stall_receive_at = self.sent, self.received

    async def cut(self) -> None:
        """Close the stream within; whoever uses this end gets :class:`~anyio.BrokenResourceError`."""
        self._broken = True
        self._wake()
        await self.stream.aclose()

    async def send(self, item: bytes) -> None:
        """Send ``item`` as far as the faults allow.

        Raises:
            BrokenResourceError: a cut or half close came due.
        """
        view = memoryview(item)
        while True:
            self._check()
            room = self._room(len(view), self.sent, self.cut_send_at, self.stall_send_at, self.half_close_at)
            piece = bytes(view[:room])
            if piece or not view:
                await self._wait()
                await self._inside(self.stream.send(piece))
                self.sent += len(piece)
                view = view[len(piece) :]
            if _due(self.cut_send_at, self.sent):
                await self.cut()
            elif _due(self.half_close_at, self.sent):
                await self._inside(self.stream.send_eof())
                if view:
                    raise BrokenResourceError
            if not view:
                return
            if not self._broken and _due(self.stall_send_at, self.sent):
                await self._woken.wait()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes as far as the faults allow.

        Raises:
            BrokenResourceError: a cut came due, or the reply was dropped.
        """
        while True:
            self._check()
            if _due(self.cut_receive_at, self.received):
                await self.cut()
            elif _due(self.stall_receive_at, self.received):
                await self._woken.wait()
            elif not self._held:
                taken = await self._inside(self.stream.receive(self._room(max_bytes, 0)))
                self.replies += 1
                if _due(self.drop_reply, self.replies):
                    await self.cut()
                else:
                    self._held, self._delayed = taken, False
            elif not self._delayed:
                await self._wait()
                self._delayed = True
            else:
                room = self._room(max_bytes, self.received, self.cut_receive_at, self.stall_receive_at)
                taken, self._held = self._held[:room], self._held[room:]
                self.received += len(taken)
                return taken

    async def send_eof(self) -> None:
        """End the sending side."""
        self._check()
        await self._inside(self.stream.send_eof())

    async def aclose(self) -> None:
        """Close the stream within."""
        self._closed = True
        self._wake()
        await self.stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the stream within."""
        return self.stream.extra_attributes

    def _check(self) -> None:
        if self._closed:
            raise ClosedResourceError
        if self._broken:
            raise BrokenResourceError

    def _wake(self) -> None:
        self._woken.set()
        self._woken = anyio.Event()

    def _room(self, wanted: int, position: int, *limits: int | None) -> int:
        """How many of the ``wanted`` bytes may pass now."""
        if self.chunk is not None:
            wanted = min(wanted, self.chunk)
        return min([wanted, *(max(0, limit - position) for limit in limits if limit is not None)])

    async def _wait(self) -> None:
        if isinstance(self.delay, tuple):
            assert self._rng is not None
            await self._sleep(self._rng.uniform(*self.delay))
        elif self.delay > 0:
            await self._sleep(self.delay)

    async def _inside(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except ClosedResourceError:
            # Closed by a cut, under the feet of whoever was inside: to them the connection broke.
            if self._broken and not self._closed:
                raise BrokenResourceError from None
            raise


def _constant(value: _T) -> _T:
    return value


def _due(limit: int | None, position: int) -> bool:
    return limit is not None and position >= limit
