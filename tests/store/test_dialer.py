"""Making the connection of a client, again and again."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import pytest
from anyio.abc import ByteStream

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.wire.hello import VERSION, ServerHello
from tests.store.kit import Net, in_memory
from tests.support import VIRTUAL, fail_after


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
    with fail_after(30), pytest.raises(RendezvousConnectionError, match=r"'no-such-name\.invalid' does not resolve"):
        async with TCPStore("no-such-name.invalid", 1, connect_timeout=0.2):
            pass


@pytest.mark.parametrize("host", ["\u00fc" * 70, "\ud800", "a\u2028b"], ids=["long label", "surrogate", "separator"])
async def test_a_text_that_can_be_no_name_is_said_to_be_none_without_waiting(host: str) -> None:
    """Resolvers raise UnicodeError for these, which is no error of ours."""
    with fail_after(10), pytest.raises(RendezvousConnectionError, match="is no host name") as caught:
        async with TCPStore(host, 1, connect_timeout=60):
            pass
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("host", ["x" * 300, "a" * 64 + ".example", "a..b", "nul\0", "ho st"])
async def test_a_name_that_no_resolver_takes_is_a_connection_error(host: str) -> None:
    with fail_after(20), pytest.raises(RendezvousConnectionError):
        async with TCPStore(host, 1, connect_timeout=0.1):
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


@VIRTUAL
class TestALostConnection:
    async def test_attempts_come_at_once_and_then_less_and_less_often(self) -> None:
        async def body(net: Net) -> None:
            attempts: list[float] = []

            async def connect() -> ByteStream:
                attempts.append(anyio.current_time())
                return await net.connect()

            async with TCPStore("net", 1, connect=connect) as store:
                attempts.clear()
                net.up = False
                lost = anyio.current_time()
                await net.streams[0].cut()
                await anyio.sleep(60)
                assert attempts[0] - lost < 0.1
                assert 60 <= len(attempts) <= 130
                pauses = [later - earlier for earlier, later in pairwise(attempts)]
                assert all(0.5 <= pause <= 1.01 for pause in pauses[6:])
                # Not in step: a thousand clients would come all at once.
                assert len({round(pause, 6) for pause in pauses[6:]}) > 20
                net.up = True
                await anyio.sleep(1.1)
                assert store.connected

        await in_memory(body)

    async def test_an_outage_longer_than_the_limit_is_told_with_advice(self) -> None:
        async def body(net: Net) -> None:
            async with net.store(connect_timeout=10) as store:
                net.up = False
                await net.streams[0].cut()
                began = anyio.current_time()
                with pytest.raises(
                    RendezvousConnectionError, match=r"cannot reach the store at net:1.*arendezvous serve"
                ):
                    await store.watch("k", None)
                assert anyio.current_time() - began == pytest.approx(10, abs=0.5)
                # From then on a call waits for one more attempt only.
                began = anyio.current_time()
                with pytest.raises(RendezvousConnectionError, match="refused"):
                    await store.peek("k")
                assert anyio.current_time() - began == pytest.approx(2, abs=0.5)
                with store.limit(0.5), pytest.raises(RendezvousConnectionError, match="refused") as caught:
                    await store.get("k")
                assert caught.value.__cause__ is not None
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
