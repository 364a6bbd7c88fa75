"""Makes the connection of a client, again and again: back-off, hellos, what is known of the server."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from anyio.abc import SocketAttribute

from ..errors import RendezvousConnectionError
from ..wire.errors import WireError
from ..wire.hello import SESSION_SIZE, VERSION, ClientHello, ServerHello, ServerHelloDecoder, Status
from .hosting import enable_keep_alive
from .link import LimitEnded, Link, reason_of

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ("ConnectFailure", "Dialer", "Randomness", "greet")

#: Seconds for one attempt to connect, and for the server's hello.
_DIAL_LIMIT: Final = 10.0
_HELLO_LIMIT: Final = 5.0
#: First and longest pause between attempts, in seconds; half of each is random.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
#: Seconds that a call waits at least when the connection has been lost for long: one more attempt.
_PATIENCE: Final = 2.0


class Randomness(Protocol):
    """Where jitter comes from."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""
        ...


class _SystemRandomness:
    def random(self) -> float:
        return int.from_bytes(os.urandom(6), "big") / 2**48


class ConnectFailure(Exception):
    """An attempt to connect failed.

    Args:
        reason: What happened, as the end of a sentence.
        final: Whether trying again is pointless.
        cut: Whether too little time was left to learn anything.
    """

    def __init__(self, reason: str, *, final: bool = False, cut: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        self.cut = cut


async def greet(stream: ByteStream, hello: ClientHello, deadline: float) -> tuple[ServerHello, bytes]:
    """Exchange hellos on a new connection; return the server's and what followed it.

    Args:
        stream: The connection.
        hello: What to say.
        deadline: Until when the server has to answer.

    Raises:
        ConnectFailure: there is no store of ours at the other end, or it refuses this client.

    Cancellation:
        Leaves the stream in an unknown state: close it.
    """
    decoder = ServerHelloDecoder()
    began = anyio.current_time()
    with anyio.move_on_at(deadline):
        try:
            await stream.send(hello.encode())
            while (got := decoder.feed(await stream.receive(1024))) is None:
                pass
        except anyio.EndOfStream as exc:
            raise ConnectFailure(
                "it closed the connection before its hello, as a service other than an arendezvous store would"
            ) from exc
        except (OSError, anyio.BrokenResourceError) as exc:
            raise ConnectFailure(f"the connection broke before its hello ({reason_of(exc)})") from exc
        except WireError as exc:
            raise ConnectFailure(f"what listens there is not an arendezvous store: {exc}", final=True) from exc
        answer, rest = got
        if answer.status is Status.WRONG_VERSION or answer.version != VERSION:
            raise ConnectFailure(
                f"the store speaks protocol version {answer.version}, this client version {VERSION}; "
                "use the same release of arendezvous on all nodes",
                final=True,
            )
        if answer.status is Status.WRONG_TOKEN:
            raise ConnectFailure("the store refuses the token of this client", final=True)
        return answer, rest
    waited = anyio.current_time() - began
    raise ConnectFailure(
        f"it accepted the connection and then said nothing for {waited:.3g} s, "
        "as a service other than an arendezvous store would, or a store that hangs",
        cut=waited < 1,
    )


class Dialer:
    """Keeps one client connected.

    Args:
        open_stream: Opens a connection.
        endpoint: What messages call the other end.
        token: What the server asks for, if it does.
        connect_timeout: Seconds that connecting, and each loss of the connection, may last before calls fail.
        rng: Where the jitter comes from; None = the operating system.
        max_frame: Largest message in bytes.
        ping_after: Seconds of silence after which the server is asked whether it is there.
        ping_limit: Seconds that it then has to answer before the connection counts as lost.

    Attributes:
        link: The connection, None while there is none.
        epoch: Names the data of the server that is, or was last, connected.
        epoch_changes: How often a reconnect met other data than before.
        connects: How many connections there have been.
        local_address: This machine's address on the connection, None if it is no TCP.
        closed: Whether the client was closed.
        last_failure: Why there is, or last was, no connection.
        finished: Set when :meth:`run` has ended.
    """

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[ByteStream]],
        *,
        endpoint: str,
        token: bytes,
        connect_timeout: float | None,
        rng: Randomness | None,
        max_frame: int,
        ping_after: float,
        ping_limit: float,
    ) -> None:
        self.link: Link | None = None
        self.epoch = b""
        self.epoch_changes = 0
        self.connects = 0
        self.local_address: str | None = None
        self.closed = False
        self.finished = anyio.Event()
        self._open_stream = open_stream
        self._endpoint = endpoint
        self._hello = ClientHello(os.urandom(SESSION_SIZE), token)
        self._hello.encode()  # A token that is too long is a mistake of the caller, to be told now.
        self._connect_timeout = math.inf if connect_timeout is None else connect_timeout
        self._rng = rng or _SystemRandomness()
        self._max_frame = max_frame
        self._ping_after = ping_after
        self._ping_limit = ping_limit
        self._lost_at = 0.0
        self.last_failure: Exception | None = None
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    async def connect(self) -> Link:
        """Make the first connection, waiting for a server that is not up yet.

        Raises:
            RendezvousConnectionError: there was none within the connect time-out, or what answers is no store that
                serves this client.

        Cancellation:
            Safe.
        """
        self._lost_at = anyio.current_time()
        deadline = self._lost_at + self._connect_timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                link = await self._connect_once(deadline)
                self._attach(link)
                return link
            except ConnectFailure as exc:
                if self.last_failure is None or not exc.cut:
                    self.last_failure = exc
                if exc.final or anyio.current_time() >= deadline:
                    raise self.unreachable() from self.last_failure
            pause = await self._pause(pause, deadline)

    async def run(self) -> None:
        """Carry calls on the first connection and on those that follow it, until :meth:`close`."""
        link = self.link
        # Shielded: a lease that ends because its scope was cancelled still has to say so.
        try:
            with self._scope:
                while True:
                    if link is None:
                        link = await self._connect_again()
                        self._attach(link)
                    await link.run()
                    self._detach(link)
                    link = None
        finally:
            self.closed = True
            if link is not None:
                self._detach(link)
            self._notify()
            self.finished.set()

    def close(self) -> None:
        """End :meth:`run`; everybody who waits for a connection is told."""
        self.closed = True
        self._scope.cancel()
        self._notify()

    def check_open(self) -> None:
        """Raise if the client was closed.

        Raises:
            RendezvousConnectionError: it was.
        """
        if self.closed:
            raise RendezvousConnectionError(f"the client of the store at {self._endpoint} is closed")

    async def ready(self, limit: float) -> Link:
        """Return the connection, waiting for it if it is lost.

        Args:
            limit: Until when at most.

        Raises:
            LimitEnded: ``limit`` came first.
            RendezvousConnectionError: it was not made again within the connect time-out.

        Cancellation:
            Safe.
        """
        self.check_open()
        deadline = max(
            self._lost_at + self._connect_timeout,
            anyio.current_time() + min(self._connect_timeout, _PATIENCE),
        )
        with anyio.move_on_at(min(deadline, limit)):
            while self.link is None:
                await self._changed.wait()
                self.check_open()
            return self.link
        if limit < deadline:
            raise LimitEnded
        raise self.unreachable() from self.last_failure

    def unreachable(self) -> RendezvousConnectionError:
        """Return the error that says that there is no connection, why, since when, and what to do."""
        return RendezvousConnectionError(
            f"cannot reach the store at {self._endpoint}: {self.last_failure or 'there is no connection'} "
            f"(for {anyio.current_time() - self._lost_at:.3g} s now); "
            "start one with `arendezvous serve` or check the endpoint"
        )

    def _attach(self, link: Link) -> None:
        self.connects += 1
        if self.epoch not in (b"", link.epoch):
            self.epoch_changes += 1
        self.epoch = link.epoch
        address = link.stream.extra(SocketAttribute.local_address, None)
        self.local_address = str(address[0]) if isinstance(address, tuple) else None
        self.link = link
        self._notify()

    def _detach(self, link: Link) -> None:
        self.link = None
        self._lost_at = anyio.current_time()
        self.last_failure = link.failure

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _connect_again(self) -> Link:
        pause = _FIRST_PAUSE
        while True:
            # First a pause: all clients of a server that restarts lose it in the same moment.
            pause = await self._pause(pause, math.inf)
            try:
                return await self._connect_once(math.inf)
            except ConnectFailure as exc:
                self.last_failure = exc

    async def _pause(self, pause: float, deadline: float) -> float:
        now = anyio.current_time()
        await anyio.sleep_until(min(now + pause * (0.5 + self._rng.random() / 2), deadline))
        return min(2 * pause, _LONGEST_PAUSE)

    async def _connect_once(self, deadline: float) -> Link:
        began = anyio.current_time()
        try:
            with anyio.move_on_at(min(deadline, began + _DIAL_LIMIT)) as scope:
                stream = await self._open_stream()
        except ConnectFailure:
            raise
        except Exception as exc:
            # Whatever a caller's own way of connecting raises must not end the task that connects again.
            raise ConnectFailure(reason_of(exc)) from exc
        if scope.cancelled_caught:
            waited = anyio.current_time() - began
            raise ConnectFailure(f"nothing answered the attempt to connect within {waited:.3g} s", cut=waited < 1)
        try:
            answer, rest = await greet(stream, self._hello, min(deadline, anyio.current_time() + _HELLO_LIMIT))
            enable_keep_alive(stream)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return Link(
            stream,
            answer.epoch,
            rest,
            max_frame=self._max_frame,
            ping_after=self._ping_after,
            ping_limit=self._ping_limit,
        )
