"""The network store as its users see it: the protocol, leases, closing."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream

from arendezvous.errors import RendezvousConnectionError, RendezvousUsageError
from arendezvous.store.base import Store
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.conformance import CHECKS, PATIENCE, Check
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from tests.store.kit import Net, in_memory
from tests.support import SLOW, VIRTUAL, fail_after


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

            link.stream.send = counted  # type: ignore[method-assign, assignment]
            tasks.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            assert sum(sent) < 100
            assert got == []
            await store.delete_key("k")
        assert got == [None]


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
    with pytest.raises(ValueError, match="host"):
        TCPStore("", 1)
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


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_network_store_conforms_over_tcp(check: Check) -> None:
    async with TCPStoreServer() as server:

        @asynccontextmanager
        async def make() -> AsyncIterator[Store]:
            async with TCPStore("127.0.0.1", server.port) as store:
                yield store

        await check(make, patience=PATIENCE * SLOW)


@pytest.mark.parametrize("check", CHECKS, ids=str)
@VIRTUAL
async def test_the_network_store_conforms_in_memory(check: Check) -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:

        async def connect() -> ByteStream:
            ours, theirs = memory_stream_pair()
            tasks.start_soon(service.serve_stream, theirs)
            return ours

        @asynccontextmanager
        async def make() -> AsyncIterator[Store]:
            async with TCPStore("net", 1, connect=connect) as store:
                yield store

        await check(make)
