"""A TCP proxy that delays, drops, cuts, resets or swallows what passes, as its seed decides.

In a test, on whatever event loop that runs::

    with Proxy(("127.0.0.1", port), ["drop_reply:2"], seed=1) as proxy:
        ... connect to proxy.host, proxy.port ...
        proxy.set_faults([])

Between processes::

    python -m tests.faults.tcp_proxy --to 127.0.0.1:7000 --fault cut:100 [--prob P] [--skip N] [--limit N] [--seed S]

Faults; the first of the list that fires is used, for a connection or for a chunk:

``delay:S[-S2]``    each chunk, both ways, waits S seconds, or a number of seconds drawn from S to S2; order is kept
``drop_reply:N``    the Nth chunk from the server (from 1) is swallowed and the connection closed: the server has
                    done what it was asked and the client cannot know
``reset_reply:N``   the same, but the client gets a reset
``cut:BYTES``       close both sides after so many bytes to the server
``cut_reply:BYTES`` close both sides after so many bytes to the client
``blackhole:N``     after N chunks to the server nothing passes in either direction, and both sides stay open
``reset:N``         reset both sides at the Nth chunk to the server, which is not delivered
``refuse``          accept and reset at once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

__all__ = ("Fault", "Note", "Proxy", "parse_fault")

_COUNTED = ("drop_reply", "reset_reply", "cut", "cut_reply", "blackhole", "reset")

Way = Literal["up", "down"]


class Fault(NamedTuple):
    """One fault: its kind, how many chunks or bytes in, how many seconds."""

    kind: str
    amount: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


class Note(NamedTuple):
    """What happened: when on the monotonic clock, on which connection (from 1)."""

    at: float
    connection: int
    event: str
    detail: str = ""


def parse_fault(spec: str) -> Fault:
    """Return the fault that ``spec`` describes.

    Raises:
        ValueError: there is no such fault.
    """
    kind, _, argument = spec.partition(":")
    if kind == "delay":
        low, _, high = argument.partition("-")
        return Fault(kind, seconds=(float(low), float(high or low)))
    if kind == "refuse":
        return Fault(kind)
    if kind not in _COUNTED:
        raise ValueError(f"unknown fault {spec!r}")
    return Fault(kind, int(argument))


@dataclass
class _Connection:
    number: int
    armed: bool
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    chunks: dict[Way, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    passed: dict[Way, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    swallowing: bool = False


class Proxy:
    """The proxy; it runs in a thread and an event loop of its own.

    Args:
        target: Where the server is.
        faults: What goes wrong, as :func:`parse_fault` takes it.
        seed: Of what is drawn: which connections have a fault, and the delays.
        prob: How likely a connection has a fault.
        skip: So many connections at first have none.
        limit: At most so many connections have one.
        host: Where to listen.
        port: Where to listen; 0 = any, then ``.port`` says which.
    """

    def __init__(
        self,
        target: tuple[str, int],
        faults: list[str] | tuple[str, ...] = (),
        *,
        seed: int = 0,
        prob: float = 1.0,
        skip: int = 0,
        limit: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.target, self.host, self.port = target, host, port
        self.log: list[Note] = []
        self._faults = [parse_fault(spec) for spec in faults]
        self._rng, self._prob, self._skip, self._limit = random.Random(seed), prob, skip, limit
        self._opened = self._armed = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tcp_proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def set_faults(self, faults: list[str]) -> None:
        """Change the faults, for open connections too."""
        self._faults = [parse_fault(spec) for spec in faults]

    def events(self, event: str) -> list[Note]:
        """The notes of one kind."""
        return [note for note in list(self.log) if note.event == event]

    def _note(self, connection: int, event: str, detail: object = "") -> None:
        self.log.append(Note(time.monotonic(), connection, event, str(detail)))

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as exc:
            self._error = exc
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._opened += 1
        number = self._opened
        # Drawn for every connection, so that one more that is skipped does not shift the others' fate.
        drawn = self._rng.random() < self._prob
        armed = drawn and number > self._skip and (self._limit is None or self._armed < self._limit)
        self._armed += armed
        self._note(number, "open", "armed" if armed else "clean")
        writers = [writer]
        try:
            if armed and any(fault.kind == "refuse" for fault in self._faults):
                self._note(number, "refuse")
                _reset(writer)
                return
            try:
                up_reader, up_writer = await asyncio.open_connection(*self.target)
            except OSError as exc:
                self._note(number, "no target", exc)
                _reset(writer)
                return
            writers.append(up_writer)
            connection = _Connection(number, armed, writer, up_writer)
            pumps = [
                asyncio.ensure_future(self._pump(connection, reader, up_writer, "up")),
                asyncio.ensure_future(self._pump(connection, up_reader, writer, "down")),
            ]
            try:
                await asyncio.gather(*pumps)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (asyncio.CancelledError, OSError):
            pass
        finally:
            for each in writers:
                each.close()
            for each in writers:
                with suppress(OSError, asyncio.CancelledError):
                    await each.wait_closed()
            self._note(number, "closed")
            self._tasks.discard(task)

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        while data := await reader.read(65536):
            connection.chunks[way] += 1
            for fault in list(self._faults) if connection.armed else ():
                data = await self._apply(fault, connection, data, writer, way)
            connection.passed[way] += len(data)
            if data:
                writer.write(data)
                await writer.drain()
        if connection.swallowing:
            await asyncio.Event().wait()
        if writer.can_write_eof():
            writer.write_eof()

    async def _apply(
        self, fault: Fault, connection: _Connection, data: bytes, writer: asyncio.StreamWriter, way: Way
    ) -> bytes:
        """Return what of ``data`` still passes; raise ConnectionResetError when the connection ends here."""
        kind, chunk = fault.kind, connection.chunks[way]
        if kind == "delay":
            await asyncio.sleep(self._rng.uniform(*fault.seconds))
        elif kind == "blackhole" and (connection.swallowing or (way == "up" and chunk > fault.amount)):
            connection.swallowing = True
            self._note(connection.number, "swallowed", f"{way} {len(data)}")
            return b""
        elif kind == "reset" and way == "up" and chunk >= fault.amount:
            self._note(connection.number, kind, len(data))
            _reset(connection.client)
            _reset(connection.server)
            raise ConnectionResetError
        elif kind in ("drop_reply", "reset_reply") and way == "down" and chunk >= fault.amount:
            self._note(connection.number, kind, len(data))
            if kind == "reset_reply":
                _reset(connection.client)
            raise ConnectionResetError
        elif (kind, way) in (("cut", "up"), ("cut_reply", "down")):
            room = fault.amount - connection.passed[way]
            if len(data) >= room:
                writer.write(data[: max(0, room)])
                await writer.drain()
                self._note(connection.number, kind, fault.amount)
                raise ConnectionResetError
        return data


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: list[str] | None = None) -> int:
    """Run a proxy until the standard input ends; print where it listens, then, at the end, its notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), metavar="HOST:PORT")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prob", type=float, default=1.0)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args(arguments)
    host, port = args.listen
    more: dict[str, Any] = {"seed": args.seed, "prob": args.prob, "skip": args.skip, "limit": args.limit}
    with Proxy(args.to, args.fault, host=host, port=port, **more) as proxy:
        print(json.dumps({"listening": f"{proxy.host}:{proxy.port}"}), flush=True)
        sys.stdin.read()
    for note in proxy.log:
        print(json.dumps(note))
    return 0


if __name__ == "__main__":
    sys.exit(main())
