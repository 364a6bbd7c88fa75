"""The network store through a proxy that delays, drops, cuts, resets and swallows what passes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer
from tests.faults.tcp_proxy import Proxy
from tests.support import fail_after

#: Bytes of the two hellos; what follows are calls and answers.
CLIENT_HELLO, SERVER_HELLO = 25, 24


@asynccontextmanager
async def through(*faults: str, limit: int = 1, **more: float) -> AsyncIterator[tuple[TCPStore, TCPStoreServer, Proxy]]:
    """A client whose first connection has these faults, its server, and the proxy between them."""
    with fail_after(30):
        async with TCPStoreServer() as server:
            with Proxy(("127.0.0.1", server.port), faults, limit=limit) as proxy:
                async with TCPStore(proxy.host, proxy.port, **more) as store:
                    yield store, server, proxy


# The first chunk from the server is its hello, the second answers the first call.
LOSSES = [
    "drop_reply:2",
    "reset_reply:2",
    "reset:2",
    f"cut:{CLIENT_HELLO + 10}",
    f"cut_reply:{SERVER_HELLO + 3}",
]


@pytest.mark.parametrize("fault", LOSSES)
async def test_a_call_that_may_be_repeated_does_not_notice_that_its_connection_was_lost(fault: str) -> None:
    async with through(fault) as (store, server, _):
        await store.set("k", b"value")
        assert store.connects == 2
        assert store.epoch_changes == 0
        assert await store.get("k") == b"value"
        while server.clients > 1:
            await anyio.sleep(0.01)


@pytest.mark.parametrize("fault", LOSSES)
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.add("k", 1),
        lambda store: store.append("k", b"1"),
        lambda store: store.compare_and_swap("k", b"", b"1"),
    ],
    ids=["add", "append", "compare_and_swap"],
)
async def test_a_call_that_counts_is_never_done_twice_and_says_that_it_does_not_know(
    fault: str, call: Callable[[TCPStore], Awaitable[object]]
) -> None:
    async with through(fault) as (store, _, proxy):
        with pytest.raises(RendezvousConnectionError, match=f"{proxy.port} was lost.*outcome is unknown"):
            await call(store)
        applied = await store.peek("k")
        # The server got all of the request exactly when the fault was in the answer.
        assert applied == (b"1" if "reply" in fault else None)
        assert store.connects == 2


async def test_a_connection_that_swallows_everything_is_left_for_another() -> None:
    async with through("blackhole:1", ping_after=0.2, ping_limit=0.3) as (store, _, proxy):
        assert await store.peek("k") is None
        assert store.connects == 2
        assert proxy.events("swallowed")


async def test_a_call_through_a_connection_that_swallows_everything_ends_at_its_limit() -> None:
    """D29."""
    async with through("blackhole:1") as (store, _, _):
        with store.limit(0.2), pytest.raises(RendezvousConnectionError, match=r"did not answer a write of 'k' within"):
            await store.set("k", b"v")


async def test_connections_that_are_refused_are_tried_again() -> None:
    async with through("refuse", limit=3) as (store, _, proxy):
        await store.set("k", b"v")
        assert store.connects == 1
        assert len(proxy.events("refuse")) == 3


async def test_the_late_answer_of_a_cancelled_get_goes_to_no_other_get() -> None:
    """R104."""
    async with through("delay:0.02") as (store, _, _):
        await store.multi_set(["foo", "bar"], [b"foo", b"bar"])
        for _ in range(20):
            with anyio.move_on_after(0.03) as scope:
                await store.get("foo")
            assert scope.cancelled_caught
        got: list[bytes] = []

        async def get() -> None:
            got.append(await store.get("bar"))

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(get)
        assert got == [b"bar"] * 100
        assert store.connects == 1


@pytest.mark.parametrize("give_up", [False, True], ids=["repeated", "given up"])
@pytest.mark.parametrize("at", [CLIENT_HELLO + 2, 2_000_000, 4_100_000])
async def test_a_large_write_cut_in_the_middle_of_its_frame_leaves_old_or_new(at: int, give_up: bool) -> None:
    """R118."""
    old, new = b"a" * (4 << 20), b"b" * (4 << 20)
    async with through(f"cut:{at}") as (store, server, proxy):
        async with TCPStore("127.0.0.1", server.port) as other:
            await other.set("k", old)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def write() -> None:
                        await store.set("k", new)

                    tasks.start_soon(write)
                    while not proxy.events("cut"):
                        assert await other.get("k") in (old, new)
                        await anyio.sleep(0.01)
                    if give_up:
                        scope.cancel()  # it may have been sent again in the meantime, whole
            await store.set("other", b"v")  # behind whatever of the write is still on its way
            value = await store.get("k")
            assert value in (old, new)
            if not give_up:
                assert value == new
            assert await other.get("k") == value
            assert store.connects == 2


@pytest.mark.parametrize("seed", range(4))
async def test_counters_that_only_grow_never_go_back_whatever_is_lost(seed: int) -> None:
    """Writers of their own keys, cancelled and cut at random: what is stored is between acknowledged and attempted."""
    rng = random.Random(seed)
    acknowledged = [0] * 8
    attempted = [0] * 8

    async def writer(store: TCPStore, number: int) -> None:
        for value in range(1, 26):
            attempted[number] = value
            with anyio.move_on_after(rng.choice([0.001, 0.01, 5])) as scope:
                await store.set(f"k{number}", b"%d" % value)
            if not scope.cancelled_caught:
                acknowledged[number] = value
            stored = int(await store.peek(f"k{number}") or b"0")
            assert acknowledged[number] <= stored <= value

    with fail_after(30):
        async with TCPStoreServer() as server:
            faults = ["delay:0-0.004", "drop_reply:9", f"cut:{rng.randrange(200, 900)}"]
            with Proxy(("127.0.0.1", server.port), faults, seed=seed, prob=0.7, limit=6) as proxy:
                async with TCPStore(proxy.host, proxy.port) as store:
                    async with anyio.create_task_group() as tasks:
                        for number in range(8):
                            tasks.start_soon(writer, store, number)
                    proxy.set_faults([])
                    for number in range(8):
                        stored = int(await store.get(f"k{number}"))
                        assert acknowledged[number] <= stored <= attempted[number]
                    assert store.epoch_changes == 0
            assert server.service.table.waiting == 0
