"""The server without sockets: one table, any number of byte streams, the clock of this process."""

from __future__ import annotations

import hmac
import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import anyio

from ..wire.frames import MAX_FRAME
from ..wire.hello import EPOCH_SIZE
from .base import DISCONNECT_GRACE
from .connection import ROOT, Connection, close_stream
from .table import Table

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

__all__ = ("HELLO_TIMEOUT", "STALL_TIMEOUT", "StoreService")

_log = logging.getLogger("arendezvous.store.server")

#: Seconds that a connection has to say hello.
HELLO_TIMEOUT = 5.0
#: Seconds after which a client that takes nothing of what is sent to it is dropped.
STALL_TIMEOUT = 30.0
#: A timer this many seconds late means that the whole process stood still.
_LATE = 0.25
#: What an answer needs besides the value in it.
_MARGIN = 64 * 1024


class StoreService:
    """Serves the native protocol on byte streams that somebody else accepts; an async context manager.

    Args:
        epoch: Names the data, 16 bytes; random unless given.
        token: What clients must say in their hello; empty = anybody is served.
        grace: Seconds that leases outlive their client's connection.
        max_frame: Largest message in bytes, in either direction.
        hello_timeout: Seconds that a connection has to say hello.
        stall_timeout: Seconds after which a client that does not read is dropped.

    Attributes:
        table: The keys. Native clients keep theirs under ``/``.
    """

    def __init__(
        self,
        *,
        epoch: bytes | None = None,
        token: bytes = b"",
        grace: float = DISCONNECT_GRACE,
        max_frame: int = MAX_FRAME,
        hello_timeout: float = HELLO_TIMEOUT,
        stall_timeout: float = STALL_TIMEOUT,
    ) -> None:
        self.epoch = os.urandom(EPOCH_SIZE) if epoch is None else epoch
        if len(self.epoch) != EPOCH_SIZE:
            raise ValueError(f"an epoch has {EPOCH_SIZE} bytes, not {len(self.epoch)}")
        if max_frame <= 2 * _MARGIN:
            raise ValueError(f"max_frame must be more than {2 * _MARGIN} bytes, not {max_frame}")
        self.max_frame = max_frame
        self.hello_timeout = hello_timeout
        self.table = Table(grace=grace, max_value=max_frame - _MARGIN, root=ROOT)
        self._token = token
        self._stall_timeout = stall_timeout
        self._tasks: TaskGroup | None = None
        self._scope = anyio.CancelScope(shield=True)
        self._timer = anyio.CancelScope()
        self._connections: set[Connection] = set()
        self._sessions: dict[bytes, Connection] = {}
        self._changed = anyio.Event()
        self._closed = False
        self._joins = 0

    @property
    def clients(self) -> int:
        """How many clients that have said hello are connected."""
        return len(self._sessions)

    @property
    def connections(self) -> int:
        """How many connections there are, those without a hello included."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        try:
            await self.aclose()
        finally:
            self._scope.cancel()
            # Without the exception of the body, which a task group would wrap.
            await self._tasks.__aexit__(None, None, None)
        return None

    async def aclose(self) -> None:
        """Drop every client and return when all are gone; idempotent.

        Cancellation:
            Works in a cancelled scope too: it takes at most a second and is shielded for that long.
        """
        self._closed = True
        with anyio.move_on_after(1, shield=True):
            for connection in list(self._connections):
                await connection.hang_up()
            await self._until(lambda: not self._connections)
        for connection in self._connections:
            connection.retire()
        self._scope.cancel()

    async def serve_stream(self, stream: ByteStream) -> None:
        """Serve one connection until it ends, then close the stream.

        What the peer sends never raises here: it costs that connection only.

        Concurrency:
            One task per stream; any number at the same time.

        Cancellation:
            Drops the connection.
        """
        connection = Connection(self, stream)
        self._connections.add(connection)
        try:
            if not self._closed:
                await connection.run()
        finally:
            self._left(connection)
            try:
                await close_stream(stream)
            finally:
                # Also where a cancelled scope around this cuts the closing short: the socket itself is closed.
                self._connections.discard(connection)
                self._notify()

    async def wait_idle(self, seconds: float, *, from_start: bool = True) -> None:
        """Return when no client has been connected for ``seconds``.

        Args:
            seconds: How long nobody must have been there.
            from_start: Whether the time before the first client counts too.

        Cancellation:
            Safe.
        """
        if not from_start:
            await self._until(lambda: self._joins > 0)
        while True:
            await self._until(lambda: self.clients == 0)
            # Counted, because a client that came and went between two looks was there too.
            seen = self._joins
            with anyio.move_on_after(seconds):
                while self._joins == seen:
                    await self._changed.wait()
            if self._joins == seen:
                return

    async def drain(self, linger: float, *, others_than: int = 0) -> bool:
        """Wait until the clients have gone, at most ``linger`` seconds; True if they have.

        Args:
            linger: Longest wait in seconds.
            others_than: How many clients of one's own may stay.

        Cancellation:
            Safe.
        """
        with anyio.move_on_after(linger):
            await self._until(lambda: self.clients <= others_than)
        return self.clients <= others_than

    def accepts(self, token: bytes) -> bool:
        """Whether a client that says ``token`` may come in."""
        return not self._token or hmac.compare_digest(token, self._token)

    def joined(self, connection: Connection) -> None:
        """A connection has said hello: it takes the place of an older one of the same client."""
        assert connection.session is not None
        older = self._sessions.get(connection.session)
        if older is not None:
            # Before anything of the new connection is read: what the client still had under way on the old one, and
            # may have decided to send again, must not take effect later.
            older.retire()
        self._sessions[connection.session] = connection
        self._joins += 1
        self.table.attach(connection.session, anyio.current_time())
        self.retime()
        self._notify()

    def retime(self) -> None:
        """A lease has changed: wake up at the next expiry."""
        self._timer.deadline = self.table.next_expiry()

    def _left(self, connection: Connection) -> None:
        session = connection.session
        if session is not None and self._sessions.get(session) is connection:
            del self._sessions[session]
            self.table.detach(session, anyio.current_time())
            self.retime()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def _run(self) -> None:
        # Shielded: whoever hosts a store may have to serve the others while its own scope is cancelled already, until
        # it has lingered. aclose() ends it.
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drop_stalled)
                while True:
                    await self._expire()

    async def _expire(self) -> None:
        due = self.table.next_expiry()
        with anyio.CancelScope(deadline=due) as self._timer:
            await anyio.sleep_forever()
        due = self.table.next_expiry()
        now = anyio.current_time()
        if now - due > _LATE:
            # This process stood still. What kept the leases alive meanwhile is still in the sockets: read it first.
            _log.warning("the store server stood still for %.1f s; leases get a moment to be refreshed", now - due)
            await anyio.sleep(_LATE)
            now = anyio.current_time()
        if now >= due < math.inf:
            self.table.expire(now)

    async def _drop_stalled(self) -> None:
        sending: dict[Connection, tuple[int, float]] = {}
        while True:
            await anyio.sleep(self._stall_timeout / 4)
            now = anyio.current_time()
            seen, sending = sending, {}
            for connection in self._connections:
                if not connection.sending:
                    continue
                sends, since = seen.get(connection, (0, now))
                if sends != connection.sends:
                    since = now
                sending[connection] = connection.sends, since
                if now - since >= self._stall_timeout:
                    _log.warning("dropping a store client that has taken nothing for %.0f s", now - since)
                    connection.scope.cancel()
