"""Speaks the store's protocol: hello, pings, the clock. Reads only; no key is touched."""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import SocketAttribute

from ...store.hostclock import wall_time
from ...wire import messages as say
from ...wire.errors import WireError
from ...wire.frames import FrameDecoder, encode_frame
from ...wire.hello import SESSION_SIZE, VERSION, ClientHello, ServerHello, ServerHelloDecoder, Status
from .connect import reach, why_not
from .finding import Finding, fail, ok, seconds, warn
from .skew import Sample
from .strangers import is_torch_store, recognise

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ("Talk", "converse", "judge_round_trips", "measure_round_trips", "read_clock")

#: No answer to what is asked here is longer.
_MAX_FRAME: Final = 4096
#: Seconds to wait for a service that answers lines, once it has been sent the end of one.
_NUDGED: Final = 1.0
_NUDGE: Final = b"\r\n\r\n"
#: Bytes and seconds that are enough to know a stranger.
_ENOUGH: Final = 16
_REST: Final = 0.25
#: How many pings; the first ones of a connection are slower.
_PINGS: Final = 20
_CLOCKS: Final = 8
#: Round trips longer than this are far for a heartbeat.
_FAR: Final = 0.1


class Talk:
    """A connection to a store after the hellos; one question at a time."""

    def __init__(self, stream: ByteStream, rest: bytes) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(_MAX_FRAME)
        # Read late: what comes behind a hello may be rubbish, which is for whoever asks.
        self._rest = rest
        self._frames: list[bytes] = []
        self._ids = 0

    def next_id(self) -> int:
        """Return an id that no other question has."""
        self._ids += 1
        return self._ids

    async def ask(self, request: say.Request) -> say.Reply:
        """Send a question and return its answer.

        Raises:
            WireError: what came is no answer.
            anyio.EndOfStream: the store closed the connection.
            anyio.BrokenResourceError: the connection broke.

        Cancellation:
            Leaves the connection out of step: close it.
        """
        await self._stream.send(encode_frame(say.encode(request)))
        while True:
            while self._frames:
                reply = say.decode_reply(self._frames.pop(0))
                if reply.id == request.id:
                    return reply
            data, self._rest = self._rest or await self._stream.receive(_MAX_FRAME), b""
            self._frames = self._decoder.feed(data)


@asynccontextmanager
async def converse(address: str, port: int, limit: float) -> AsyncIterator[tuple[Talk | None, Finding, str]]:
    """Connect and exchange hellos.

    Args:
        address: A literal address.
        port: Its port.
        limit: Longest wait in seconds, for each step.

    Yields:
        The conversation, None if there is no store of ours; the finding; this machine's address on the connection.
    """
    try:
        with anyio.fail_after(limit):
            stream = await anyio.connect_tcp(reach(address), port)
    except (OSError, ValueError) as exc:
        reason = f"no answer within {limit:g} s" if isinstance(exc, TimeoutError) else why_not(exc)[1]
        yield None, fail("protocol", f"the connection is not taken any more: {reason}", "try again"), ""
        return
    try:
        own = str(stream.extra(SocketAttribute.local_address, ("",))[0])
        talk, finding = await _greet(stream, address, port, limit)
        yield talk, finding, own
    finally:
        await anyio.aclose_forcefully(stream)


async def _greet(stream: ByteStream, address: str, port: int, limit: float) -> tuple[Talk | None, Finding]:
    began = anyio.current_time()
    heard, answer, closed = await _hear(stream, ClientHello(os.urandom(SESSION_SIZE)).encode(), limit)
    took = anyio.current_time() - began
    if answer is not None:
        return _judge_hello(stream, *answer, took)
    if not heard and not closed:
        # Services that speak in lines wait for the end of one. No store of ours is that slow, unless it hangs.
        heard, _, closed = await _hear(stream, _NUDGE, min(limit, _NUDGED))
    elsewhere = "give the port of a store: the default is 29400, and two services cannot share one"
    if heard:
        return None, fail("protocol", f"that is not an arendezvous store: {recognise(heard)}", elsewhere)
    if await is_torch_store(address, port, min(limit, 2.0)):
        return None, fail(
            "protocol",
            "that is not an arendezvous store: it is a TCPStore of torch, as torchrun with its c10d backend starts one",
            "use another port, or stop that job: arendezvous and torchrun agents do not share a store",
        )
    if closed:
        return None, fail(
            "protocol",
            "it closed the connection without a word, as a service other than an arendezvous store does, or a proxy "
            "whose own target is not there",
            elsewhere,
        )
    return None, fail(
        "protocol",
        f"it accepted the connection and said nothing for {took:.3g} s: it waits for something that an arendezvous "
        "client does not say, or it is a store that hangs",
        "see which process has the port (on that host: ss -ltnp) and whether it is stopped, swapping or overloaded",
    )


