"""How a call of a client goes: its limits, answers that are none, answers that are lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import ByteStream

from arendezvous.errors import RendezvousConnectionError, StoreTimeoutError
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import encode_frame
from arendezvous.wire.hello import ServerHello
from tests.store.kit import Net, in_memory
from tests.support import SLOW, VIRTUAL, fail_after


async def test_the_limit_names_the_missing_keys_and_the_endpoint() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port, timeout=0.05) as store:
        await store.set("there", b"")
        with pytest.raises(StoreTimeoutError, match=f"'gone', 'lost' in the store at 127.0.0.1:{server.port}"):
            await store.wait(["there", "gone", "lost"])
        with pytest.raises(StoreTimeoutError, match="'gone'"):
            await store.get("gone")
        # Requests are done in their order: after this answer, what was given up has been given up there too.
        assert await store.num_keys() == 1
        assert server.service.table.waiting == 0


@VIRTUAL
async def test_a_limit_that_ends_while_the_store_is_away_says_that_it_is_away() -> None:
    async def body(net: Net) -> None:
        async with net.store(timeout=0.5) as store:
            net.up = False
            await net.streams[0].cut()
            for call in (store.get("k"), store.wait(["a", "b"]), store.set("k", b"v"), store.add("n", 1)):
                with pytest.raises(RendezvousConnectionError, match="cannot reach the store at net:1.*refused"):
                    await call

    await in_memory(body)


async def test_a_refused_request_is_the_callers_mistake_and_the_connection_stays() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        await store.set("n", b"no number")
        for _ in range(3):
            with pytest.raises(ValueError, match="'n' is b'no number'"):
                await store.add("n", 1)
        assert store.connects == 1


async def test_a_limit_for_one_wait_does_not_become_the_default() -> None:
    """R55."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port, timeout=5 * SLOW) as store:
        with store.limit(0.05), pytest.raises(StoreTimeoutError):
            await store.wait(["x"])
        async with anyio.create_task_group() as tasks:

            async def peer() -> None:
                await anyio.sleep(0.2)
                await store.set("y", b"late")

            tasks.start_soon(peer)
            assert await store.get("y") == b"late"


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


@VIRTUAL
class TestALostConnection:
    async def test_calls_that_may_be_repeated_are(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store, anyio.create_task_group() as tasks:
                got: dict[str, object] = {}

                async def call(name: str, what: Awaitable[object]) -> None:
                    got[name] = await what

                await store.set("there", b"v")
                tasks.start_soon(call, "get", store.get("late"))
                tasks.start_soon(call, "wait", store.wait(["late"]))
                tasks.start_soon(call, "watch", store.watch("late", None))
                await anyio.sleep(1)
                await net.streams[0].cut()
                tasks.start_soon(call, "peek", store.peek("there"))
                tasks.start_soon(call, "set", store.set("other", b"w"))
                await anyio.sleep(2)
                assert store.connects == 2
                assert store.epoch_changes == 0
                await store.set("late", b"x")
                await anyio.sleep(1)
                assert got == {"get": b"x", "wait": None, "watch": b"x", "peek": b"v", "set": None}

        await in_memory(body)

    @pytest.mark.parametrize(
        ("call", "applied"),
        [
            (lambda s: s.add("n", 1), b"1"),
            (lambda s: s.append("n", b"1"), b"1"),
            (lambda s: s.compare_and_swap("n", b"", b"1"), b"1"),
            (lambda s: s.delete_key("gone"), None),
        ],
        ids=["add", "append", "compare_and_swap", "delete_key"],
    )
    async def test_calls_that_may_not_be_repeated_say_that_the_outcome_is_unknown(
        self, call: Callable[[TCPStore], Awaitable[object]], applied: bytes | None
    ) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store:
                stream = net.streams[0]
                stream.drop_reply = stream.replies + 1
                with pytest.raises(RendezvousConnectionError, match="outcome is unknown"):
                    await call(store)
                # Done once, and not twice.
                assert await store.peek("n") == applied

        await in_memory(body)

    async def test_an_unsent_call_waits_for_the_next_connection_whatever_it_is(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store:
                net.up = False
                await net.streams[0].cut()
                await anyio.sleep(0.5)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(store.add, "n", 1)
                    await anyio.sleep(5)
                    net.up = True
                assert await store.get("n") == b"1"

        await in_memory(body)
