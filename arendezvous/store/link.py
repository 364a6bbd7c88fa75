"""One connection of a client: many calls in flight, a task that writes, one that reads, one that minds silence."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

from ..wire import messages as say
from ..wire.errors import WireError
from ..wire.frames import FrameDecoder, encode_frame

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ("Call", "LimitEnded", "Link", "LinkLost", "reason_of")

_log = logging.getLogger("arendezvous.store.client")

#: The id of pings, whose answers nobody waits for.
_PING_ID: Final = 0


class LinkLost(Exception):
    """The connection is gone; the text says why."""


class LimitEnded(Exception):
    """The deadline of a call has passed."""


def reason_of(exc: BaseException) -> str:
    """Return what the innermost error behind ``exc`` says."""
    while True:
        if isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        elif exc.__cause__ is not None:
            exc = exc.__cause__
        else:
            if isinstance(exc, OSError):
                # The loops put the address into strerror; the system's own words are the same everywhere.
                if exc.errno is not None and exc.errno > 0:
                    return os.strerror(exc.errno)
                return exc.strerror or str(exc) or type(exc).__name__
            return str(exc) or type(exc).__name__


class Call:
    """One request under way.

    Attributes:
        request: What is asked.
        reply: The answer, None until it is there.
        failure: Why there will be none.
        sent: Whether the server may have seen the request.
        deadline: When it fails with :class:`LimitEnded`.
        settled: Set when there is a reply or a failure.
    """

    __slots__ = ("deadline", "dropped", "failure", "frame", "reply", "request", "sent", "settled")

    def __init__(self, request: say.Request, frame: bytes, deadline: float = math.inf) -> None:
        self.request = request
        self.frame = frame
        self.reply: say.Reply | None = None
        self.failure: Exception | None = None
        self.sent = False
        self.dropped = False
        self.deadline = deadline
        self.settled = anyio.Event()


class Link:
    """A connection after its hello.

    Args:
        stream: The connection; it is owned, and closed, by the link.
        epoch: Names the data behind the server.
        rest: What the server sent after its hello.
        max_frame: Largest message in bytes that is taken.
        ping_after: Seconds of silence after which the server is asked whether it is there.
        ping_limit: Seconds that it then has to say anything.
    """

    def __init__(
        self,
        stream: ByteStream,
        epoch: bytes,
        rest: bytes,
        *,
        max_frame: int,
        ping_after: float,
        ping_limit: float,
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.failure: Exception | None = None
        self._rest = rest
        self._max_frame = max_frame
        self._ping_after = ping_after
        self._ping_limit = ping_limit
        self._pending: dict[int, Call] = {}
        self._queue: list[Call] = []
        self._sending = False
        # Events are made when somebody is about to wait, which spares most calls one.
        self._wake: anyio.Event | None = None
        self._idle: anyio.Event | None = None
        self._heard = True
        self._scope = anyio.CancelScope()
        # One timer for all calls: at the earliest deadline of those under way, or before.
        self._timer = anyio.CancelScope()
        self._timer_due = math.inf

    def post(self, call: Call) -> None:
        """Send a request as soon as the writer gets to it; on a link that has failed the call fails at once."""
        if self.failure is not None:
            call.failure = self.failure
            call.settled.set()
            return
        self._pending[call.request.id] = call
        if call.deadline < self._timer_due:
            self._timer.deadline = self._timer_due = call.deadline
        self._put(call)

    def forget(self, call: Call) -> None:
        """Nobody waits for this call any more: drop it unsent if possible, its answer if not."""
        if self._pending.pop(call.request.id, None) is None or self.failure is not None:
            return
        if not call.sent:
            call.dropped = True
        elif isinstance(call.request, (say.Get, say.Watch)):
            cancel = say.Cancel(call.request.id)
            self._put(Call(cancel, encode_frame(say.encode(cancel))))

    async def flushed(self) -> None:
        """Wait until all that was posted is on its way, or the link is lost."""
        while self.failure is None and (self._queue or self._sending):
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    async def run(self) -> None:
        """Carry calls until the connection is lost or the task is cancelled; then fail what is under way.

        Cancellation:
            Closes the connection; calls under way fail.
        """
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._guard, self._write)
                    tasks.start_soon(self._guard, self._mind_silence)
                    tasks.start_soon(self._guard, self._mind_limits)
                    await self._guard(self._read)
        finally:
            self._fail(LinkLost("the client was closed"))
            await anyio.aclose_forcefully(self.stream)

    async def _guard(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except anyio.EndOfStream:
            self._fail(LinkLost("the store closed the connection"))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._fail(LinkLost(f"the connection broke ({reason_of(exc)})"))
        except (WireError, LinkLost) as exc:
            self._fail(exc)
        except Exception as exc:  # noqa: BLE001 - a mistake here must not end the caller's task group
            _log.exception("the connection to the store is dropped for a mistake of its client")
            self._fail(LinkLost(f"the client failed ({exc!r})"))
        self._scope.cancel()

    def _fail(self, failure: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        calls, self._pending, self._queue = self._pending, {}, []
        for call in calls.values():
            call.failure = failure
            call.settled.set()
        self._tell_idle()

    def _put(self, call: Call) -> None:
        self._queue.append(call)
        if self._wake is not None:
            self._wake.set()

    def _tell_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    async def _write(self) -> None:
        while True:
            self._sending = True
            while self._queue:
                calls, self._queue = self._queue, []
                frames = []
                for call in calls:
                    if not call.dropped:
                        # From here on the server may see it, whatever becomes of the connection.
                        call.sent = True
                        frames.append(call.frame)
                if frames:
                    await self.stream.send(frames[0] if len(frames) == 1 else b"".join(frames))
            self._sending = False
            self._tell_idle()
            self._wake = anyio.Event()
            await self._wake.wait()
            self._wake = None

    async def _read(self) -> None:
        decoder = FrameDecoder(self._max_frame)
        data = self._rest
        while True:
            for content in decoder.feed(data):
                reply = say.decode_reply(content)
                call = self._pending.pop(reply.id, None)
                # No call: it was cancelled, and this answer came all the same.
                if call is not None:
                    call.reply = reply
                    call.settled.set()
            data = await self.stream.receive(65536)
            self._heard = True

    async def _mind_limits(self) -> None:
        while True:
            self._timer_due = min((call.deadline for call in self._pending.values()), default=math.inf)
            with anyio.CancelScope(deadline=self._timer_due) as self._timer:
                await anyio.sleep_forever()
            now = anyio.current_time()
            for call in [call for call in self._pending.values() if call.deadline <= now]:
                self.forget(call)
                call.failure = LimitEnded()
                call.settled.set()

    async def _mind_silence(self) -> None:
        ping = say.Ping(_PING_ID)
        frame = encode_frame(say.encode(ping))
        while True:
            self._heard = False
            await anyio.sleep(self._ping_after)
            if self._heard:
                continue
            self._put(Call(ping, frame))
            asked = anyio.current_time()
            await anyio.sleep(self._ping_limit)
            if anyio.current_time() - asked > self._ping_limit + 1:
                # This process stood still; its answer may be there and not read yet.
                await anyio.sleep(1)
            if not self._heard:
                raise LinkLost(f"the store said nothing for {self._ping_after + self._ping_limit:.3g} s")
