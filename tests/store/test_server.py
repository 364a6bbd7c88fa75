"""The server: addresses, strangers, slow readers, an end that is an end."""

from __future__ import annotations

import logging
import os
import pathlib
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from arendezvous.errors import RendezvousConnectionError, RendezvousUsageError
from arendezvous.store.client import TCPStore
from arendezvous.store.connection import Connection
from arendezvous.store.server import TCPStoreServer, open_sockets
from arendezvous.store.service import StoreService
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from arendezvous.wire.frames import FrameDecoder, encode_frame
from arendezvous.wire.hello import VERSION, ClientHello, ServerHello, ServerHelloDecoder, Status
from tests.support import SLOW, VIRTUAL, fail_after

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

    async def say(self, *requests: say.Request) -> None:
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


# Addresses


async def test_a_literal_address_is_bound_exactly() -> None:
    """R127, R43, D24."""
    async with TCPStoreServer("127.0.0.1") as server:
        assert server.addresses == (("127.0.0.1", server.port),)
        assert server.endpoint == f"127.0.0.1:{server.port}"
        assert server.port != 0
        with pytest.raises(OSError):
            await anyio.connect_tcp("::1", server.port)


async def test_localhost_is_both_loopbacks_on_one_port() -> None:
    """R41."""
    async with TCPStoreServer("localhost") as server:
        for address in ("127.0.0.1", "::1"):
            async with TCPStore(address, server.port) as store:
                await store.set("k", address.encode())
                assert store.local_address == address


async def test_the_wildcard_is_reached_over_both_families() -> None:
    """R43."""
    async with TCPStoreServer("::") as server:
        for address in ("127.0.0.1", "::1"):
            async with TCPStore(address, server.port) as store:
                assert await store.num_keys() == 0


async def test_the_ipv4_wildcard_and_an_explicit_bind() -> None:
    async with TCPStoreServer("no-such-name.invalid", bind="0.0.0.0") as server:
        assert server.host == "no-such-name.invalid"
        assert server.addresses == (("0.0.0.0", server.port),)
        async with TCPStore("127.0.0.1", server.port) as store:
            assert await store.num_keys() == 0


@pytest.mark.parametrize("host", ["no-such-name.invalid", "192.0.2.1", "x" * 300])
async def test_what_cannot_be_bound_is_a_connection_error_that_names_it(host: str) -> None:
    with pytest.raises(RendezvousConnectionError, match=f"cannot listen on {host}:0"):
        async with TCPStoreServer(host):
            pass


async def test_a_taken_port_is_a_connection_error_with_advice() -> None:
    async with TCPStoreServer() as server:
        with pytest.raises(RendezvousConnectionError, match="another process has the port"):
            async with TCPStoreServer("127.0.0.1", server.port):
                pass


async def test_an_ipv6_endpoint_is_written_in_brackets() -> None:
    async with TCPStoreServer("::1") as server:
        assert server.endpoint == f"[::1]:{server.port}"


