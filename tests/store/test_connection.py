"""One client of a server: strangers, slow readers, mistakes."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.client import TCPStore
from arendezvous.store.connection import Connection
from arendezvous.store.hostclock import wall_time
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import encode_frame
from arendezvous.wire.hello import VERSION, Status
from tests.store.kit import SESSION, Raw, raw
from tests.support import VIRTUAL, fail_after


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 64, b"\xff" * 64, b"\xa7" * 64],
    ids=["http", "tls", "zeros", "ones", "nearly"],
)
async def test_a_stranger_is_closed_at_once_and_others_do_not_notice(garbage: bytes) -> None:
    """R50, D57."""
    with fail_after(5):
        async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
            async with raw(server) as stranger:
                await stranger.stream.send(garbage)
                assert await stranger.until_closed() == b""
            await store.set("k", b"v")
            assert await store.get("k") == b"v"
            assert server.clients == 1


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 8, encode_frame(b"no request"), encode_frame(say.encode(say.Done(1))), encode_frame(b"")],
    ids=["huge frame", "junk", "a reply", "empty"],
)
async def test_a_client_that_talks_nonsense_costs_its_own_connection(garbage: bytes) -> None:
    """R50."""
    with fail_after(5):
        async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
            async with raw(server) as stranger:
                await stranger.greet()
                await stranger.ask(say.Ping(1))
                assert await stranger.hear() == say.Done(1)
                await stranger.stream.send(garbage)
                assert await stranger.until_closed() == b""
            assert await store.num_keys() == 0


@VIRTUAL
async def test_a_silent_connection_ends_at_the_hello_deadline() -> None:
    """R50."""
    async with StoreService(hello_timeout=5.0) as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        await ours.send(b"\xa7rd")
        await Raw(ours).until_closed()
        assert anyio.current_time() == pytest.approx(5.0)
        await anyio.sleep(0.01)
        assert service.connections == 0
        await ours.aclose()


async def test_another_version_is_refused_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        hello = await client.greet(version=VERSION + 1)
        assert hello.version == VERSION
        assert hello.status is Status.WRONG_VERSION
        assert await client.until_closed() == b""
    assert f"version {VERSION + 1}" in caplog.text


async def test_a_token_is_asked_for() -> None:
    async with TCPStoreServer(token=b"secret") as server:
        async with raw(server) as client:
            assert (await client.greet(token=b"guess")).status is Status.WRONG_TOKEN
            assert await client.until_closed() == b""
        with pytest.raises(RendezvousConnectionError, match="refuses the token"):
            async with TCPStore("127.0.0.1", server.port):
                pass
        async with TCPStore("127.0.0.1", server.port, token=b"secret") as store:
            assert await store.num_keys() == 0


@pytest.mark.parametrize("error", [ValueError, MemoryError, anyio.BrokenResourceError, KeyError])
async def test_a_mistake_in_serving_one_client_does_not_reach_the_others(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R119."""

    class Bad:
        def __get__(self, *_: object) -> object:
            def fail(_: object) -> None:
                raise error("mistake")

            return fail

    monkeypatch.setattr(Connection, "_scan", Bad())
    with fail_after(20):
        async with TCPStoreServer() as server, AsyncExitStack() as stack:
            others = [await stack.enter_async_context(raw(server)) for _ in range(99)]
            for number, other in enumerate(others):
                await other.greet(b"%016d" % number)
                await other.ask(say.Watch(1, b"news", None))
            async with raw(server) as victim:
                await victim.greet()
                await victim.ask(say.Scan(1, b""))
                if error is ValueError:
                    assert await victim.hear() == say.Failed(1, "mistake")
                else:
                    assert await victim.until_closed() == b""
            for other in others:
                await other.ask(say.NumKeys(2))
                assert await other.hear() == say.Number(2, 0)
            await others[0].ask(say.Set(3, b"news", b"v"))
            for other in others[1:]:
                assert await other.hear() == say.Value(1, b"v")
    if error in (MemoryError, KeyError):
        assert any(record.exc_info for record in caplog.records)


async def test_many_requests_in_one_piece_are_answered_in_one_piece() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.ask(*(say.Add(number, b"n", 1) for number in range(1, 101)))
        assert [await client.hear() for _ in range(100)] == [say.Number(n, n) for n in range(1, 101)]


