"""Whether another node can reach this one: a listener here, a dialer there, and a number that goes to and fro.

Dialer: ``arendezvous-reach/1 NONCE``. Listener: ``arendezvous-reach/1 NONCE OWN-NONCE ADDRESS``, the address as it sees
the dialer. Dialer: ``OWN-NONCE``. Each is a line, so both know that both directions work.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketAttribute, SocketListener

from ...endpoint import format_endpoint
from ...errors import RendezvousConnectionError
from ...store.hosting import is_loopback, literal
from ...store.link import reason_of
from ...store.server import open_sockets
from ...text import printable
from .connect import reach, remedy, why_not
from .finding import Finding, fail, note, ok, seconds
from .strangers import recognise

if TYPE_CHECKING:
    from anyio.abc import ByteStream, TaskGroup

__all__ = ("Listener", "Visit", "dial", "judge_visit", "open_listener")

_GREETING: Final = "arendezvous-reach/1"
_NONCE: Final = 16
#: Longest line that either side takes.
_MAX_LINE: Final = 200
#: Seconds that a peer has for its part.
_PATIENCE: Final = 5.0
#: Seconds until it is tried again when a connection cannot be accepted.
_PAUSE: Final = 0.1
#: How many peers are listened to at the same time; the others are turned away.
_MAX_PEERS: Final = 64


class _Stranger(Exception):
    """The peer says something else; the words are the argument."""


class _Lines:
    """Reads lines of a bounded length."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def read(self) -> str:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE:
                raise _Stranger(self._buffer[:_MAX_LINE])
            try:
                self._buffer += await self._stream.receive(_MAX_LINE)
            except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                raise _Stranger(self._buffer) from None
        line, _, rest = self._buffer.partition(b"\n")
        if len(line) > _MAX_LINE or not line.isascii():
            raise _Stranger(self._buffer[:_MAX_LINE])
        self._buffer = rest
        return line.decode("ascii")