async def _hear(stream: ByteStream, words: bytes, limit: float) -> tuple[bytes, tuple[ServerHello, bytes] | None, bool]:
    """Say something and return what is heard, the hello if it is one, and whether the other side hung up."""
    decoder = ServerHelloDecoder()
    heard = b""
    with anyio.move_on_after(limit):
        try:
            await stream.send(words)
            while True:
                data = await stream.receive(1024)
                heard += data
                if (answer := decoder.feed(data)) is not None:
                    return heard, answer, False
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return heard, None, True
        except WireError:
            # What a stranger says may come in pieces; a few more words tell who it is.
            with anyio.move_on_after(_REST), suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                while len(heard) < _ENOUGH:
                    heard += await stream.receive(_ENOUGH)
            return heard, None, False
    return heard, None, False


def _judge_hello(stream: ByteStream, hello: ServerHello, rest: bytes, took: float) -> tuple[Talk | None, Finding]:
    if hello.status is Status.WRONG_VERSION or hello.version != VERSION:
        return None, fail(
            "protocol",
            f"an arendezvous store of another release: it speaks protocol version {hello.version}, this is {VERSION}",
            "install the same release of arendezvous on all nodes (pip show arendezvous)",
        )
    if hello.status is Status.WRONG_TOKEN:
        return None, fail(
            "protocol",
            "an arendezvous store that asks its clients for a token, which this command has none of",
            "ask whoever runs that store; `arendezvous serve` asks for none",
        )
    # The first bytes of the epoch tell apart two stores that a name leads to by turns.
    seen = f"an arendezvous store, protocol version {hello.version}, epoch {hello.epoch[:4].hex()}, answered the hello"
    return Talk(stream, rest), ok("protocol", f"{seen} in {seconds(took)}")


async def measure_round_trips(talk: Talk, limit: float) -> list[float]:
    """Seconds of each ping; stops early at the limit.

    Raises:
        WireError: what came is no answer.
        anyio.EndOfStream: the store closed the connection.
        anyio.BrokenResourceError: the connection broke.
    """
    trips: list[float] = []
    with anyio.move_on_after(limit):
        for _ in range(_PINGS):
            began = anyio.current_time()
            await talk.ask(say.Ping(talk.next_id()))
            trips.append(anyio.current_time() - began)
    return trips


def judge_round_trips(trips: Sequence[float], interval: float, limit: float) -> Finding:
    """What is to be said of the pings.

    Args:
        trips: Seconds each.
        interval: Seconds between two heartbeats.
        limit: How long was waited.
    """
    if not trips:
        return fail(
            "round trip",
            f"the store said hello and then answered no ping within {limit:g} s",
            "see whether its process is stopped or overloaded, and whether a proxy or firewall cuts connections",
        )
    middle, worst = statistics.median(trips), max(trips)
    seen = f"median {seconds(middle)}, worst {seconds(worst)} of {len(trips)} pings; a heartbeat each {interval:g} s"
    if len(trips) < _PINGS:
        seen += f"; the others were not answered within {limit:g} s"
    if len(trips) == _PINGS and middle <= min(_FAR, interval / 5) and worst <= max(_FAR, interval / 2):
        return ok("round trip", seen)
    return warn(
        "round trip",
        seen,
        "a node whose heartbeats are late counts as dead: put the store nearer, find out what slows it or the network, "
        "or set a longer --rdzv-conf keep_alive_interval",
    )


async def read_clock(talk: Talk, limit: float) -> list[Sample]:
    """Ask for the store's wall clock several times. The answer is for :mod:`.skew` alone.

    Raises:
        WireError: what came is no answer.
        anyio.EndOfStream: the store closed the connection.
        anyio.BrokenResourceError: the connection broke.
    """
    samples: list[Sample] = []
    with anyio.move_on_after(limit):
        for _ in range(_CLOCKS):
            here, began = wall_time(), anyio.current_time()
            reply = await talk.ask(say.Clock(talk.next_id()))
            trip = anyio.current_time() - began
            if isinstance(reply, say.Time):
                samples.append(Sample(trip, reply.wall - (here + trip / 2)))
    return samples