async def test_the_wall_clock_is_told_and_nothing_changes() -> None:
    with fail_after(5):
        async with TCPStoreServer() as server, raw(server) as client:
            await client.greet()
            before = wall_time()
            await client.ask(say.Clock(1), say.NumKeys(2))
            told = await client.hear()
            assert isinstance(told, say.Time)
            assert before <= told.wall <= wall_time()
            assert await client.hear() == say.Number(2, 0)


async def test_a_half_frame_changes_nothing() -> None:
    """R118."""
    with fail_after(5):
        async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
            await store.set("k", b"old")
            async with raw(server) as client:
                await client.greet()
                frame = encode_frame(say.encode(say.Set(1, b"k", b"x" * 100_000)))
                await client.stream.send(frame[:-1])
            while server.clients > 1:
                await anyio.sleep(0.01)
            assert await store.get("k") == b"old"


async def test_waiters_of_a_connection_leave_with_it() -> None:
    """R116."""
    with fail_after(5):
        async with TCPStoreServer() as server:
            async with raw(server) as client:
                await client.greet()
                await client.ask(say.Watch(1, b"k", None), say.Get(2, [b"a", b"b"], True), say.Watch(3, b"k", None))
                await client.ask(say.Cancel(1), say.Cancel(99), say.Ping(4))
                assert await client.hear() == say.Done(4)
                assert server.service.table.waiting == 3
            while server.clients:
                await anyio.sleep(0.01)
            assert server.service.table.waiting == 0


async def test_a_cancelled_wait_is_not_answered() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.ask(say.Get(1, [b"k"], True), say.Cancel(1), say.Set(2, b"k", b"v"), say.Get(3, [b"k"], True))
        assert [await client.hear(), await client.hear()] == [say.Done(2), say.Values(3, [b"v"])]


async def test_an_id_that_waits_already_ends_the_connection() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.ask(say.Get(1, [b"k"], True), say.Get(1, [b"k"], True))
        assert await client.until_closed() == b""


async def test_a_client_that_comes_back_fences_its_old_connection() -> None:
    with fail_after(5):
        async with TCPStoreServer() as server, raw(server) as old, raw(server) as new:
            await old.greet()
            await old.ask(say.LeaseSet(1, 1, 30.0, b"beat", b"1"), say.Watch(2, b"k", None))
            await old.hear()
            await new.greet()
            await old.stream.send(encode_frame(say.encode(say.Set(3, b"late", b""))))
            await old.until_closed()
            await new.ask(say.Check(4, [b"late", b"beat"]), say.Leases(5, b""))
            assert await new.hear() == say.Values(4, [b"late"])
            (lease,) = (await new.hear()).leases  # type: ignore[attr-defined]
            assert lease[3]
            assert server.clients == 1
            assert server.service.table.waiting == 0


async def test_a_slow_reader_waits_for_itself_and_costs_no_memory() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        value = b"x" * 1_000_000
        await store.set("big", value)
        with fail_after(20):
            async with raw(server) as client:
                await client.greet()
                await client.ask(*(say.Peek(number, b"big") for number in range(300)))
                (connection,) = (c for c in server.service._connections if c.session == SESSION)
                for _ in range(20):
                    await store.peek("big")
                    assert connection._backlog < 8_000_000
                for number in range(300):
                    assert await client.hear() == say.Value(number, value)


async def test_a_reader_that_never_reads_loses_its_connection_to_news_without_end() -> None:
    async with StoreService(max_frame=1_000_000) as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        await client.ask(*(say.Watch(number, b"big", None) for number in range(200)), say.Ping(999))
        assert await client.hear() == say.Done(999)
        service.table.set(b"/big", b"x" * 900_000)
        with fail_after(5):
            while service.connections:
                await anyio.sleep(0.01)
        await ours.aclose()


async def test_an_answer_that_fits_no_message_is_refused() -> None:
    async with TCPStoreServer(max_frame=1_000_000) as server, TCPStore("127.0.0.1", server.port) as store:
        for number in range(3):
            await store.set(f"k{number}", b"x" * 400_000)
        with pytest.raises(ValueError, match="fit a message"):
            await store.scan("k")
        with pytest.raises(ValueError, match="larger"):
            await store.append("k0", b"x" * 600_000)
        assert len(await store.get("k0")) == 400_000
