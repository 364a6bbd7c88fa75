"""Clients that say what they are told to, and networks in memory that break when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

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
