"""A server in its own process against what real networks and machines do to it."""

from __future__ import annotations

import os
import pathlib
import resource
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.client import TCPStore
from arendezvous.wire import messages as say
from arendezvous.wire.frames import FrameDecoder, encode_frame
from arendezvous.wire.hello import ClientHello, ServerHelloDecoder
from tests.store.kit import StoreProcess
from tests.support import SLOW, fail_after

pytestmark = pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="reads /proc")

MIB = 1 << 20


@pytest.fixture
def loop(anyio_backend: tuple[str, dict[str, Any]]) -> str:
    """The event loop of the server: the same as the test's."""
    name, options = anyio_backend
    return "uvloop" if options else name


@contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """Let this process have ``wanted`` descriptors, or as many as it may; gives how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    able = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, able), hard))
    try:
        yield max(soft, able)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(port: int, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connect ``count`` clients and exchange hellos; blocking, in batches that fit any backlog."""
    sockets = []
    for start in range(0, count, 100):
        batch = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 10 * SLOW)))
            for _ in range(min(100, count - start))
        ]
        for sock in batch:
            sock.sendall(ClientHello(os.urandom(16)).encode())
        for sock in batch:
            decoder = ServerHelloDecoder()
            while decoder.feed(sock.recv(1024)) is None:
                pass
        sockets += batch
    return sockets


def ask(sock: socket.socket, request: say.Request) -> say.Reply:
    """Make one call on a bare socket."""
    sock.sendall(encode_frame(say.encode(request)))
    decoder = FrameDecoder()
    while not (frames := decoder.feed(sock.recv(65536))):
        pass
    return say.decode_reply(frames[0])


async def test_five_thousand_idle_clients_cost_little_and_the_others_are_served(loop: str) -> None:
    with descriptors(5300) as able, ExitStack() as stack:
        count = min(5000, able - 300)
        with fail_after(60):
            async with StoreProcess(loop, nofile=min(count + 100, able)) as server:
                async with TCPStore("127.0.0.1", server.port) as store:
                    await store.set("k", b"")
                    before = await server.status()
                    idle = await anyio.to_thread.run_sync(dial, server.port, count, stack)
                    for number in range(200):
                        await store.set("k", b"%d" % number)
                        assert await store.get("k") == b"%d" % number
                    after = await server.status()
                    assert after["clients"] == count + 1
                    # 15 to 25 KiB each, most of it two tasks and their frames; what a leak of a buffer would cost
                    # (64 KiB and more) does not fit.
                    assert after["rss"] - before["rss"] < count * 40 * 1024
                    for sock in idle[:: count // 20]:
                        assert ask(sock, say.Ping(1)) == say.Done(1)
                    # Nobody was dropped: none has anything to read.
                    poll = select.poll()
                    for sock in idle:
                        poll.register(sock, select.POLLIN)
                    assert poll.poll(0) == []
                closed = await server.close()
                assert closed["connections"] == 0
                # A second on an idle machine, whose other core has 5,000 clients to tell.
                assert closed["whole"] < 8 * SLOW


GARBAGE = [
    b"GET / HTTP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"\x00" * 64,
    b"\xff" * 64,
    ClientHello(b"g" * 16).encode() + b"\xff" * 8,
    ClientHello(b"h" * 16).encode() + (60 * MIB).to_bytes(4, "little") + b"x" * 10,
]


def scan(port: int) -> None:
    """Have 300 connections say something that is no conversation, at once or byte by byte, and leave."""
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 10 * SLOW))) for _ in range(300)
        ]
        for number, stranger in enumerate(strangers):
            garbage = GARBAGE[number % len(GARBAGE)]
            try:
                for piece in [garbage] if number % 2 else [garbage[i : i + 1] for i in range(len(garbage))]:
                    stranger.sendall(piece)
            except OSError:
                continue
        for number, stranger in enumerate(strangers):
            if number % len(GARBAGE) == len(GARBAGE) - 1:
                # Half a frame below the cap may be completed any time; it holds ten bytes until then.
                continue
            stranger.settimeout(5 * SLOW)
            try:
                while stranger.recv(1024):
                    pass
            except ConnectionError:
                pass


async def test_garbage_from_three_hundred_strangers_costs_no_memory_and_no_client(loop: str) -> None:
    """R50."""
    with descriptors(1024), fail_after(40):
        async with StoreProcess(loop) as server, TCPStore("127.0.0.1", server.port) as store:
            calls = 0

            async def good() -> None:
                nonlocal calls
                while True:
                    await store.set("k", b"%d" % calls)
                    assert await store.get("k") == b"%d" % calls
                    calls += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(good)
                # The allocator keeps what 300 connections at once have needed, after a while all of it.
                seen, rss = 0, 0
                for _ in range(6):
                    await anyio.to_thread.run_sync(scan, server.port)
                    assert calls > seen
                    seen, last, rss = calls, rss, (await server.status())["rss"]
                    if rss - last < MIB:
                        break
                else:
                    pytest.fail("each wave of strangers costs more memory")
                tasks.cancel_scope.cancel()
            while (await server.status())["connections"] > 1:
                await anyio.sleep(0.05)
            assert store.connects == 1


