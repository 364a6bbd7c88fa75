"""The listening side: addresses, one port, an end that is an end."""

from __future__ import annotations

import pathlib
import socket

import anyio
import pytest
from anyio.abc import SocketAttribute

from arendezvous.errors import RendezvousConnectionError, RendezvousUsageError
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer, open_sockets
from tests.store.kit import Raw
from tests.support import SLOW, fail_after


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


async def test_a_host_that_drains_stays_for_the_last_read_of_its_peers() -> None:
    """R20: at most as long as it is told to linger."""
    with fail_after(20):
        async with anyio.create_task_group() as tasks, TCPStoreServer() as server:
            read: list[bytes] = []

            async def peer(delay: float) -> None:
                async with TCPStore("127.0.0.1", server.port) as store:
                    joined.append(delay)
                    await anyio.sleep(delay)
                    read.append(await store.get("last"))

            joined: list[float] = []
            async with TCPStore("127.0.0.1", server.port) as own:
                for delay in (0.0, 0.1, 0.5):
                    tasks.start_soon(peer, delay)
                while len(joined) < 3:
                    await anyio.sleep(0.01)
                await own.set("last", b"word")
                assert await server.drain(10 * SLOW, others_than=1) is True
                assert read == [b"word"] * 3
                assert await server.drain(0.05) is False
                assert await own.get("last") == b"word"


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
