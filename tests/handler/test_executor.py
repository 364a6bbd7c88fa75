"""The driver: withdrawing at every await point, eviction, and a store that fails, hangs or lies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import CALM, FAST, KEYS, Node, params, state_of, together, until
from tests.support import SLOW, VIRTUAL, fail_after

#: Calls that a joining node can be interrupted in; far more than one join makes.
MOST_CALLS = 80


class Stall:
    """Holds up the k-th call of a line until it is cancelled: before it is sent, once it was answered, or for long.

    ``late``: what was held up lands 0.1 s after the cancellation, as a request does that was still on its way.
    """

    def __init__(self, node: Node, k: int, how: str) -> None:
        self.k, self.count, self.reached = k, 0, anyio.Event()
        self.where = ""
        self._node = node
        self.landing: Callable[[], Awaitable[Any]] | None = None
        self._late = how == "late"
        if how == "unanswered":
            node.line.after = self
        else:
            node.line.gate = self

    async def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        self.count += 1
        if self.count == self.k + 1:
            self.where = f"{name} {args[:1]}"
            self.reached.set()
            try:
                await anyio.sleep_forever()
            finally:
                if self._late and name in ("set", "compare_and_swap", "add", "delete_key"):
                    self.landing = partial(getattr(self._node.line.store, name), *args)

    async def land(self) -> None:
        """Let the held-up request arrive after all."""
        await anyio.sleep(0.1)
        if self.landing is not None:
            await self.landing()


async def is_listed(node: Node, store: MemoryStore) -> bool:
    state = await state_of(store)
    return state is not None and state.listed(node.inc)


async def withdraw_at(
    k: int, how: str, others: int, cancel: Callable[[Node, Stall], Awaitable[bool]], settings: dict[str, Any]
) -> bool:
    """Let ``b`` be cancelled in its k-th call while others join; True once its join was too short for that."""
    worlds: list[tuple[int, int]] = []

    async def peer(node: Node) -> None:
        async for world in node.handler.rounds():
            async with world:
                worlds.append((world.round, world.world_size))
                await anyio.sleep_forever()

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(MemoryStore())
        peers = [Node(store, params(1, 3, f"127.0.0.{9 + n}", base=settings)) for n in range(others)]
        for node in peers:
            await stack.enter_async_context(node)
        # A lower address than the peers': b is rank 0, so its bootstrap is cancelled as well.
        b = Node(store, params(1, 3, "127.0.0.2", base=settings))
        await stack.enter_async_context(b)
        tg = await stack.enter_async_context(anyio.create_task_group())
        for node in peers:
            tg.start_soon(peer, node)
        stall = Stall(b, k, how)
        over = await cancel(b, stall)
        if not over:
            with fail_after(1.3):
                await until(lambda: _unlisted(b, store))
            tg.start_soon(stall.land)
            for _ in range(20):
                assert not await is_listed(b, store), f"listed again after the cancel in {stall.where}"
                await anyio.sleep(0.01)
            if others:
                with fail_after(5):
                    await until(lambda: _alone(b, others, store))
                    await until(lambda: worlds and worlds[-1][1] == others)
        b.line.gate = b.line.after = None
        tg.cancel_scope.cancel()
    return over


async def _unlisted(node: Node, store: MemoryStore) -> bool:
    return not await is_listed(node, store)


async def _alone(b: Node, others: int, store: MemoryStore) -> bool:
    state = await state_of(store)
    return state is not None and state.complete and len(state.live) == others and b.inc not in state.live


async def cancel_scope(b: Node, stall: Stall) -> bool:
    """Cancel a join in an anyio scope once it is stalled; True when it returned before that."""
    done = False
    async with anyio.create_task_group() as tg:

        async def join() -> None:
            nonlocal done
            await b.join()
            done = True
            stall.reached.set()

        tg.start_soon(join)
        with fail_after(5):
            await stall.reached.wait()
        if not done:
            tg.cancel_scope.cancel()
    return done


async def enumerate_cancels(
    others: int, how: str, cancel: Callable[[Node, Stall], Awaitable[bool]], settings: dict[str, Any]
) -> int:
    """Run :func:`withdraw_at` for every k until a join is over before its k-th call; how many there were."""
    for k in range(MOST_CALLS):
        if await withdraw_at(k, how, others, cancel, settings):
            return k
    raise AssertionError(f"the join still makes calls after {MOST_CALLS}")


@VIRTUAL
@pytest.mark.parametrize("how", ["unsent", "unanswered", "late"])
@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_join_cancelled_at_any_call_to_the_store_leaves_no_trace(others: int, how: str) -> None:
    """D13, R16: gone from the state within a second, and the others form without it."""
    assert await enumerate_cancels(others, how, cancel_scope, CALM | {"last_call_timeout": 0.2}) > 6


async def test_a_cancelled_join_leaves_no_trace_on_real_clocks_either() -> None:
    """D13, R16, with every event loop: a few dozen runs at once, each interrupted in another call."""
    settings = CALM | {"last_call_timeout": 0.3 * SLOW}
    results: list[bool] = []

    async def one(k: int, how: str) -> None:
        results.append(await withdraw_at(k, how, 1, cancel_scope, settings))

    with fail_after(30):
        async with anyio.create_task_group() as tg:
            for k in range(20):
                for how in ("unsent", "unanswered"):
                    tg.start_soon(one, k, how)
    assert not all(results)


async def cancel_natively(b: Node, stall: Stall) -> bool:
    """Cancel the asyncio task that joins, and cancel it again while it withdraws."""
    task = asyncio.ensure_future(b.join())
    reached = asyncio.ensure_future(stall.reached.wait())
    with fail_after(5):
        await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    await anyio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return False


@pytest.mark.parametrize("anyio_backend", ["virtual-asyncio"], indirect=True)
@pytest.mark.parametrize("how", ["unsent", "unanswered", "late"])
async def test_a_second_native_cancel_does_not_keep_the_node_in(how: str) -> None:
    """D13, design.md 6: ``task.cancel()`` twice pierces a shield of the host task, so the driver withdraws."""
    assert await enumerate_cancels(1, how, cancel_natively, CALM | {"last_call_timeout": 0.2}) > 6


@VIRTUAL
async def test_a_join_cancelled_between_any_two_steps_of_the_scheduler_leaves_no_trace() -> None:
    """D13, R16: not only in calls to the store."""
    over, steps = False, 0
    while not over:

        async def cancel(b: Node, stall: Stall, steps: int = steps) -> bool:
            done = False
            async with anyio.create_task_group() as tg:

                async def join() -> None:
                    nonlocal done
                    await b.join()
                    done = True

                tg.start_soon(join)
                for _ in range(steps):
                    await anyio.sleep(0)
                # The last call is the long part: step through it as well.
                await anyio.sleep(0.01 * max(0, steps - 40))
                if not done:
                    tg.cancel_scope.cancel()
            return done

        over = await withdraw_at(10**6, "unsent", 1, cancel, CALM | {"last_call_timeout": 0.1})
        steps += 1
    assert steps > 20


@VIRTUAL
async def test_a_join_cancelled_on_a_slow_store_returns_in_time_and_is_withdrawn_or_evicted() -> None:
    """D13: slower than the withdrawal may take; the node then falls silent, and the others bury it."""
    async with MemoryStore() as store, Node(store, params(1, 3, "127.0.0.2")) as a:
        async with Node(store, params(1, 3, "127.0.0.3", base=FAST | {"last_call_timeout": 0.2})) as b:
            await a.join()

            async def slow(name: str, args: tuple[Any, ...]) -> None:
                await anyio.sleep(0.7 if name != "lease_set" else 0)

            b.line.gate = slow
            async with anyio.create_task_group() as tg:
                tg.start_soon(b.join)
                with fail_after(10):
                    await until(lambda: is_listed(b, store))
                began = anyio.current_time()
                tg.cancel_scope.cancel()
            assert anyio.current_time() - began <= 1.3
            with fail_after(3):
                await until(lambda: _unlisted(b, store))
            assert await a.handler.num_nodes_waiting() == 0


@VIRTUAL
async def test_a_store_slower_than_the_expiry_delays_a_join_and_does_not_starve_it() -> None:
    """The re-read that heals lost notices must leave time to decide anything."""
    async with MemoryStore() as store, Node(store, params(1, 1, join_timeout=60)) as node:

        async def slow(name: str, args: tuple[Any, ...]) -> None:
            await anyio.sleep(0.7 if name != "lease_set" else 0)

        node.line.gate = slow
        with fail_after(20):
            assert (await node.join()).world_size == 1
            assert (await node.join()).round == 1


@VIRTUAL
async def test_the_end_of_the_block_is_bounded_on_a_store_that_hangs() -> None:
    """design.md 3: a withdrawal has a second; ending the lease has another."""
    async with MemoryStore() as store:
        for joined in (True, False):
            async with Node(store, params(1, 1, join_timeout=60)) as node, anyio.create_task_group() as tg:
                if joined:
                    await node.join()
                    node.line.cut()
                else:
                    node.line.cut()
                    tg.start_soon(node.join)
                    await anyio.sleep(0.5)
                    tg.cancel_scope.cancel()
                began = anyio.current_time()
            assert anyio.current_time() - began <= 2.6


@VIRTUAL
async def test_a_member_at_rest_reads_seldom_and_writes_nothing_but_its_beats() -> None:
    """D38, design.md 5.6: heartbeats are not in the state, and a timer re-reads once per expiry."""
    settings = FAST | {"keep_alive_interval": 1}
    async with MemoryStore() as store, Node(store, params(2, 2, base=settings)) as a:
        async with Node(store, params(2, 2, base=settings)) as b:
            await together(a.join, b.join)
            await anyio.sleep(5)
            before = await store.get(KEYS.state)
            for node in (a, b):
                node.line.calls.clear()
            reads = a.handler.counters.reads
            await anyio.sleep(60)
            assert await store.get(KEYS.state) == before
            assert a.handler.counters.reads - reads <= 22
            assert a.line.written() == b.line.written() == []
            assert 58 <= sum(name == "lease_set" for name, _ in a.line.calls) <= 62


@VIRTUAL
async def test_one_connection_error_in_a_swap_is_read_and_tried_again() -> None:
    """D41, R98: an unknown outcome is settled by reading; the round is entered once."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as node:
        failures = 0

        async def lose(name: str, args: tuple[Any, ...]) -> None:
            nonlocal failures
            if name in ("compare_and_swap", "peek") and args[0] == KEYS.state and failures < 2:
                failures += name == "compare_and_swap"
                if name == "compare_and_swap":
                    raise RendezvousConnectionError("the answer was lost")

        node.line.after = lose
        with fail_after(5):
            info = await node.join()
        assert (info.round, info.rank, info.world_size) == (0, 0, 1)
        assert failures


