"""The client: connecting, reconnecting, cancellation, leases, and what its errors say."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, TaskGroup

from arendezvous.errors import RendezvousConnectionError, RendezvousUsageError, StoreTimeoutError
from arendezvous.store.base import Store
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.streams import FaultyStream, memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import encode_frame
from arendezvous.wire.hello import VERSION, ServerHello
from tests.support import SLOW, VIRTUAL, fail_after


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


async def test_it_is_a_store() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as tcp:
        store: Store = tcp
        await store.set("k", b"v")
        assert await store.get("k") == b"v"
        assert store.endpoint == f"127.0.0.1:{server.port}"
        assert tcp.epoch == server.epoch
        assert tcp.local_address == "127.0.0.1"
        assert server.clients == 1
        # Where the clients of other dialects look for it.
        assert server.service.table.get(b"/k") == b"v"


async def test_the_error_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port):
            raise ZeroDivisionError


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1 << 20, 4 << 20])
async def test_values_of_every_size_and_content_come_back(size: int) -> None:
    """R61."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        value = (b"\xff\xfe\x00" * (size // 3 + 1))[:size]
        await store.set("k", value)
        assert await store.get("k") == value
        assert await store.compare_and_swap("k", value, b"new") == (True, b"new")
        assert await store.compare_and_swap("k", value + b"x", b"newer") == (False, b"new")


async def test_compare_set_answers_as_torch_does() -> None:
    """R59."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        assert await store.compare_set("m", b"old", b"new") == b"old"
        assert await store.compare_and_swap("m", b"old", b"new") == (False, b"")
        assert await store.num_keys() == 0
        assert await store.compare_set("k", b"", b"v") == b"v"
        assert await store.compare_set("k", b"", b"w") == b"v"
        await store.set("e", b"")
        assert await store.compare_set("e", b"x", b"y") == b""


async def test_a_counter_error_is_the_callers_and_the_server_lives() -> None:
    """R62."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        await store.set("n", b"abc")
        with pytest.raises(ValueError, match="'n' is b'abc'"):
            await store.add("n", 1)
        assert await store.get("n") == b"abc"


async def test_a_watch_of_a_long_value_sends_a_stand_in() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        value = b"x" * 1_000_000
        await store.set("k", value)
        async with anyio.create_task_group() as tasks:
            got: list[bytes | None] = []

            async def watch() -> None:
                got.append(await store.watch("k", value))

            sent: list[int] = []
            link = store._dialer.link
            assert link is not None
            send = link.stream.send

            async def counted(data: bytes) -> None:
                sent.append(len(data))
                await send(data)

            link.stream.send = counted  # type: ignore[method-assign]
            tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            assert sum(sent) < 100
            assert got == []
            await store.delete_key("k")
        assert got == [None]


# Limits


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


# Cancellation


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


# Connecting


async def test_a_server_that_comes_up_late_is_waited_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def late() -> None:
        await anyio.sleep(0.3)
        async with TCPStoreServer("127.0.0.1", port):
            await done.wait()

    done = anyio.Event()
    with fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            async with TCPStore("127.0.0.1", port) as store:
                await store.set("k", b"v")
            done.set()


