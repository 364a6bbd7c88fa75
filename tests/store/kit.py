"""Clients that say what they are told to, networks in memory that break when told to, servers in their own process."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from anyio.abc import ByteStream, TaskGroup

from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.streams import FaultyStream, memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import FrameDecoder, encode_frame
from arendezvous.wire.hello import ClientHello, ServerHello, ServerHelloDecoder

SESSION = b"s" * 16


class Raw:
    """A client that says exactly what it is told to."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.decoder = FrameDecoder()
        self.replies: list[say.Reply] = []

    async def greet(self, session: bytes = SESSION, **more: object) -> ServerHello:
        await self.stream.send(ClientHello(session, **more).encode())  # type: ignore[arg-type]
        decoder = ServerHelloDecoder()
        while (got := decoder.feed(await self.stream.receive())) is None:
            pass
        return got[0]

    async def ask(self, *requests: say.Request) -> None:
        await self.stream.send(b"".join(encode_frame(say.encode(request)) for request in requests))

    async def hear(self) -> say.Reply:
        while not self.replies:
            self.replies += map(say.decode_reply, self.decoder.feed(await self.stream.receive()))
        return self.replies.pop(0)

    async def until_closed(self) -> bytes:
        got = b""
        try:
            while True:
                got += await self.stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return got


@asynccontextmanager
async def raw(server: TCPStoreServer) -> AsyncIterator[Raw]:
    async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
        yield Raw(stream)


class Net:
    """Connects clients to a service in memory; keeps the streams, so that a test can break them."""

    def __init__(self, service: StoreService, tasks: TaskGroup) -> None:
        self.service = service
        self.tasks = tasks
        self.streams: list[FaultyStream] = []
        self.up = True
        self.faults: dict[str, Any] = {}

    async def connect(self) -> ByteStream:
        await anyio.sleep(0)
        if not self.up:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        stream = FaultyStream(ours, **self.faults)
        self.faults = {}
        self.streams.append(stream)
        self.tasks.start_soon(self.service.serve_stream, theirs)
        return stream

    def store(self, **more: Any) -> TCPStore:
        return TCPStore("net", 1, connect=self.connect, **more)


async def in_memory(body: Callable[[Net], Awaitable[None]]) -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        await body(Net(service, tasks))


class StoreProcess:
    """A server in a process of its own; see :mod:`tests.store.serving`.

    Args:
        loop: asyncio, uvloop or trio.
        port: Its port; 0 = any.
        nofile: How many descriptors it may have.
    """

    def __init__(self, loop: str, port: int = 0, nofile: int | None = None) -> None:
        command = [sys.executable, "-m", "tests.store.serving", loop, str(port)]
        self._process = subprocess.Popen(
            command if nofile is None else [*command, str(nofile)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=pathlib.Path(__file__).parents[2],
        )
        self.port = 0

    async def __aenter__(self) -> Self:
        try:
            self.port = (await self._hear())["port"]
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as nothing else does; what it held is gone."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP."""
        self._process.send_signal(number)

    async def status(self) -> dict[str, Any]:
        """What it uses and whom it serves."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        # Looked up from outside: a server that is out of descriptors could not open these.
        proc = pathlib.Path("/proc", str(self._process.pid))
        rss = int((proc / "statm").read_text().split()[1]) * resource.getpagesize()
        return {**await self._hear(), "rss": rss, "fds": len(os.listdir(proc / "fd"))}

    async def close(self) -> dict[str, Any]:
        """Have it close; return how long that took."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._hear()

    async def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        # Abandoned, because a test whose patience has ended must not wait for a server that never speaks.
        line = await anyio.to_thread.run_sync(self._process.stdout.readline, abandon_on_cancel=True)
        return json.loads(line)  # type: ignore[no-any-return]