def _address(stream: ByteStream, which: Any) -> str:
    """An address of a connection; IPv4 that came through an IPv6 socket as people write it."""
    address = str(stream.extra(which, ("",))[0])
    parsed = literal(address)
    return address if parsed is None else str(parsed)


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody came.

    Attributes:
        peer: Where from.
        own: The address of this machine that was reached.
        took: Seconds until the exchange was complete.
        words: What it said instead, None for a dialer of ours.
    """

    peer: str
    own: str
    took: float
    words: bytes | None = None


class Listener:
    """Answers dialers; made by :func:`open_listener`.

    Args:
        listeners: What to accept on.
        port: Their port.
    """

    def __init__(self, listeners: list[SocketListener], port: int) -> None:
        self.port = port
        self._listeners = listeners
        self._peers = 0

    async def serve(self, tell: Callable[[Visit], None]) -> None:
        """Answer whoever comes, until cancelled.

        Args:
            tell: Called with each visit when it is over.
        """
        async with anyio.create_task_group() as tasks:
            for listener in self._listeners:
                tasks.start_soon(self._accept, listener, tasks, tell)

    async def _accept(self, listener: SocketListener, tasks: TaskGroup, tell: Callable[[Visit], None]) -> None:
        while True:
            try:
                stream = await listener.accept()
            except anyio.ClosedResourceError:
                return
            except Exception:  # noqa: BLE001  out of descriptors, or a peer that has gone: the next one may do
                await anyio.sleep(_PAUSE)
                continue
            tasks.start_soon(self._answer, stream, tell)

    async def _answer(self, stream: ByteStream, tell: Callable[[Visit], None]) -> None:
        if self._peers >= _MAX_PEERS:
            await anyio.aclose_forcefully(stream)
            return
        self._peers += 1
        try:
            await self._exchange(stream, tell)
        finally:
            self._peers -= 1
            await anyio.aclose_forcefully(stream)

    async def _exchange(self, stream: ByteStream, tell: Callable[[Visit], None]) -> None:
        peer, own = _address(stream, SocketAttribute.remote_address), _address(stream, SocketAttribute.local_address)
        began = anyio.current_time()
        mine = os.urandom(_NONCE).hex()
        words = b""
        with anyio.move_on_after(_PATIENCE):
            try:
                lines = _Lines(stream)
                line = await lines.read()
                found = re.fullmatch(rf"{re.escape(_GREETING)} ([0-9a-f]{{{2 * _NONCE}}})", line)
                if found is None:
                    raise _Stranger(line.encode())
                await stream.send(f"{_GREETING} {found[1]} {mine} {peer}\n".encode())
                if (last := await lines.read()) != mine:
                    raise _Stranger(last.encode())
                tell(Visit(peer, own, anyio.current_time() - began))
                return
            except _Stranger as exc:
                words = exc.args[0]
            except (OSError, anyio.BrokenResourceError):
                pass
        tell(Visit(peer, own, anyio.current_time() - began, words))


def judge_visit(visit: Visit) -> Finding:
    """What is to be said of a visit."""
    if visit.words is not None:
        what = (
            f"and {recognise(visit.words).replace('it answered', 'said')}" if visit.words else "and said nothing useful"
        )
        return note(
            "listen",
            f"{visit.peer} connected to {visit.own} {what}: it is no `arendezvous doctor --dial`, or lost its answer",
            "nothing, if it is a port scan or health check; if it was your --dial, packets are lost on the way back",
        )
    if visit.peer == visit.own or is_loopback(visit.peer):
        return note(
            "listen",
            f"{visit.peer} reached this machine, from this machine itself",
            "run the --dial on another node: this proves nothing about the network",
        )
    return ok(
        "listen", f"{visit.peer} reached this machine at {visit.own}, and answers came back, in {seconds(visit.took)}"
    )


@asynccontextmanager
async def open_listener(port: int) -> AsyncIterator[Listener]:
    """Listen on all addresses of all families, for the length of the block.

    Args:
        port: The port; 0 = a free one.

    Raises:
        RendezvousConnectionError: it cannot be bound.
    """
    try:
        sockets = await open_sockets("::", port)
    except RendezvousConnectionError:
        # IPv6 may be there and switched off; a port that is taken is taken here too.
        sockets = await open_sockets("0.0.0.0", port)
    listeners: list[SocketListener] = []
    try:
        for sock in sockets:
            try:
                sock.listen(_MAX_PEERS)
            except OSError as exc:
                raise RendezvousConnectionError(f"cannot listen on port {port}: {reason_of(exc)}") from exc
            sock.setblocking(False)
            listeners.append(await SocketListener.from_socket(sock))
        yield Listener(listeners, sockets[0].getsockname()[1])
    finally:
        for listener in listeners:
            await anyio.aclose_forcefully(listener)
        for sock in sockets[len(listeners) :]:
            sock.close()


async def dial(address: str, port: int, limit: float) -> list[Finding]:
    """Reach a listener at one address and say how it went.

    Args:
        address: A literal address.
        port: The port that the listener names.
        limit: Longest wait in seconds, for the connection and for the exchange.

    Cancellation:
        Safe.
    """
    subject = f"dial {address}"
    endpoint = format_endpoint(address, port)
    began = anyio.current_time()
    try:
        with anyio.fail_after(limit):
            stream = await anyio.connect_tcp(reach(address), port)
    except TimeoutError:
        seen = f"{endpoint}: timed out, nothing answered within {limit:g} s"
        return [fail(subject, seen, remedy("silent", endpoint).partition(";")[0])]
    except (OSError, ValueError) as exc:
        trouble, reason = why_not(exc)
        todo = remedy(trouble, endpoint)
        if trouble == "refused":
            todo = (
                "`arendezvous doctor --listen` does not run there (any more), its port is another one, or a firewall "
                "rejects: start it and dial what it prints"
            )
        return [fail(subject, f"{endpoint}: {trouble} ({reason})", todo)]
    try:
        connected = anyio.current_time() - began
        own = _address(stream, SocketAttribute.local_address)
        nonce = os.urandom(_NONCE).hex()
        lines = _Lines(stream)
        began = anyio.current_time()
        with anyio.move_on_after(limit):
            try:
                await stream.send(f"{_GREETING} {nonce}\n".encode())
                line = await lines.read()
                found = re.fullmatch(rf"{re.escape(_GREETING)} {nonce} ([0-9a-f]{{{2 * _NONCE}}}) (\S{{1,64}})", line)
                if found is None:
                    raise _Stranger(line.encode())
                trip = anyio.current_time() - began
                await stream.send(f"{found[1]}\n".encode())
            except _Stranger as exc:
                return [_judge_stranger(subject, endpoint, exc.args[0])]
            except (OSError, anyio.BrokenResourceError) as exc:
                return [_judge_stranger(subject, endpoint, reason_of(exc).encode())]
            reached = ok(subject, f"reached {endpoint}: connected in {seconds(connected)}, answered in {seconds(trip)}")
            return [reached, _judge_seen(own, printable(found[2]))]
        return [
            fail(
                subject,
                f"{endpoint} took the connection and did not answer within {limit:g} s",
                "something else has the port, or packets are lost on the way back: dial what --listen printed",
            )
        ]
    finally:
        await anyio.aclose_forcefully(stream)


def _judge_stranger(subject: str, endpoint: str, words: bytes) -> Finding:
    said = recognise(words) if words else "it closed the connection without a word"
    return fail(
        subject,
        f"{endpoint} is reached, but it is no `arendezvous doctor --listen`: {said}",
        "the way is open; start --listen there on a free port and dial what it prints",
    )


def _judge_seen(own: str, seen: str) -> Finding:
    if own == seen:
        return ok("seen as", f"the other node sees this one as {seen}, which is its own address")
    return note(
        "seen as",
        f"the other node sees this one as {seen}, while its own address is {own}: there is NAT between them",
        "nodes behind NAT cannot be dialled at their own address: try --listen here and --dial there, and if that "
        "fails use a network without NAT (host networking), or --local-addr and forwarded ports",
    )