@pytest.mark.parametrize("listening", [False, True])
async def test_a_bound_socket_is_taken_over(listening: bool) -> None:
    """R71."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    if listening:
        sock.listen()
    async with TCPStoreServer(sock=sock) as server:
        assert server.port == port
        async with TCPStore("127.0.0.1", port) as store:
            await store.set("k", b"v")
    assert sock.fileno() == -1


async def test_a_unix_socket_is_served_and_its_file_removed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "store.sock"
    # What a server that was killed leaves behind.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with TCPStoreServer(path=path) as server:
        assert server.endpoint == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        async with TCPStore(path=path) as store:
            assert store.endpoint == server.endpoint
            assert store.local_address is None
            await store.set("k", b"v")
        with pytest.raises(RendezvousConnectionError, match="cannot listen on unix:"):
            async with TCPStoreServer(path=path):
                pass
        assert path.exists()
    assert not path.exists()


async def test_sockets_of_a_failed_start_are_closed() -> None:
    async with TCPStoreServer("::1") as server:
        # 127.0.0.1 can be bound, ::1 is taken: nothing of the pair stays.
        with pytest.raises(RendezvousConnectionError):
            await open_sockets("localhost", server.port)
        async with TCPStoreServer("127.0.0.1", server.port):
            pass


async def test_a_server_is_entered_once() -> None:
    """R64: and the constructor waits for nobody."""
    server = TCPStoreServer()
    async with server:
        with pytest.raises(RendezvousUsageError):
            async with server:
                pass


# Strangers


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
                await stranger.say(say.Ping(1))
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
    with fail_after(5):
        async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
            async with raw(server) as victim:
                await victim.greet()
                await victim.say(say.Scan(1, b""))
                if error is ValueError:
                    assert await victim.hear() == say.Failed(1, "mistake")
                else:
                    assert await victim.until_closed() == b""
            assert await store.num_keys() == 0
    if error in (MemoryError, KeyError):
        assert any(record.exc_info for record in caplog.records)


# Connections


async def test_many_requests_in_one_piece_are_answered_in_one_piece() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.say(*(say.Add(number, b"n", 1) for number in range(1, 101)))
        assert [await client.hear() for _ in range(100)] == [say.Number(n, n) for n in range(1, 101)]


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
                await client.say(say.Watch(1, b"k", None), say.Get(2, [b"a", b"b"], True), say.Watch(3, b"k", None))
                await client.say(say.Cancel(1), say.Cancel(99), say.Ping(4))
                assert await client.hear() == say.Done(4)
                assert server.service.table.waiting == 3
            while server.clients:
                await anyio.sleep(0.01)
            assert server.service.table.waiting == 0


async def test_a_cancelled_wait_is_not_answered() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.say(say.Get(1, [b"k"], True), say.Cancel(1), say.Set(2, b"k", b"v"), say.Get(3, [b"k"], True))
        assert [await client.hear(), await client.hear()] == [say.Done(2), say.Values(3, [b"v"])]


async def test_an_id_that_waits_already_ends_the_connection() -> None:
    async with TCPStoreServer() as server, raw(server) as client:
        await client.greet()
        await client.say(say.Get(1, [b"k"], True), say.Get(1, [b"k"], True))
        assert await client.until_closed() == b""


async def test_a_client_that_comes_back_fences_its_old_connection() -> None:
    with fail_after(5):
        async with TCPStoreServer() as server, raw(server) as old, raw(server) as new:
            await old.greet()
            await old.say(say.LeaseSet(1, 1, 30.0, b"beat", b"1"), say.Watch(2, b"k", None))
            await old.hear()
            await new.greet()
            await old.stream.send(encode_frame(say.encode(say.Set(3, b"late", b""))))
            await old.until_closed()
            await new.say(say.Check(4, [b"late", b"beat"]), say.Leases(5, b""))
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
                await client.say(*(say.Peek(number, b"big") for number in range(300)))
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
        await client.say(*(say.Watch(number, b"big", None) for number in range(200)), say.Ping(999))
        assert await client.hear() == say.Done(999)
        service.table.set(b"/big", b"x" * 900_000)
        with fail_after(5):
            while service.connections:
                await anyio.sleep(0.01)
        await ours.aclose()


@VIRTUAL
async def test_a_client_that_takes_nothing_is_dropped_after_a_while() -> None:
    async with StoreService(stall_timeout=30) as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        service.table.set(b"/big", b"x" * 900_000)
        await client.say(say.Peek(1, b"big"))
        await anyio.sleep(29)
        assert service.clients == 1
        await anyio.sleep(20)
        assert service.connections == 0
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


# Leases


@VIRTUAL
async def test_a_lease_outlives_its_connection_for_the_grace_only() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        await client.say(say.LeaseSet(1, 1, 60.0, b"beat", b"1"))
        await client.hear()
        began = anyio.current_time()
        told: list[float] = []
        service.table.watch(b"/beat", b"1", lambda _: told.append(anyio.current_time() - began))
        await ours.aclose()
        await anyio.sleep(5)
        assert told == [pytest.approx(1.0)]


@VIRTUAL
async def test_a_lease_ends_on_the_servers_clock_without_any_call() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        await client.say(say.LeaseSet(1, 1, 3.0, b"beat", b"1"), say.Watch(2, b"beat", b"1"))
        assert await client.hear() == say.Done(1)
        assert await client.hear() == say.Value(2, None)
        assert anyio.current_time() == pytest.approx(3.0, abs=0.2)
        await ours.aclose()


# The end


async def test_closing_takes_no_longer_than_a_second_with_clients_attached() -> None:
    """R122, D51."""
    server = TCPStoreServer()
    async with anyio.create_task_group() as tasks:
        async with server:
            streams = [await anyio.connect_tcp("127.0.0.1", server.port) for _ in range(10)]
            for number, stream in enumerate(streams[:5]):
                await Raw(stream).greet(bytes([number]) * 16)
            with fail_after(1):
                await server.aclose()
                await server.aclose()
            assert server.service.connections == 0
        for stream in streams:
            await stream.aclose()
        tasks.cancel_scope.cancel()


async def test_the_port_can_be_opened_again_at_once() -> None:
    """R73."""
    port = 0
    with fail_after(30):
        for _ in range(20):
            async with TCPStoreServer("127.0.0.1", port) as server:
                port = server.port
                streams = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(50)]
                for number, stream in enumerate(streams):
                    await Raw(stream).greet(bytes([number]) * 16)
                await server.aclose()
                assert server.service.connections == 0
            for stream in streams:
                await stream.aclose()


async def test_a_server_in_a_cancelled_scope_serves_until_its_block_is_left() -> None:
    with anyio.CancelScope() as scope:
        async with TCPStoreServer() as server:
            async with TCPStore("127.0.0.1", server.port) as store:
                scope.cancel()
                with anyio.CancelScope(shield=True), fail_after(5):
                    await store.set("k", b"v")
                    assert await server.drain(0.05) is False
            with anyio.CancelScope(shield=True), fail_after(5):
                assert await server.drain(5) is True
    assert scope.cancel_called


@VIRTUAL
async def test_waiting_for_idleness_counts_from_the_last_client() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        idle_at: list[float] = []

        async def wait(seconds: float, from_start: bool) -> None:
            await service.wait_idle(seconds, from_start=from_start)
            idle_at.append(anyio.current_time())

        tasks.start_soon(wait, 3, True)
        tasks.start_soon(wait, 3, False)
        await anyio.sleep(5)
        assert idle_at == [pytest.approx(3)]
        for _ in range(2):
            ours, theirs = memory_stream_pair()
            tasks.start_soon(service.serve_stream, theirs)
            await Raw(ours).greet()
            await anyio.sleep(1)
            await ours.aclose()
            await anyio.sleep(2)
        left_at = anyio.current_time() - 2
        await anyio.sleep(0.9)
        assert len(idle_at) == 1
        await anyio.sleep(5)
        assert idle_at[1] == pytest.approx(left_at + 3)


async def test_a_stopped_listener_keeps_its_clients() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        await server.stop_accepting()
        await store.set("k", b"v")
        with pytest.raises(OSError):
            await anyio.connect_tcp("127.0.0.1", server.port)


async def test_connections_are_probed_by_the_kernel() -> None:
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        (connection,) = server.service._connections
        link = store._dialer.link
        assert link is not None
        for stream in (connection._stream, link.stream):
            sock = stream.extra(SocketAttribute.raw_socket)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


CROWD = """
import socket, sys
socks = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(100)]
print("there", flush=True)
sys.stdin.read()
"""


async def test_running_out_of_descriptors_stops_nobody_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """R124."""
    caplog.set_level(logging.WARNING)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with TCPStoreServer() as server:
        async with TCPStore("127.0.0.1", server.port) as store:
            with subprocess.Popen(
                [sys.executable, "-c", CROWD, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as crowd:
                assert crowd.stdin is not None
                assert crowd.stdout is not None
                try:
                    # Room for twenty more than there are now.
                    used = len(os.listdir("/proc/self/fd"))
                    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
                    with fail_after(20):
                        await anyio.to_thread.run_sync(crowd.stdout.readline)
                        while "cannot accept" not in caplog.text:
                            await anyio.sleep(0.05)
                        await store.set("k", b"v")
                        before = os.times()
                        await anyio.sleep(0.5)
                        after = os.times()
                        busy = after.user + after.system - before.user - before.system
                        assert busy < 0.1 * SLOW
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                crowd.stdin.close()
                await anyio.to_thread.run_sync(crowd.wait)
            with fail_after(10):
                async with TCPStore("127.0.0.1", server.port) as other:
                    assert await other.get("k") == b"v"
