"""The driver: withdrawing at every await point, eviction, and a store that fails, hangs or lies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousError
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import CALM, Node, params, state_of, until
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
            for k in range(0, 20):
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