@VIRTUAL
async def test_a_store_that_fails_while_joining_is_the_joins_own_error() -> None:
    """D47: the documented error, not a group, and the next join works."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as node:

        async def fail(name: str, args: tuple[Any, ...]) -> None:
            if name == "peek":
                raise RendezvousConnectionError("the store is away")

        node.line.gate = fail
        with fail_after(5), pytest.raises(RendezvousConnectionError, match="away"):
            await node.join()
        node.line.gate = None
        with fail_after(5):
            assert (await node.join()).world_size == 1


@VIRTUAL
async def test_a_lost_notice_is_healed_by_a_neighbours_beat() -> None:
    """P7: a beat carries the nonce last seen, so a member whose watch is deaf still reads the news in time."""
    settings = FAST | {"keep_alive_interval": 1, "keep_alive_max_attempt": 30, "join_timeout": 100}
    async with MemoryStore() as store, Node(store, params(1, 3, base=settings)) as a:
        async with Node(store, params(1, 3, base=settings)) as b, Node(store, params(1, 3, base=settings)) as c:
            await together(a.join, b.join)

            async def deaf(name: str, args: tuple[Any, ...]) -> None:
                if name == "watch" and args[0] == KEYS.state:
                    await anyio.sleep_forever()

            a.line.after = deaf
            changes = a.handler.changes()
            await anyio.sleep(3)  # the watch under way is answered once more, into the void
            async with anyio.create_task_group() as tg:
                tg.start_soon(c.join)
                with fail_after(10):  # a third of the expiry
                    while (await anext(changes)).kind != "waiting":
                        pass
                tg.cancel_scope.cancel()
