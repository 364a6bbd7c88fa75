"""What the simulator found in the handlers, each as a small story of its own."""

from __future__ import annotations

from typing import Any

import anyio

from arendezvous.handler.entropy import SystemEnvironment
from arendezvous.handler.heartbeat import Observer
from arendezvous.handler.rounds import Round
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import FAST, KEYS, Node, Skewed, params, state_of, until
from tests.support import VIRTUAL, fail_after

ANNA = b"a" * 16


@VIRTUAL
async def test_a_withdrawal_that_a_join_overtakes_does_not_keep_the_next_one_from_beginning() -> None:
    store = MemoryStore()
    # Its clock is slow, so that leave() gives up waiting before the driver gives up withdrawing.
    async with Node(store, params(base={**FAST, "join_timeout": 60}), Skewed(rate=0.5)) as node:
        await node.join()
        node.line.cut()
        await node.handler.leave()
        async with anyio.create_task_group() as tg:
            tg.start_soon(node.join)
            await anyio.wait_all_tasks_blocked()
            node.line.mend()
        await node.handler.leave()
        state = await state_of(store)
        assert state is not None
        assert not state.ring


@VIRTUAL
async def test_news_that_come_before_a_round_is_handed_out_end_it_as_soon_as_it_is() -> None:
    store, published = MemoryStore(), anyio.Event()

    async def gate(name: str, args: tuple[Any, ...]) -> None:
        if name == "compare_and_swap" and args[0].endswith("bootstrap"):
            await published.wait()

    settings = {"base": {**FAST, "join_timeout": 60}}
    async with (
        Node(store, params(2, 3, "10.0.0.1", bootstrap_port=1, **settings)) as first,
        Node(store, params(2, 3, "10.0.0.2", bootstrap_port=1, **settings)) as second,
        Node(store, params(2, 3, "10.0.0.3", bootstrap_port=1, **settings)) as third,
        anyio.create_task_group() as tg,
    ):
        first.line.gate = gate
        worlds: list[Round] = []

        async def take() -> None:
            worlds.append(await anext(second.handler.rounds()))

        tg.start_soon(first.join)
        tg.start_soon(take)
        await until(lambda: second.handler._executor.me.last_round == 0)  # type: ignore[union-attr]
        tg.start_soon(third.join)
        await until(lambda: second.handler._executor.memory.told)  # type: ignore[union-attr]
        assert not worlds
        published.set()
        await until(lambda: worlds)
        with fail_after(5):
            async with worlds[0]:
                await anyio.sleep_forever()
        assert worlds[0].ended is not None
        assert worlds[0].ended.kind == "waiting"
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_news_of_a_node_that_is_watched_no_more_leave_nothing_that_could_look_like_silence() -> None:
    store = MemoryStore()
    observer = Observer(SystemEnvironment(), store, KEYS, changed=lambda: None, differs=lambda nonce: None)
    async with anyio.create_task_group() as tg:
        await store.set(KEYS.beat(ANNA), b"1")
        observer.follow([ANNA], tg)
        await anyio.wait_all_tasks_blocked()
        assert ANNA in observer.sightings
        # The news are on their way to the watch when it is cancelled.
        store._table.set(KEYS.beat(ANNA).encode(), b"2")
        observer.follow([], tg)
        await anyio.wait_all_tasks_blocked()
        assert not observer.sightings
        assert not store.waiting


@VIRTUAL
async def test_a_sighting_that_only_a_look_at_the_leases_made_is_not_kept_without_a_watch() -> None:
    store = MemoryStore()
    observer = Observer(SystemEnvironment(), store, KEYS, changed=lambda: None, differs=lambda nonce: None)
    async with anyio.create_task_group() as tg:
        await observer.verify([ANNA])
        assert ANNA in observer.sightings
        observer.follow([], tg)
        assert not observer.sightings


@VIRTUAL
async def test_who_was_away_itself_asks_the_store_before_it_calls_others_dead() -> None:
    store = MemoryStore()
    async with (
        Node(store, params(2, 2, "10.0.0.1", bootstrap_port=1, base={**FAST, "join_timeout": 60})) as first,
        Node(store, params(2, 2, "10.0.0.2", bootstrap_port=1, base={**FAST, "join_timeout": 60})) as second,
        anyio.create_task_group() as tg,
    ):
        tg.start_soon(second.join)
        await first.join()
        arrived = anyio.Event()

        async def late(name: str, args: tuple[Any, ...]) -> None:
            if name == "watch" and args[0] == KEYS.beat(second.inc):
                await arrived.wait()  # what it watches reaches it no more, all else does

        first.line.after = late
        await anyio.sleep(5)
        state = await state_of(store)
        assert state is not None
        assert not state.gone
        arrived.set()
        tg.cancel_scope.cancel()
