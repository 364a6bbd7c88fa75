"""One connection of a client: calls in flight, cancellation, limits, answers that are none."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import ByteStream

from arendezvous.errors import RendezvousConnectionError, StoreTimeoutError
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import encode_frame
from arendezvous.wire.hello import ServerHello
from tests.store.kit import Net, in_memory
from tests.support import VIRTUAL, fail_after


async def test_short_limits_and_large_values_leave_the_client_in_step() -> None:
    """R65."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        large = b"x" * (4 << 20)
        timeouts = 0

        async def absent(number: int) -> None:
            nonlocal timeouts
            with store.limit(0.1), pytest.raises(StoreTimeoutError):
                await store.get(f"absent{number}")
            timeouts += 1

        with fail_after(20):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(absent, number)
                for number in range(4):
                    tasks.start_soon(store.set, f"large{number}", large)
            assert timeouts == 100
            for number in range(4):
                assert await store.get(f"large{number}") == large
            assert store.connects == 1


@VIRTUAL
async def test_a_store_that_does_not_answer_is_a_connection_error_within_the_limit() -> None:
    """D29, R25."""

    async def body(net: Net) -> None:
        async with net.store() as store:
            net.streams[0].stall()
            with store.limit(2), pytest.raises(RendezvousConnectionError, match="did not answer a write of 'k'"):
                await store.set("k", b"v")
            net.streams[0].heal()
            await store.set("k", b"w")
            assert await store.get("k") == b"w"
            assert store.connects == 1

    await in_memory(body)


async def test_a_cancelled_get_leaves_the_connection_usable() -> None:
    """R104."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        await store.set("bar", b"bar")
        for _ in range(20):
            with anyio.move_on_after(0.001):
                await store.get("foo")
            assert await store.get("bar") == b"bar"
        await store.set("foo", b"foo")
        for _ in range(100):
            assert await store.get("bar") == b"bar"
        assert server.service.table.waiting == 0
        assert store.connects == 1


@VIRTUAL
async def test_the_late_answer_of_a_cancelled_call_goes_to_nobody() -> None:
    """R104: each piece takes 0.1 s, the call is cancelled after 0.15 s."""

    async def body(net: Net) -> None:
        async with net.store() as store:
            await store.set("foo", b"foo")
            await store.set("bar", b"bar")
            net.streams[0].delay = 0.1
            with anyio.move_on_after(0.15):
                await store.get("foo")
                raise AssertionError
            for _ in range(10):
                assert await store.get("bar") == b"bar"

    await in_memory(body)


async def test_a_call_cancelled_in_the_middle_of_its_frame_leaves_old_or_new() -> None:
    """R118."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        old, new = b"a" * (4 << 20), b"b" * (4 << 20)
        await store.set("k", old)
        with fail_after(20):
            for _ in range(10):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(store.set, "k", new)
                        await anyio.sleep(0.001)
                        scope.cancel()
                assert await store.get("k") in (old, new)


async def test_an_unsent_call_that_is_cancelled_is_never_sent() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        net = Net(service, tasks)
        async with net.store() as store:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.set("k", b"v")
            assert await store.peek("k") is None


@pytest.mark.parametrize(
    "answer",
    [
        (2**60).to_bytes(8, "little"),
        b"\xff" * 4,
        encode_frame(b"junk"),
        encode_frame(say.encode(say.Number(1, 5))),
        encode_frame(say.encode(say.Set(1, b"", b""))),
    ],
    ids=["2**60", "huge", "junk", "wrong kind", "a request"],
)
async def test_an_answer_that_is_none_is_a_connection_error(answer: bytes) -> None:
    """R52."""

    async def connect() -> ByteStream:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(serve, theirs)
        return ours

    async def serve(stream: ByteStream) -> None:
        try:
            async with stream:
                await stream.receive()
                await stream.send(ServerHello(b"e" * 16).encode())
                await stream.receive()
                await stream.send(answer)
                await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass

    async with anyio.create_task_group() as tasks:
        with fail_after(5):
            async with TCPStore("net", 1, connect=connect) as store:
                with pytest.raises(RendezvousConnectionError, match="ours"):
                    await store.compare_and_swap("k", b"", b"v")
        tasks.cancel_scope.cancel()