async def test_a_server_out_of_descriptors_rests_and_recovers(loop: str) -> None:
    """R124."""
    with fail_after(40):
        async with StoreProcess(loop, nofile=64) as server, TCPStore("127.0.0.1", server.port) as store:
            with ExitStack() as stack:
                crowd = [
                    stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), 10)))
                    for _ in range(100)
                ]
                for sock in crowd:
                    sock.sendall(ClientHello(os.urandom(16)).encode())
                while (await server.status())["fds"] < 63:
                    await anyio.sleep(0.05)
                before = await server.status()
                await anyio.sleep(1)
                after = await server.status()
                assert after["cpu"] - before["cpu"] < 0.2 * (after["clock"] - before["clock"])
                await store.set("k", b"v")
                assert after["clients"] < 64
                # A few leave, and as many of those who wait come in.
                for sock in crowd[:20]:
                    sock.close()
                served = set(range(20))
                while len(served) < 50:
                    readable = {n for n in range(20, 100) if select.select([crowd[n]], [], [], 0)[0]}
                    served |= readable
                    await anyio.sleep(0.02)
            async with TCPStore("127.0.0.1", server.port) as other:
                assert await other.get("k") == b"v"
            while (await server.status())["connections"] > 1:
                await anyio.sleep(0.05)


async def test_a_client_goes_on_when_its_server_is_started_again_on_the_same_port(loop: str) -> None:
    """R106: the waiting calls complete although the server they were made on is gone."""
    with fail_after(40):
        async with StoreProcess(loop) as first:
            port = first.port
            async with TCPStore("127.0.0.1", port) as store, anyio.create_task_group() as tasks:
                got: dict[str, object] = {}

                async def get() -> None:
                    got["get"] = await store.get("late")

                async def watch() -> None:
                    got["watch"] = await store.watch("news", None)

                await store.set("k", b"old")
                tasks.start_soon(get)
                tasks.start_soon(watch)
                while (await first.status())["waiting"] < 2:
                    await anyio.sleep(0.01)
                assert store.epoch_changes == 0
                first.kill()
                while store.connected:
                    await anyio.sleep(0.01)
                async with StoreProcess(loop, port) as second, TCPStore("127.0.0.1", port) as other:
                    # A call of the client that lost its server waits for the new one.
                    assert await store.peek("k") is None
                    assert (store.connects, store.epoch_changes) == (2, 1)
                    while (await second.status())["waiting"] < 2:
                        await anyio.sleep(0.01)
                    await other.multi_set(["late", "news"], [b"1", b"2"])
                    while len(got) < 2:
                        await anyio.sleep(0.01)
                    assert got == {"get": b"1", "watch": b"2"}


async def test_a_swap_under_way_when_the_server_dies_has_an_unknown_outcome(loop: str) -> None:
    with fail_after(40):
        async with StoreProcess(loop) as first, TCPStore("127.0.0.1", first.port) as store:
            await store.set("k", b"old")
            first.signal(signal.SIGSTOP)
            errors: list[Exception] = []

            async def swap() -> None:
                with pytest.raises(RendezvousConnectionError, match=r"swap of 'k'.*outcome is unknown") as c:
                    await store.compare_and_swap("k", b"old", b"new")
                errors.append(c.value)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(swap)
                await anyio.wait_all_tasks_blocked()
                first.kill()
            assert errors[0].__cause__ is not None
            async with StoreProcess(loop, first.port):
                assert await store.compare_and_swap("k", b"", b"new") == (True, b"new")


async def test_a_server_that_stands_still_is_told_within_the_limit_and_answers_truly_afterwards(loop: str) -> None:
    """R25, D29."""
    with fail_after(40):
        async with StoreProcess(loop) as server, TCPStore("127.0.0.1", server.port) as store:
            await store.set("k", b"v")
            server.signal(signal.SIGSTOP)
            try:
                began = anyio.current_time()
                while anyio.current_time() - began < 2:
                    with (
                        store.limit(0.3),
                        pytest.raises(RendezvousConnectionError, match="did not answer a read of 'k'"),
                    ):
                        await store.peek("k")
            finally:
                server.signal(signal.SIGCONT)
            assert await store.peek("k") == b"v"
            assert store.connects == 1
            assert await store.compare_and_swap("k", b"v", b"w") == (True, b"w")