async def test_nobody_there_is_a_connection_error_with_advice() -> None:
    """R64: raised once, with the cause."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with fail_after(5), pytest.raises(RendezvousConnectionError) as caught:
            async with TCPStore("127.0.0.1", port, connect_timeout=0.2):
                pass
    text = str(caught.value)
    assert f"cannot reach the store at 127.0.0.1:{port}" in text
    assert "refused" in text
    assert "arendezvous serve" in text
    assert caught.value.__cause__ is not None


async def test_a_name_that_does_not_resolve_is_said_to() -> None:
    with fail_after(30), pytest.raises(RendezvousConnectionError, match="'no-such-name.invalid' does not resolve"):
        async with TCPStore("no-such-name.invalid", 1, connect_timeout=0.2):
            pass


async def foreign(behave: Callable[[ByteStream], Awaitable[None]]) -> RendezvousConnectionError:
    """Connect to a service that is not ours and return the error."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            try:
                await behave(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with fail_after(10), pytest.raises(RendezvousConnectionError) as caught:
            async with TCPStore("127.0.0.1", port, connect_timeout=0.5):
                pass
        tasks.cancel_scope.cancel()
    return caught.value


async def test_a_service_that_says_nothing_is_found_out_within_the_connect_limit() -> None:
    """R58."""

    async def silent(stream: ByteStream) -> None:
        while True:
            await stream.receive()

    assert "said nothing" in str(await foreign(silent))


async def test_a_service_that_speaks_otherwise_is_found_out_at_once() -> None:
    """D57."""

    async def http(stream: ByteStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert "not an arendezvous store" in str(await foreign(http))


async def test_a_service_that_hangs_up_is_found_out() -> None:
    async def rude(stream: ByteStream) -> None:
        await stream.receive()

    assert "before its hello" in str(await foreign(rude))


async def test_another_version_names_both_versions() -> None:
    async def newer(stream: ByteStream) -> None:
        await stream.receive()
        await stream.send(ServerHello(b"e" * 16, version=VERSION + 1).encode())

    assert f"version {VERSION + 1}, this client version {VERSION}" in str(await foreign(newer))


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


# Reconnecting


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

    async def test_an_outage_longer_than_the_limit_is_told_with_advice(self) -> None:
        async def body(net: Net) -> None:
            async with net.store(connect_timeout=10) as store:
                net.up = False
                await net.streams[0].cut()
                began = anyio.current_time()
                with pytest.raises(RendezvousConnectionError, match=r"cannot reach the store at net:1.*arendezvous serve"):
                    await store.watch("k", None)
                assert anyio.current_time() - began == pytest.approx(10, abs=0.5)
                # From then on a call waits for one more attempt only.
                began = anyio.current_time()
                with pytest.raises(RendezvousConnectionError, match="refused"):
                    await store.peek("k")
                assert anyio.current_time() - began == pytest.approx(2, abs=0.5)
                with store.limit(0.5), pytest.raises(RendezvousConnectionError, match="refused"):
                    await store.get("k")
                net.up = True
                await anyio.sleep(2)
                assert await store.peek("k") is None

        await in_memory(body)

    async def test_a_lease_survives_a_reconnect(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store, net.store() as other, store.lease(5.0) as lease:
                await lease.set("beat", b"1")
                for _ in range(3):
                    await net.streams[0 if store.connects == 1 else -1].cut()
                    await anyio.sleep(0.7)
                    (info,) = await other.leases("")
                    assert info.attached
                await anyio.sleep(3)
                assert await other.peek("beat") == b"1"

        await in_memory(body)

    async def test_a_lease_whose_client_does_not_come_back_ends_after_the_grace(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as other, net.store() as store, store.lease(60.0) as lease:
                await lease.set("beat", b"1")
                net.up = False
                began = anyio.current_time()
                await net.streams[1].cut()
                assert await other.watch("beat", b"1") is None
                assert anyio.current_time() - began == pytest.approx(1.0, abs=0.2)

        await in_memory(body)

    async def test_other_data_behind_the_endpoint_shows(self) -> None:
        async with StoreService() as one, StoreService() as two, anyio.create_task_group() as tasks:
            net = Net(one, tasks)
            async with net.store() as store:
                await store.set("k", b"v")
                net.service = two
                await net.streams[0].cut()
                assert await store.peek("k") is None
                assert store.epoch == two.epoch
                assert store.epoch_changes == 1

    async def test_a_server_that_falls_silent_is_left(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store:
                net.streams[0].stall()
                got: list[bytes | None] = []

                async def watch() -> None:
                    got.append(await store.watch("k", None))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watch)
                    await anyio.sleep(25)
                    assert store.connects == 2
                    await store.set("k", b"v")
                assert got == [b"v"]

        await in_memory(body)

    async def test_an_idle_connection_stays(self) -> None:
        async def body(net: Net) -> None:
            async with net.store() as store:
                await anyio.sleep(3600)
                assert store.connects == 1

        await in_memory(body)

    @pytest.mark.parametrize("at", range(39, 90, 3))
    async def test_a_cut_at_any_byte_leaves_old_or_new(self, at: int) -> None:
        """R118."""

        async def body(net: Net) -> None:
            net.faults = {"cut_send_at": at, "chunk": 7}
            async with net.store() as store:
                await store.set("k", b"old")
                await store.set("k", b"new")
                assert await store.get("k") == b"new"

        await in_memory(body)


# Leases


async def test_a_lease_ends_with_its_block_even_when_that_is_cancelled() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as other:
        with anyio.CancelScope() as scope:
            async with TCPStore("127.0.0.1", server.port) as store, store.lease(60) as lease:
                await lease.set("beat", b"1")
                scope.cancel()
                await anyio.sleep_forever()
        # At once, not after the grace.
        assert await other.peek("beat") is None
        with pytest.raises(RendezvousUsageError):
            await lease.set("beat", b"1")
        with fail_after(5):
            while server.clients > 1:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_a_second_native_cancellation_does_not_keep_a_lease_alive() -> None:
    import asyncio

    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:

        async def owner() -> None:
            async with store.lease(60) as lease:
                await lease.set("beat", b"1")
                held.set()
                await anyio.sleep_forever()

        held = anyio.Event()
        task = asyncio.ensure_future(owner())
        await held.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        with fail_after(5):
            assert await store.watch("beat", b"1") is None


async def test_leases_are_listed_with_age_and_time_to_live() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store, store.lease(60) as lease:
        await lease.set("a/beat", b"1")
        await store.set("a/plain", b"")
        (info,) = await store.leases("a/")
        assert (info.key, info.ttl, info.attached) == ("a/beat", 60.0, True)
        assert 0 <= info.age < 30


# Closing


async def test_closing_ends_the_calls_in_flight_and_later_ones() -> None:
    async with TCPStoreServer() as server:
        with fail_after(5):
            async with TCPStore("127.0.0.1", server.port) as store:
                async with anyio.create_task_group() as tasks:

                    async def waiting(call: Awaitable[object]) -> None:
                        with pytest.raises(RendezvousConnectionError, match="closed"):
                            await call

                    tasks.start_soon(waiting, store.get("never"))
                    tasks.start_soon(waiting, store.watch("never", None))
                    await anyio.wait_all_tasks_blocked()
                    await store.aclose()
                    await store.aclose()
                with pytest.raises(RendezvousConnectionError, match="closed"):
                    await store.set("k", b"v")
            while server.clients:
                await anyio.sleep(0.01)


async def test_it_is_used_inside_its_block_and_entered_once() -> None:
    async with TCPStoreServer() as server:
        store = TCPStore("127.0.0.1", server.port)
        with pytest.raises(RendezvousUsageError):
            await store.set("k", b"v")
        async with store:
            with pytest.raises(RendezvousUsageError):
                async with store:
                    pass


@VIRTUAL
async def test_a_server_that_is_gone_does_not_hold_up_the_exit() -> None:
    async def body(net: Net) -> None:
        async with net.store() as store, store.lease(60) as lease:
            await lease.set("beat", b"1")
            net.up = False
            await net.streams[0].cut()
            await anyio.sleep(5)
            began = anyio.current_time()
        assert anyio.current_time() - began < 0.5

    await in_memory(body)


@VIRTUAL
async def test_a_lease_that_ended_during_an_outage_does_not_come_back_with_the_connection() -> None:
    async def body(net: Net) -> None:
        async with net.store() as other, net.store() as store:
            async with store.lease(60) as lease:
                await lease.set("beat", b"1")
                net.up = False
                await net.streams[1].cut()
                await anyio.sleep(0.3)
            net.up = True
            began = anyio.current_time()
            assert await other.watch("beat", b"1") is None
            assert anyio.current_time() - began < 1.5
            await anyio.sleep(5)
            assert await other.leases("") == []

    await in_memory(body)


async def test_mistakes_in_arguments_are_told_before_anything_is_sent() -> None:
    for port in (0, -1, 65536):
        with pytest.raises(ValueError, match="port"):
            TCPStore("h", port)
    with pytest.raises(ValueError, match="timeout"):
        TCPStore("h", 1, timeout=0)
    with pytest.raises(ValueError, match="connect_timeout"):
        TCPStore("h", 1, connect_timeout=-1)
    with pytest.raises(ValueError, match="token"):
        TCPStore("h", 1, token=b"x" * 1000)
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port, max_frame=1000) as store:
        with pytest.raises(ValueError, match="too large"):
            await store.set("k", b"x" * 1000)
        with pytest.raises(ValueError, match="keys in one call"):
            await store.wait([""] * (say.MAX_KEYS + 1))
        with pytest.raises(TypeError):
            await store.wait("key")
        assert await store.num_keys() == 0


async def test_nothing_is_left_open() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with TCPStoreServer() as server:
            for _ in range(3):
                async with TCPStore("127.0.0.1", server.port) as store:
                    await store.set("k", b"v")
        gc.collect()
