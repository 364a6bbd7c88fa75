"""The server without sockets: leases on its clock, idleness, clients that hang."""

from __future__ import annotations

import time

import anyio
import pytest

from arendezvous.store.service import StoreService
from arendezvous.testing.streams import memory_stream_pair
from arendezvous.wire import messages as say
from tests.store.kit import Raw
from tests.support import SLOW, VIRTUAL, fail_after


@VIRTUAL
async def test_a_client_that_takes_nothing_is_dropped_after_a_while() -> None:
    async with StoreService(stall_timeout=30) as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        service.table.set(b"/big", b"x" * 900_000)
        await client.ask(say.Peek(1, b"big"))
        await anyio.sleep(29)
        assert service.clients == 1
        await anyio.sleep(20)
        assert service.connections == 0
        await ours.aclose()


@VIRTUAL
async def test_a_lease_outlives_its_connection_for_the_grace_only() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        await client.ask(say.LeaseSet(1, 1, 60.0, b"beat", b"1"))
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
        await client.ask(say.LeaseSet(1, 1, 3.0, b"beat", b"1"), say.Watch(2, b"beat", b"1"))
        assert await client.hear() == say.Done(1)
        assert await client.hear() == say.Value(2, None)
        assert anyio.current_time() == pytest.approx(3.0, abs=0.2)
        await ours.aclose()


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


async def test_a_server_that_stood_still_hears_its_clients_before_it_ends_their_leases() -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:
        ours, theirs = memory_stream_pair()
        tasks.start_soon(service.serve_stream, theirs)
        client = Raw(ours)
        await client.greet()
        await client.ask(say.LeaseSet(1, 1, 0.5 * SLOW, b"beat", b"1"))
        await client.hear()
        # The next beat is in the socket, and the process stands still until long after the lease was due.
        await client.ask(say.LeaseSet(2, 1, 0.5 * SLOW, b"beat", b"2"))
        time.sleep(1.5 * SLOW)
        with fail_after(5):
            assert await client.hear() == say.Done(2)
            await client.ask(say.Peek(3, b"beat"))
            assert await client.hear() == say.Value(3, b"2")
            # And once nobody beats any more, it ends.
            await client.ask(say.Watch(4, b"beat", b"2"))
            assert await client.hear() == say.Value(4, None)
        await ours.aclose()


@VIRTUAL
async def test_closing_drops_clients_whatever_they_are_at() -> None:
    async with anyio.create_task_group() as tasks:
        async with StoreService() as service:
            clients = []
            for number in range(3):
                ours, theirs = memory_stream_pair()
                tasks.start_soon(service.serve_stream, theirs)
                clients.append(Raw(ours))
                if number:
                    await clients[-1].greet(bytes([number]) * 16)
            # One has not said hello, one waits for news, one takes nothing of what is sent to it.
            service.table.set(b"/big", b"x" * 900_000)
            await clients[1].ask(say.Watch(1, b"k", None))
            await clients[2].ask(say.Peek(1, b"big"))
            await anyio.sleep(1)
            assert (service.connections, service.table.waiting) == (3, 1)
            began = anyio.current_time()
            await service.aclose()
            assert anyio.current_time() == began
            assert (service.connections, service.table.waiting) == (0, 0)
            # Whoever comes too late is not served.
            ours, theirs = memory_stream_pair()
            await service.serve_stream(theirs)
            clients.append(Raw(ours))
        for client in clients:
            await client.until_closed()
            await client.stream.aclose()


async def test_a_connection_in_a_cancelled_scope_is_not_counted_for_ever() -> None:
    async with StoreService() as service:
        ours, theirs = memory_stream_pair()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.serve_stream, theirs)
                await Raw(ours).greet()
                scope.cancel()
        assert (service.connections, service.clients) == (0, 0)
        await ours.aclose()


def test_impossible_settings_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="epoch"):
        StoreService(epoch=b"short")
    with pytest.raises(ValueError, match="max_frame"):
        StoreService(max_frame=1000)
