"""One connection of a client: calls in flight, cancellation, limits, answers that are none."""

from __future__ import annotations

import anyio

from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from tests.store.kit import Net, in_memory
from tests.support import VIRTUAL, fail_after


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


async def test_waiters_that_are_cancelled_as_their_key_comes_leave_nothing_behind() -> None:
    """R116: 1,000 times, with another waiter beside each."""
    async with TCPStoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
        woken = 0

        async def bystander(key: str) -> None:
            nonlocal woken
            assert await store.get(key) == b"v"
            woken += 1

        with fail_after(40):
            for start in range(0, 1000, 50):
                async with anyio.create_task_group() as tasks:
                    scopes = []
                    for number in range(start, start + 50):

                        async def waiter(scope: anyio.CancelScope, key: str) -> None:
                            with scope:
                                await store.get(key)

                        scopes.append(anyio.CancelScope())
                        tasks.start_soon(waiter, scopes[-1], f"k{number}")
                        tasks.start_soon(bystander, f"k{number}")
                    while server.service.table.waiting < 100:
                        await anyio.sleep(0.001)
                    for number, scope in enumerate(scopes, start):
                        # In one go: the answer is on its way, or not even begun, when the scope is cancelled.
                        server.service.table.set(b"/k%d" % number, b"v")
                        if number % 3 == 0:
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()
            assert woken == 1000
            assert await store.check(["k0", "k999"])
        assert server.service.table.waiting == 0
        assert all(not connection._waiters for connection in server.service._connections)
        link = store._dialer.link
        assert link is not None
        assert not link._pending


async def test_an_unsent_call_that_is_cancelled_is_never_sent() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        net = Net(service, tasks)
        async with net.store() as store:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.set("k", b"v")
            assert await store.peek("k") is None
