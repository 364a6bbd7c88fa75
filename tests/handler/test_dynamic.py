"""The elastic handler as its users see it: who joins whom, in which round, with which rank."""

from __future__ import annotations

import itertools
import logging
import pickle
import time

import anyio
import pytest

from arendezvous.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousExhaustedError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
    RendezvousUsageError,
)
from arendezvous.handler import dynamic
from arendezvous.params import RendezvousParameters
from arendezvous.store.client import TCPStore
from arendezvous.store.memory import MemoryStore
from arendezvous.store.server import TCPStoreServer
from tests.handler.kit import CALM, EXPIRY, FAST, KEYS, Node, Skewed, form, outcome, params, state_of, together, until
from tests.support import VIRTUAL, fail_after

# ---- forming ------------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_two_nodes_get_the_two_ranks_of_one_world() -> None:
    """R32: two handlers in one process and event loop are two nodes."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        with fail_after(5):
            infos = await form(a, b)
    assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]
    assert infos[0].participants == infos[1].participants


async def test_a_world_forms_on_every_event_loop_over_tcp() -> None:
    async with TCPStoreServer() as server, anyio.create_task_group() as tg:
        infos = []

        async def agent() -> None:
            async with (
                TCPStore(server.host, server.port) as store,
                Node(store, params(3, 3, base=CALM)) as node,
            ):
                infos.append(await node.join())
                await anyio.sleep(0.1)

        with fail_after(20):
            for _ in range(3):
                tg.start_soon(agent)
            await until(lambda: len(infos) == 3)
    assert sorted(outcome(infos)) == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    assert len({info.bootstrap_store_info for info in infos}) == 1


@VIRTUAL
async def test_a_node_alone_joins_three_times_in_a_row_without_a_last_call() -> None:
    """R4: rounds 0, 1, 2, each at once, because the maximum is reached."""
    async with MemoryStore() as store, Node(store, params(1, 1, last_call_timeout=30)) as node:
        infos = []
        for _ in range(3):
            with anyio.fail_after(1):
                infos.append(await node.join())
    assert outcome(infos) == [(0, 0, 1), (1, 0, 1), (2, 0, 1)]


@VIRTUAL
async def test_time_alone_ends_the_last_call() -> None:
    """R23: three nodes of two to four join, then nothing happens any more."""
    async with MemoryStore() as store, Node(store, params(2, 4)) as a, Node(store, params(2, 4)) as b:
        async with Node(store, params(2, 4)) as c:
            began = anyio.current_time()
            with fail_after(5):
                infos = await form(a, b, c)
            assert 0.2 <= anyio.current_time() - began < 0.5
    assert {info.world_size for info in infos} == {3}


@VIRTUAL
async def test_the_maximum_completes_a_round_without_a_last_call() -> None:
    settings = params(1, 2, last_call_timeout=60, join_timeout=100)
    async with MemoryStore() as store, Node(store, settings) as a, Node(store, settings) as b:
        began = anyio.current_time()
        infos = await form(a, b)
        assert anyio.current_time() - began < 1
    assert {info.world_size for info in infos} == {2}


@VIRTUAL
async def test_ranks_follow_the_address_and_not_who_came_first_or_hosts() -> None:
    """R31, R11: ``a`` is rank 0 in every run, and the bootstrap address is its own."""
    for _ in range(3):
        async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.5")) as b:
            async with Node(store, params(2, 2, "127.0.0.3")) as a, anyio.create_task_group() as tg:
                tg.start_soon(b.join)
                await anyio.sleep(0.05)
                info = await a.join()
                assert (info.rank, [n.addr for n in info.participants]) == (0, ["127.0.0.3", "127.0.0.5"])
                assert info.bootstrap_store_info is not None
                assert info.bootstrap_store_info.addr == "127.0.0.3"


@VIRTUAL
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("address", ["127.0.0.10", "127.0.0.2", "127.0.0.9"]),
        ("natural", ["127.0.0.2", "127.0.0.9", "127.0.0.10"]),
        ("node_rank", ["127.0.0.9", "127.0.0.10", "127.0.0.2"]),
    ],
)
async def test_each_rank_order_is_the_same_on_all_members(order: str, expected: list[str]) -> None:
    """D26, R31."""
    ranks = {"127.0.0.2": 2, "127.0.0.9": 0, "127.0.0.10": 1}
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        nodes = []
        done = anyio.Event()
        infos = []

        async def agent(addr: str) -> None:
            node_rank = ranks[addr] if order == "node_rank" else None
            async with Node(store, params(3, 3, addr, rank_order=order, node_rank=node_rank)) as node:
                nodes.append(node)
                infos.append(await node.join())
                await done.wait()

        for addr in ranks:
            tg.start_soon(agent, addr)
        with fail_after(5):
            await until(lambda: len(infos) == 3)
        done.set()
    for info in infos:
        assert [node.addr for node in info.participants] == expected
        assert info.participants[info.rank].addr == expected[info.rank]


@VIRTUAL
async def test_survivors_keep_their_order_when_ranks_are_stable() -> None:
    """D26: with ``stable``, a lower address that comes later takes the last rank."""

    def settings(addr: str) -> RendezvousParameters:
        return params(2, 3, addr, rank_order="stable")

    async with MemoryStore() as store, Node(store, settings("127.0.0.7")) as a, Node(store, settings("127.0.0.8")) as b:
        await form(a, b)
        before = await state_of(store)
        async with Node(store, settings("127.0.0.2")) as c:
            async with anyio.create_task_group() as tg:
                tg.start_soon(c.join)
                with fail_after(5):
                    await until(a.handler.num_nodes_waiting)
                    infos = await form(b, a)
            assert before is not None
            assert [n.incarnation for n in infos[0].participants] == [*before.participants, c.inc]


@VIRTUAL
async def test_ranks_that_the_nodes_chose_badly_are_an_error_that_names_them() -> None:
    settings = [params(2, 2, rank_order="node_rank", node_rank=1, join_timeout=2) for _ in range(2)]
    async with MemoryStore() as store, Node(store, settings[0]) as a, Node(store, settings[1]) as b:
        errors = []

        async def join(node: Node) -> None:
            with pytest.raises(RendezvousSettingsError, match="node_rank 1 is claimed by") as caught:
                await node.join()
            errors.append(caught.value)

        with fail_after(5):
            await together(lambda: join(a), lambda: join(b))
        assert all("nobody has node_rank 0" in str(error) for error in errors)


@VIRTUAL
async def test_a_node_rank_that_the_rank_order_ignores_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """D26, R31."""
    async with MemoryStore() as store:
        Node(store, params(1, 1, node_rank=3))
    assert any("node_rank=3 is ignored" in r.message and r.levelno == logging.WARNING for r in caplog.records)


@VIRTUAL
async def test_two_containers_with_equal_name_and_process_number_are_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """D14, R32: equal address, pid and local id; the random incarnation tells them apart."""
    monkeypatch.setattr(dynamic, "_local_ids", itertools.repeat(0))
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        assert a.handler.node.triple == b.handler.node.triple
        with fail_after(5):
            infos = await form(a, b)
        assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]


@VIRTUAL
async def test_three_twins_are_three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """D14."""
    monkeypatch.setattr(dynamic, "_local_ids", itertools.repeat(0))
    async with MemoryStore() as store, Node(store, params(3, 3)) as a, Node(store, params(3, 3)) as b:
        async with Node(store, params(3, 3)) as c:
            with fail_after(5):
                infos = await form(a, b, c)
    assert sorted(info.rank for info in infos) == [0, 1, 2]


@VIRTUAL
async def test_a_node_that_was_killed_and_restarted_at_once_is_admitted_and_its_ghost_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R17: same address, pid and local id; never both ranked, nothing closed."""
    monkeypatch.setattr(dynamic, "_local_ids", itertools.repeat(0))
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as ghost:
            await form(a, ghost)
            ghost.line.cut()
            await anyio.sleep(0.1)
            async with Node(store, params(2, 2, "127.0.0.3")) as b:
                assert b.handler.node.triple == ghost.handler.node.triple
                with fail_after(5):
                    async with anyio.create_task_group() as tg:
                        tg.start_soon(b.join)
                        await until(a.handler.num_nodes_waiting)
                        info = await a.join()
                assert [n.incarnation for n in info.participants] == [a.inc, b.inc]
                assert not await a.handler.is_closed()


# ---- settings -----------------------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"low": 2, "high": 2}, ["min_nodes: 4 against 2", "max_nodes: 4 against 2"]),
        ({"rank_order": "natural"}, ["rank_order: address against natural"]),
        ({"last_call_timeout": 3}, ["last_call: 0.2 against 3.0"]),
        ({"keep_alive_interval": 0.5}, ["keep_alive_interval: 0.1 against 0.5"]),
        ({"keep_alive_max_attempt": 5}, ["keep_alive_max_attempt: 3 against 5"]),
    ],
)
async def test_a_node_with_other_settings_is_told_both_values_and_leaves(change: dict, values: list[str]) -> None:
    """D15, protocol.md P12: an explicit error, and the others are not held up."""
    async with MemoryStore() as store, Node(store, params(4, 4)) as a, anyio.create_task_group() as tg:
        tg.start_soon(a.join)
        await anyio.sleep(0.1)
        async with Node(store, params(**{"low": 4, "high": 4, **change})) as other:
            with fail_after(2), pytest.raises(RendezvousSettingsError) as caught:
                await other.join()
            for value in (*values, RUN_QUOTED):
                assert value in str(caught.value)
            state = await state_of(store)
            assert state is not None
            assert state.ring == (a.inc,)
        tg.cancel_scope.cancel()


RUN_QUOTED = "'run'"


@VIRTUAL
async def test_settings_bind_nobody_once_everybody_has_left() -> None:
    """P12."""
    async with MemoryStore() as store:
        async with Node(store, params(1, 1)) as node:
            await node.join()
        async with Node(store, params(1, 1, keep_alive_interval=0.2)) as node:
            with fail_after(5):
                info = await node.join()
    assert (info.round, info.world_size) == (1, 1)


# ---- frozen rounds ------------------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize("attempt", range(5))
async def test_a_member_that_rejoins_at_once_does_not_change_the_world_of_slow_readers(attempt: int) -> None:
    """D8 (a), D16: b comes back before a and c have looked; all three have the ranks of one frozen round."""
    async with (
        MemoryStore() as store,
        Node(store, params(3, 3, "127.0.0.2")) as a,
        Node(store, params(3, 3, "127.0.0.1")) as b,
    ):
        async with Node(store, params(3, 3, "127.0.0.3")) as c, anyio.create_task_group() as tg:
            held = anyio.Event()

            async def slow(name: str, args: tuple) -> None:
                # News of the state reaches a and c late.
                if name in ("watch", "peek") and args[0] == KEYS.state:
                    state = await state_of(store)
                    if state is not None and state.complete:
                        await held.wait()

            a.line.after = c.line.after = slow
            infos = {}

            async def join(name: str, node: Node) -> None:
                infos[name] = await node.join()

            tg.start_soon(join, "a", a)
            tg.start_soon(join, "c", c)
            await anyio.sleep(0.02 * attempt)
            infos["b"] = await b.join()
            tg.start_soon(b.join)
            await anyio.sleep(0.1)
            held.set()
            with fail_after(5):
                await until(lambda: len(infos) == 3)
            assert sorted(i.rank for i in infos.values()) == [0, 1, 2]
            assert {(i.round, i.world_size) for i in infos.values()} == {(0, 3)}
            assert len({i.participants for i in infos.values()}) == 1
            for name, node in (("a", a), ("b", b), ("c", c)):
                assert infos[name].participants[infos[name].rank].incarnation == node.inc
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_member_that_dies_right_after_completion_stays_in_the_world_of_the_others() -> None:
    """D8 (b): the roster and its size are frozen."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        infos = await form(a, b)
        b.line.cut()
        with fail_after(2):
            await until(a.handler.num_nodes_waiting)
        state = await state_of(store)
        assert state is not None
        assert (state.round, len(state.participants), len(state.live)) == (0, 2, 1)
        assert infos[0].world_size == 2
        assert len(infos[0].participants) == 2


@VIRTUAL
async def test_a_member_of_a_completed_round_receives_it_although_another_closed_first() -> None:
    """D46."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        held = anyio.Event()

        async def slow(name: str, args: tuple) -> None:
            state = await state_of(store) if args and args[0] == KEYS.state else None
            if state is not None and state.complete:
                await held.wait()

        b.line.after = slow
        async with anyio.create_task_group() as tg:
            got = []

            async def join() -> None:
                got.append(await b.join())

            tg.start_soon(join)
            await a.join()
            await a.handler.set_closed()
            held.set()
        assert outcome(got)[0][2] == 2
        assert await b.handler.is_closed()
        with pytest.raises(RendezvousClosedError):
            await b.join()


@VIRTUAL
async def test_a_slow_node_returns_from_its_own_round_while_fast_ones_are_in_the_next() -> None:
    """R34: it has that round's world, or it re-joins; never a mixed one."""
    async with MemoryStore() as store, Node(store, params(2, 3)) as a, Node(store, params(2, 3)) as b:
        async with Node(store, params(2, 3)) as slow, anyio.create_task_group() as tg:
            held = anyio.Event()

            async def late(name: str, args: tuple) -> None:
                state = await state_of(store) if args and args[0] == KEYS.state else None
                if state is not None and state.complete:
                    await held.wait()

            slow.line.after = late
            got = []

            async def join() -> None:
                got.append(await slow.join())

            tg.start_soon(join)
            first = await form(a, b)
            assert {i.world_size for i in first} == {3}
            again: list = []

            async def rejoin(node: Node) -> None:
                again.append(await node.join())

            tg.start_soon(rejoin, a)
            tg.start_soon(rejoin, b)
            await anyio.sleep(0.1)
            held.set()
            with fail_after(5):
                await until(lambda: len(got) == 1)
                assert got[0].round == 0
                assert got[0].participants == first[0].participants
                got.append(await slow.join())
                await until(lambda: len(again) == 2)
            assert {(i.round, i.world_size) for i in (got[1], *again)} == {(1, 3)}


# ---- newcomers, waiters and spares --------------------------------------------------------------------------------


@VIRTUAL
async def test_late_nodes_wait_and_are_counted_and_get_in_with_the_next_round() -> None:
    """R22: nodes 3 and 4 come a second after the round was complete."""
    async with MemoryStore() as store, Node(store, params(2, 4)) as a, Node(store, params(2, 4)) as b:
        await form(a, b)
        assert await a.handler.num_nodes_waiting() == 0
        async with Node(store, params(2, 4)) as c, Node(store, params(2, 4)) as d:
            async with anyio.create_task_group() as tg:
                infos = []

                async def late(node: Node) -> None:
                    infos.append(await node.join())

                await anyio.sleep(1)
                tg.start_soon(late, c)
                tg.start_soon(late, d)
                with fail_after(2):
                    await until(lambda: _waiting(a, 2))
                assert await c.handler.num_nodes_waiting() == 0  # an outsider
                with fail_after(5):
                    infos += await form(a, b)
            assert {(i.round, i.world_size) for i in infos} == {(1, 4)}


async def _waiting(node: Node, count: int) -> bool:
    return await node.handler.num_nodes_waiting() == count


@VIRTUAL
async def test_scale_up_gives_the_newcomer_the_bootstrap_address_of_the_new_round() -> None:
    """D2, D4: one to two nodes; upstream's newcomer waits for an address that nobody publishes."""
    async with (
        TCPStoreServer() as server,
        TCPStore(server.host, server.port) as one,
        TCPStore(server.host, server.port) as two,
    ):
        async with Node(one, params(1, 2, "127.0.0.1")) as a, Node(two, params(1, 2, "127.0.0.2")) as b:
            first = await a.join()
            async with anyio.create_task_group() as tg:
                got = []

                async def join() -> None:
                    got.append(await b.join())

                tg.start_soon(join)
                with fail_after(5):
                    await until(a.handler.num_nodes_waiting)
                    second = await a.join()
            assert (second.world_size, got[0].world_size) == (2, 2)
            assert second.rank == 0  # the one that has published before publishes again
            assert got[0].bootstrap_store_info == second.bootstrap_store_info
            assert first.bootstrap_store_info is not None


async def test_scale_up_works_over_tcp_on_every_event_loop() -> None:
    """D4, on real clocks."""
    async with TCPStoreServer() as server, anyio.create_task_group() as tg:
        worlds: list = []
        done = anyio.Event()

        async def agent(addr: str) -> None:
            async with TCPStore(server.host, server.port) as store, Node(store, params(1, 2, addr, base=CALM)) as node:
                async for world in node.handler.rounds():
                    async with world:
                        worlds.append(world)
                        await done.wait()
                        world.finish()

        with fail_after(20):
            tg.start_soon(agent, "127.0.0.1")
            await until(lambda: len(worlds) == 1)
            tg.start_soon(agent, "127.0.0.2")
            await until(lambda: len(worlds) == 3)
            done.set()
    assert [w.world_size for w in worlds] == [1, 2, 2]
    assert worlds[1].bootstrap_store_info == worlds[2].bootstrap_store_info


@VIRTUAL
async def test_spares_are_parked_and_one_gets_the_seat_of_a_dead_member() -> None:
    """D28, R13: four nodes for two seats; a full round triggers no restarts."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        infos: dict[int, list] = {n: [] for n in range(4)}
        nodes = [Node(store, params(2, 2)) for _ in range(4)]
        over = anyio.Event()

        async def agent(n: int) -> None:
            async with nodes[n]:
                infos[n].append(await nodes[n].join())
                while not over.is_set():
                    if await nodes[n].handler.num_nodes_waiting():
                        infos[n].append(await nodes[n].join())
                    await anyio.sleep(0.05)

        for n in range(4):
            tg.start_soon(agent, n)
        await anyio.sleep(1)
        members = [n for n in range(4) if infos[n]]
        assert len(members) == 2
        assert all(len(infos[n]) == 1 for n in members), "a full round was restarted by its spares"
        state = await state_of(store)
        assert state is not None
        assert (len(state.wait_list), len(state.redundancy)) == (0, 2)
        nodes[members[0]].line.cut()
        with fail_after(5):
            await until(lambda: sum(len(infos[n]) for n in range(4)) == 4)
        assert infos[members[1]][-1].world_size == 2
        assert infos[members[1]][-1].round == 1
        await anyio.sleep(1)
        assert sum(len(infos[n]) for n in range(4)) == 4
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_more_nodes_than_seats_after_a_fault_park_one_and_close_nothing() -> None:
    """R14: five agents for four seats re-join together, twenty times."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        nodes = [Node(store, params(4, 4)) for _ in range(5)]
        joined: dict[int, dict[int, int]] = {}
        again = anyio.Event()

        async def agent(node: Node) -> None:
            async with node:
                while True:
                    info = await node.join()
                    joined.setdefault(info.round, {})[nodes.index(node)] = info.rank
                    await again.wait()

        for node in nodes:
            tg.start_soon(agent, node)
        for number in range(20):
            with fail_after(5):
                await until(lambda number=number: len(joined.get(number, {})) == 4)
            assert sorted(joined[number].values()) == [0, 1, 2, 3]
            member = nodes[next(iter(joined[number]))]
            assert not await member.handler.is_closed()
            again.set()
            again = anyio.Event()
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_restarting_member_keeps_its_seat_against_a_spare() -> None:
    """D42: with two seats and a spare waiting, a member that joins again is in the next round too."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        await form(a, b)
        async with Node(store, params(2, 2)) as spare, anyio.create_task_group() as tg:
            tg.start_soon(spare.join)
            with fail_after(2):
                await until(lambda: _queued(store, spare))
            with fail_after(5):
                infos = await form(a, b)
            assert {n.incarnation for n in infos[0].participants} == {a.inc, b.inc}
            tg.cancel_scope.cancel()


async def _queued(store: MemoryStore, node: Node) -> bool:
    state = await state_of(store)
    return state is not None and node.inc in state.queue


@VIRTUAL
async def test_a_spare_waits_longer_than_the_join_timeout() -> None:
    async with MemoryStore() as store, Node(store, params(1, 1)) as a, Node(store, params(1, 1)) as spare:
        await a.join()
        async with anyio.create_task_group() as tg:
            got = []

            async def wait() -> None:
                got.append(await spare.join())

            tg.start_soon(wait)
            await anyio.sleep(60)
            assert not got
            await a.handler.leave()
        assert outcome(got) == [(1, 0, 1)]


@VIRTUAL
async def test_a_spare_that_was_evicted_registers_again_and_does_not_time_out() -> None:
    """D35."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as a, Node(store, params(1, 1)) as spare:
        await a.join()
        async with anyio.create_task_group() as tg:
            got = []

            async def wait() -> None:
                got.append(await spare.join())

            tg.start_soon(wait)
            await anyio.sleep(20)  # long past the join time-out
            spare.line.cut()
            with fail_after(3):
                await until(lambda: _not_queued(store, spare))
            spare.line.mend()
            with fail_after(3):
                await until(lambda: _queued(store, spare))
            await a.handler.leave()
        assert outcome(got) == [(1, 0, 1)]
        assert spare.handler.counters.evictions == 1


async def _not_queued(store: MemoryStore, node: Node) -> bool:
    return not await _queued(store, node)


@VIRTUAL
async def test_a_spare_gets_the_graceful_exit_when_the_job_closes() -> None:
    async with MemoryStore() as store, Node(store, params(1, 1)) as a, Node(store, params(1, 1)) as spare:
        await a.join()
        async with anyio.create_task_group() as tg:

            async def wait() -> None:
                with pytest.raises(RendezvousGracefulExitError, match="'run'"):
                    await spare.join()

            tg.start_soon(wait)
            with fail_after(3):
                await until(lambda: _queued(store, spare))
            await a.handler.set_closed()


# ---- deaths -------------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_members_death_is_told_after_the_expiry_and_not_before() -> None:
    """D32, R5: not before 0.3 s without a beat, and soon after."""
    async with MemoryStore() as store, Node(store, params(1, 4)) as a, Node(store, params(1, 4)) as b:
        await form(a, b)
        await anyio.sleep(1)
        last_beat = anyio.current_time()
        b.line.cut()
        with fail_after(2):
            await until(a.handler.num_nodes_waiting)
        assert EXPIRY - 0.11 <= anyio.current_time() - last_beat <= EXPIRY + 0.15
        assert not await a.handler.is_closed()
        with fail_after(2):
            info = await a.join()
        assert outcome([info]) == [(1, 0, 1)]


@VIRTUAL
async def test_losses_are_not_told_to_who_does_not_want_them() -> None:
    """api.md A.1: ``notify_lost_nodes=false`` keeps only the waiters in the count."""
    settings = params(1, 4, notify_lost_nodes=False)
    async with MemoryStore() as store, Node(store, settings) as a, Node(store, settings) as b:
        await form(a, b)
        b.line.cut()
        await anyio.sleep(2)
        state = await state_of(store)
        assert state is not None
        assert len(state.gone) == 1
        assert await a.handler.num_nodes_waiting() == 0
        async with Node(store, settings) as c, anyio.create_task_group() as tg:
            tg.start_soon(c.join)
            with fail_after(2):
                await until(lambda: _waiting(a, 1))
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_newcomer_is_admitted_after_the_only_member_died() -> None:
    """R29: within the expiry and a moment."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2)) as c:
        await a.join()
        a.line.cut()
        began = anyio.current_time()
        with fail_after(5):
            info = await c.join()
        assert info.world_size == 1
        assert info.round == 1
        assert anyio.current_time() - began < EXPIRY + 0.2 + 0.5  # expiry, last call


@VIRTUAL
async def test_a_joiner_that_was_killed_is_never_counted() -> None:
    """R107: A joins and is killed, C joins: not complete with a ghost, D completes it."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as c:
        async with anyio.create_task_group() as tg:
            tg.start_soon(_swallow, a)
            await anyio.sleep(0.1)
            a.line.cut()
            await anyio.sleep(EXPIRY + 0.1)
            got = []

            async def join() -> None:
                got.append(await c.join())

            tg.start_soon(join)
            await anyio.sleep(1)
            assert not got
            async with Node(store, params(2, 2)) as d:
                with fail_after(3):
                    info = await d.join()
                    await until(lambda: got)
                assert {n.incarnation for n in info.participants} == {c.inc, d.inc}
            tg.cancel_scope.cancel()


async def _swallow(node: Node) -> None:
    try:
        await node.join()
    except (RendezvousTimeoutError, RendezvousClosedError):
        pass


@VIRTUAL
async def test_a_restarted_node_waits_for_a_busy_member_and_forms_no_world_of_its_own() -> None:
    """R103: A is busy and polls nothing; B was killed and comes back."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2)) as b:
        await form(a, b)
        b.line.cut()
        async with Node(store, params(1, 2)) as again:
            with pytest.raises(RendezvousTimeoutError) as caught:
                await again.join()
            assert repr(a.handler.node) in str(caught.value), "whom it waits for is not named"
            state = await state_of(store)
            assert state is not None
            assert (state.round, state.live) == (0, (a.inc,))
        async with Node(store, params(1, 2)) as third, anyio.create_task_group() as tg:
            tg.start_soon(third.join)
            with fail_after(3):
                await until(lambda: _queued(store, third))
                info = await a.join()
            assert outcome([info])[0][2] == 2


@VIRTUAL
async def test_a_member_that_was_evicted_by_mistake_learns_it_and_joins_again() -> None:
    """D9: silent for longer than the expiry, then back; no silent orphan."""
    async with MemoryStore() as store, Node(store, params(1, 2, "127.0.0.2")) as a:
        async with Node(store, params(1, 2, "127.0.0.3")) as b:
            await form(a, b)
            changes = b.handler.changes()
            b.line.cut()
            with fail_after(2):
                await until(a.handler.num_nodes_waiting)
            alone = await a.join()
            assert alone.world_size == 1
            b.line.mend()
            with fail_after(3):
                await until(lambda: b.handler.counters.evictions == 1)
                assert await b.handler.num_nodes_waiting() >= 1
                while (await anext(changes)).kind != "evicted":
                    pass
                async with anyio.create_task_group() as tg:
                    tg.start_soon(b.join)
                    await until(a.handler.num_nodes_waiting)
                    info = await a.join()
            assert outcome([info]) == [(2, 0, 2)]


@VIRTUAL
async def test_a_member_whose_heartbeat_vanished_from_the_store_is_removed() -> None:
    """D44: nobody is counted without a proof of life."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2)) as b:
        await form(a, b)
        b.line.cut()
        await store.delete_key(KEYS.beat(b.inc))
        with fail_after(2):
            await until(a.handler.num_nodes_waiting)


@VIRTUAL
async def test_dead_waiters_and_spares_are_removed_from_the_store() -> None:
    """D44, D28."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as a, Node(store, params(1, 1)) as spare:
        await a.join()
        async with anyio.create_task_group() as tg:
            tg.start_soon(_swallow, spare)
            with fail_after(2):
                await until(lambda: _queued(store, spare))
            spare.line.cut()
            with fail_after(2):
                await until(lambda: _not_queued(store, spare))
            assert await a.handler.num_nodes_waiting() == 0
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_rank_0_dying_before_it_publishes_sends_the_others_into_the_next_round_at_once() -> None:
    """R8, D2: nobody waits for an address that will never come, and no old address is handed out."""
    settings = FAST | {"join_timeout": 60}
    async with MemoryStore() as store, Node(store, params(2, 3, "127.0.0.2", base=settings)) as a:
        async with Node(store, params(2, 3, "127.0.0.3", base=settings)) as b:
            async with Node(store, params(2, 3, "127.0.0.4", base=settings)) as c, anyio.create_task_group() as tg:

                async def dying(name: str, args: tuple) -> None:
                    if name == "compare_and_swap" and args[0].endswith("bootstrap"):
                        a.line.cut()
                        await anyio.sleep_forever()

                a.line.gate = dying
                tg.start_soon(_swallow, a)
                began = anyio.current_time()
                with fail_after(10):
                    infos = await form(b, c)
                assert anyio.current_time() - began < 3
                assert {(i.round, i.world_size) for i in infos} == {(1, 2)}
                assert {i.bootstrap_store_info.addr for i in infos} == {"127.0.0.3"}
                tg.cancel_scope.cancel()


# ---- the bootstrap address ----------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_node_that_becomes_rank_0_publishes_an_address_of_its_own() -> None:
    """D2, D3, R7, R8: round 0 was a's; after a has left, b publishes its own live port."""
    async with MemoryStore() as store, Node(store, params(1, 2, "127.0.0.2")) as a:
        async with Node(store, params(1, 2, "127.0.0.3")) as b:
            first = await form(a, b)
            assert {i.bootstrap_store_info.addr for i in first} == {"127.0.0.2"}
            await a.handler.leave()
            info = await b.join()
            assert outcome([info]) == [(1, 0, 1)]
            assert info.bootstrap_store_info is not None
            assert info.bootstrap_store_info.addr == "127.0.0.3"
            info.release_port()
            # The port is free to listen on for the worker, and can then be dialled.
            listener = await anyio.create_tcp_listener(
                local_host="127.0.0.3", local_port=info.bootstrap_store_info.port
            )
            await listener.aclose()


@VIRTUAL
async def test_rank_0_that_cannot_bind_its_address_leaves_with_an_error_and_the_others_form_again() -> None:
    """D17, D37: no info without an address, and no node that beats on in a round it cannot serve."""
    foreign = FAST | {"join_timeout": 30}
    async with MemoryStore() as store, Node(store, params(1, 2, "192.0.2.1", base=foreign)) as a:
        async with Node(store, params(1, 2, "192.0.2.2", base=foreign, bootstrap_port=4000)) as b:
            async with anyio.create_task_group() as tg:

                async def fail() -> None:
                    with pytest.raises(RendezvousConnectionError, match=r"192\.0\.2\.1.*local_addr"):
                        await a.join()

                tg.start_soon(fail)
                with fail_after(10):
                    info = await b.join()
            assert outcome([info]) == [(1, 0, 1)]
            state = await state_of(store)
            assert state is not None
            assert not state.listed(a.inc)


@VIRTUAL
async def test_an_address_that_only_its_own_host_can_reach_is_refused_among_others() -> None:
    """design.md 3: the error names local_addr."""
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.1", join_timeout=3)) as a:
        async with Node(store, params(2, 2, "192.0.2.2", join_timeout=3)) as b, anyio.create_task_group() as tg:
            tg.start_soon(_swallow, b)
            with fail_after(5), pytest.raises(RendezvousSettingsError, match="Set local_addr"):
                await a.join()
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_fixed_bootstrap_port_is_published_as_it_is() -> None:
    async with MemoryStore() as store, Node(store, params(1, 1, bootstrap_port=4321)) as node:
        info = await node.join()
    assert info.bootstrap_store_info is not None
    assert (info.bootstrap_store_info.addr, info.bootstrap_store_info.port) == ("127.0.0.1", 4321)


# ---- the round's store --------------------------------------------------------------------------------------------


@VIRTUAL
async def test_the_store_of_a_round_shows_nothing_of_earlier_rounds_or_other_runs() -> None:
    """D7, D27: same key, other round; and run ids that look like each other's prefixes."""
    async with MemoryStore() as store, Node(store, params(run_id="job")) as a:
        first = await a.join()
        await first.store.set("assigned_ranks/0", b"old")
        second = await a.join()
        assert not await second.store.check(["assigned_ranks/0"])
        assert await first.store.get("assigned_ranks/0") == b"old"
        assert await second.store.scan("") == []
        async with Node(store, params(run_id="job/1")) as b:
            other = await b.join()
            await second.store.set("2/x", b"mine")
            assert await other.store.scan("") == []


@VIRTUAL
async def test_a_member_waits_in_the_rounds_store_for_what_another_writes() -> None:
    """R53-like: wait, add, compare-and-set through ``info.store``."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        one, two = await form(a, b)
        await one.store.set("1", b"x")
        async with anyio.create_task_group() as tg:
            tg.start_soon(two.store.wait, ["1", "2"])
            await anyio.sleep(1)
            await one.store.set("2", b"y")
        assert await two.store.multi_get(["2", "1"]) == [b"y", b"x"]
        assert await one.store.add("n", 2) == 2
        assert await two.store.add("n", 2) == 4


# ---- leaving, closing ---------------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize("how", ["cancel", "interrupt", "leave", "exit"])
async def test_a_node_that_leaves_closes_nothing_and_the_other_goes_on(how: str) -> None:
    """D33, R1: cancellation, Ctrl-C in the body, ``leave()`` and the end of the block are not closing."""
    async with MemoryStore() as store, Node(store, params(1, 2, "127.0.0.3")) as a:
        b = Node(store, params(1, 2, "127.0.0.2"))
        joined = anyio.Event()

        async def other() -> None:
            try:
                async with b:
                    await b.join()
                    joined.set()
                    if how == "interrupt":
                        raise KeyboardInterrupt
                    if how == "leave":
                        await b.handler.leave()
                        assert await b.handler.num_nodes_waiting() == 0
                    if how == "cancel":
                        await anyio.sleep_forever()
            except KeyboardInterrupt:
                pass

        async with anyio.create_task_group() as tg:
            tg.start_soon(other)
            tg.start_soon(_until_told, a)
            with fail_after(5):
                await joined.wait()
                await anyio.sleep(0.05)
            tg.cancel_scope.cancel()
        assert not await a.handler.is_closed()
        with fail_after(2):
            info = await a.join()
        assert (info.rank, info.world_size) == (0, 1)
        state = await state_of(store)
        assert state is not None
        assert not state.listed(b.inc)


async def _until_told(node: Node) -> None:
    await node.join()
    await anyio.sleep_forever()


@VIRTUAL
async def test_leaving_takes_effect_within_a_bounded_second_on_a_store_that_hangs() -> None:
    """design.md 3."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as node:
        await node.join()
        node.line.cut()
        began = anyio.current_time()
        await node.handler.leave()
        assert anyio.current_time() - began <= 1.3


@VIRTUAL
async def test_after_a_worker_failed_a_survivor_and_a_newcomer_form_the_next_round() -> None:
    """R2."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a:
        async with Node(store, params(1, 2)) as b:
            await form(a, b)
        async with Node(store, params(1, 2)) as c:
            with fail_after(5):
                infos = await form(a, c)
        assert {(i.round, i.world_size) for i in infos} == {(1, 2)}


@VIRTUAL
async def test_every_member_reports_the_same_round_and_failure_count() -> None:
    """R10: node 1 fails twice, node 2 once."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        nodes = [Node(store, params(3, 3, f"127.0.0.{n + 2}")) for n in range(3)]
        seen: dict[int, list[tuple[int, int]]] = {n: [] for n in range(3)}
        fail = {n: anyio.Event() for n in range(3)}

        async def agent(n: int) -> None:
            async with nodes[n] as node:
                while True:
                    info = await node.join()
                    seen[n].append((info.round, info.failures))
                    while not await node.handler.num_nodes_waiting() and not fail[n].is_set():
                        await anyio.sleep(0.01)
                    if fail[n].is_set():
                        fail[n] = anyio.Event()
                        node.handler.fail("a worker exited with 1")

        for n in range(3):
            tg.start_soon(agent, n)
        for number, failing in enumerate((1, 1, 2), start=1):
            with fail_after(5):
                await until(lambda number=number: all(len(s) == number for s in seen.values()))
            fail[failing].set()
        with fail_after(5):
            await until(lambda: all(len(s) == 4 for s in seen.values()))
        assert all(s == [(0, 0), (1, 1), (2, 2), (3, 3)] for s in seen.values())
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_membership_change_costs_no_failure() -> None:
    async with MemoryStore() as store, Node(store, params(1, 2)) as a:
        await a.join()
        async with Node(store, params(1, 2)) as b, anyio.create_task_group() as tg:
            tg.start_soon(b.join)
            with fail_after(3):
                await until(a.handler.num_nodes_waiting)
                info = await a.join()
        assert (info.round, info.failures) == (1, 0)


@VIRTUAL
async def test_a_closed_run_id_refuses_at_once_and_is_named_and_a_fresh_one_works() -> None:
    """R27, D52."""
    async with MemoryStore() as store:
        async with Node(store, params(1, 1)) as node:
            await node.join()
            assert await node.handler.shutdown()
            assert await node.handler.shutdown()
            await node.handler.set_closed()
            assert await node.handler.is_closed()
        async with Node(store, params(1, 1)) as late:
            began = anyio.current_time()
            with pytest.raises(RendezvousClosedError, match="'run'.*fresh run id"):
                await late.join()
            assert anyio.current_time() - began < 1
        async with Node(store, params(1, 1, run_id="fresh")) as node:
            assert (await node.join()).world_size == 1


def test_an_empty_run_id_is_refused() -> None:
    """R27, D27."""
    with pytest.raises(ValueError, match="run id"):
        params(run_id="")


@VIRTUAL
async def test_closing_before_anybody_joined_closes() -> None:
    async with MemoryStore() as store, Node(store, params(1, 1)) as node:
        await node.handler.set_closed()
        assert await node.handler.is_closed()
        with pytest.raises(RendezvousClosedError):
            await node.join()


@VIRTUAL
async def test_a_close_that_keeps_losing_its_swap_is_carried_out_by_a_folder() -> None:
    """protocol.md P13: closing is announced after two lost swaps."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2)) as closer:
        await a.join()

        async def lose(name: str, args: tuple) -> None:
            if name == "compare_and_swap" and args[0] == KEYS.state:
                raw = await store.peek(KEYS.state)
                assert raw is not None
                header = int.from_bytes(raw[8:16], "big") + 1
                await store.set(KEYS.state, raw[:8] + header.to_bytes(8, "big") + raw[16:])

        closer.line.gate = lose
        with fail_after(3):
            await closer.handler.set_closed()
            assert await a.handler.is_closed()


@VIRTUAL
async def test_waiting_nodes_are_told_of_a_close() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        async with anyio.create_task_group() as tg:

            async def join() -> None:
                with pytest.raises(RendezvousClosedError):
                    await a.join()

            tg.start_soon(join)
            await anyio.sleep(0.1)
            await b.handler.set_closed()


# ---- readers ------------------------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize("offset", [30.0, -30.0, 1e6])
async def test_an_observer_with_a_wrong_clock_changes_nothing(offset: float) -> None:
    """D5: it reads again and again; not one write, and the round goes on."""
    async with MemoryStore() as store, Node(store, params(3, 3)) as a, Node(store, params(3, 3)) as b:
        async with Node(store, params(3, 3)) as c, Node(store, params(3, 3), Skewed(offset, 2.0)) as observer:
            await form(a, b, c)
            await anyio.sleep(1)
            before = await store.peek(KEYS.state)
            for _ in range(20):
                assert not await observer.handler.is_closed()
                assert await observer.handler.num_nodes_waiting() == 0
                await observer.handler.status()
                await anyio.sleep(0.1)
            assert observer.line.written() == []
            assert await store.peek(KEYS.state) == before


@VIRTUAL
@pytest.mark.parametrize(("offset", "rate"), [(60, 1.0), (-60, 1.0), (27, 1.0), (3600, 1.0), (0, 1.3), (5, 0.8)])
async def test_nodes_whose_clocks_differ_form_one_world_and_stay_in_it(offset: float, rate: float) -> None:
    """D6, R91, R92: offsets are never seen; unequal pace neither, within the keep-alive's margin."""
    async with MemoryStore() as store, Node(store, params(1, 3)) as a:
        async with Node(store, params(1, 3), Skewed(offset, rate)) as b:
            began = anyio.current_time()
            with fail_after(5):
                infos = await form(a, b)
            waited = anyio.current_time() - began
            assert 0.2 / max(rate, 1) <= waited < 0.2 / min(rate, 1) + 0.3  # the last call keeps its length
            assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]
            await anyio.sleep(10)
            assert await a.handler.num_nodes_waiting() == await b.handler.num_nodes_waiting() == 0
            b.line.cut()
            with fail_after(1):
                await until(a.handler.num_nodes_waiting)


@VIRTUAL
@pytest.mark.parametrize("jump", [-60.0, 60.0])
async def test_a_clock_that_is_set_back_or_forward_costs_no_seat(jump: float) -> None:
    """D6: the own clock steps by a minute; heartbeats go on and nobody is evicted."""
    clock = Skewed()
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2), clock) as b:
        await form(a, b)
        await anyio.sleep(1)
        # What a monotonic clock never does, a wall clock does all the time: it must not be consulted.
        began = anyio.current_time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time", lambda: jump)
            await anyio.sleep(3)
        assert anyio.current_time() - began >= 3
        assert await a.handler.num_nodes_waiting() == await b.handler.num_nodes_waiting() == 0


@VIRTUAL
async def test_a_reader_is_bounded_on_a_store_that_hangs_and_right_again_afterwards() -> None:
    """D29, R25: the documented error within the heartbeat time-out, the next call tells the truth."""
    settings = params(1, 2, heartbeat_timeout=1)
    async with MemoryStore() as store, Node(store, settings) as a, Node(store, settings) as b:
        await a.join()
        a.line.cut()
        for read in (a.handler.num_nodes_waiting, a.handler.is_closed, a.handler.status):
            began = anyio.current_time()
            with pytest.raises(RendezvousConnectionError, match="'run'.*1 s"):
                await read()
            assert anyio.current_time() - began < 1.1
        began = anyio.current_time()
        with pytest.raises(RendezvousTimeoutError, match="may or may not be closed"):
            await a.handler.set_closed()
        assert anyio.current_time() - began < 1.1
        assert not await a.handler.shutdown()
        a.line.mend()
        assert not await b.handler.is_closed()
        with fail_after(3):
            info = await a.join()
            assert not await a.handler.is_closed()
            assert await a.handler.num_nodes_waiting() == 0
        assert info.world_size == 1


@VIRTUAL
async def test_a_reader_that_waits_for_a_slow_store_costs_no_heartbeat() -> None:
    """D30: reads hold nothing that beating needs."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        await form(a, b)
        reads = 0

        async def slow(name: str, args: tuple) -> None:
            nonlocal reads
            if name == "peek" and args[0] == KEYS.state:
                reads += 1
                await anyio.sleep(2)

        b.line.gate = slow
        assert await b.handler.num_nodes_waiting() == 0
        assert reads
        assert await a.handler.num_nodes_waiting() == 0


@VIRTUAL
async def test_a_close_that_failed_closes_nothing_later() -> None:
    """D12: local changes are dropped with the failure; readers push nothing."""
    async with MemoryStore() as store, Node(store, params(1, 1)) as a:
        await a.join()

        async def refuse(name: str, args: tuple) -> None:
            if name == "compare_and_swap":
                await anyio.sleep_forever()

        a.line.gate = refuse
        with pytest.raises(RendezvousTimeoutError):
            await a.handler.set_closed()
        a.line.gate = None
        assert await a.handler.num_nodes_waiting() == 0
        assert not await a.handler.is_closed()
        await anyio.sleep(2)
        assert not await a.handler.is_closed()


# ---- messages -----------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_join_that_ends_below_the_minimum_says_who_is_there_and_what_is_missing() -> None:
    """D52, R49: run id, endpoint, counts, elapsed time; the error survives pickling."""
    async with MemoryStore() as store, Node(store, params(2, 2, join_timeout=3)) as node:
        began = anyio.current_time()
        with pytest.raises(RendezvousExhaustedError) as caught:
            await node.join()
        assert 3 <= anyio.current_time() - began < 4
        text = str(caught.value)
        for part in ("'run'", "memory", "1/2 nodes", "min 2", "at least 1 more", "waited 3.0 s", "127.0.0.1_"):
            assert part in text
        assert caught.value.config.min_nodes == 2
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == text
        state = await state_of(store)
        assert state is not None
        assert not state.listed(node.inc)


@VIRTUAL
async def test_a_lonely_node_whose_endpoint_is_loopback_is_told_so() -> None:
    """R49: two machines that both say localhost never meet; the message says why."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(2, 2, join_timeout=1)) as node:
            with pytest.raises(RendezvousExhaustedError, match="1/2 nodes.*loopback"):
                await node.join()


@VIRTUAL
async def test_a_join_that_times_out_behind_a_busy_round_names_its_members() -> None:
    """D52."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2, join_timeout=2)) as b:
        await a.join()
        with pytest.raises(
            RendezvousTimeoutError, match="2 s ended.*'run'.*waiting until its members re-join"
        ) as caught:
            await b.join()
        assert repr(a.handler.node) in str(caught.value)
        assert not isinstance(caught.value, RendezvousExhaustedError)


# ---- use ----------------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_second_join_at_the_same_time_is_refused_and_disturbs_nothing() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        async with anyio.create_task_group() as tg:
            tg.start_soon(a.join)
            await anyio.sleep(0.05)
            with pytest.raises(RendezvousUsageError, match="already joining"):
                await a.join()
            with fail_after(5):
                info = await b.join()
        assert info.world_size == 2


@VIRTUAL
async def test_a_handler_is_used_inside_its_block_and_entered_once() -> None:
    async with MemoryStore() as store:
        node = Node(store, params())
        for use in (
            node.handler.next_rendezvous,
            node.handler.is_closed,
            node.handler.set_closed,
            node.handler.num_nodes_waiting,
            node.handler.leave,
            node.handler.status,
        ):
            with pytest.raises(RendezvousUsageError, match="async with"):
                await use()
        assert node.handler.get_run_id() == "run"
        assert node.handler.get_backend() == "p10d"
        assert node.handler.use_agent_store is False
        assert node.handler.settings.max_nodes == 1
        async with node:
            await node.join()
        with pytest.raises(RendezvousUsageError, match="async with"):
            await node.join()
        with pytest.raises(RendezvousUsageError, match="entered once"):
            await node.__aenter__()


@VIRTUAL
async def test_the_users_own_exception_leaves_the_block_as_it_is() -> None:
    async with MemoryStore() as store:
        mine = LookupError("mine")
        with pytest.raises(LookupError) as caught:
            async with Node(store, params()) as node:
                await node.join()
                raise mine
        assert caught.value is mine
        group = ExceptionGroup("mine too", [ValueError("a"), KeyError("b")])
        with pytest.raises(ExceptionGroup) as grouped:
            async with Node(store, params()) as node:
                await node.join()
                raise group
        assert grouped.value is group


@VIRTUAL
async def test_a_broken_store_ends_the_block_with_its_own_error_and_not_a_group() -> None:
    """A bug in a third-party store is no rendezvous error; it must not hide in a group."""
    async with MemoryStore() as store:

        async def broken(name: str, args: tuple) -> None:
            if name == "watch":
                raise ZeroDivisionError("a bug in the store")

        with fail_after(5), pytest.raises(ZeroDivisionError):
            async with Node(store, params()) as node:
                node.line.gate = broken
                await node.join()
                await anyio.sleep_forever()


@VIRTUAL
async def test_the_users_own_exception_wins_over_a_broken_store() -> None:
    async with MemoryStore() as store:

        async def broken(name: str, args: tuple) -> None:
            if name == "watch":
                raise ZeroDivisionError("a bug in the store")

        with fail_after(5), pytest.raises(LookupError):
            async with Node(store, params()) as node:
                await node.join()
                node.line.gate = broken
                try:
                    await store.set(KEYS.state, b"")
                    await anyio.sleep_forever()
                finally:
                    raise LookupError("mine")


async def test_a_handler_leaves_no_task_behind() -> None:
    """D49, D51."""
    async with MemoryStore() as store:
        for body in ("joined", "unused", "cancelled"):
            before = len(anyio.get_running_tasks())
            async with Node(store, params(base=CALM)) as node:
                if body == "joined":
                    await node.join()
                elif body == "cancelled":
                    with anyio.move_on_after(0):
                        await node.join()
            assert len(anyio.get_running_tasks()) == before
            assert store.waiting == 0
            assert await store.scan(KEYS.beats) == []


@VIRTUAL
async def test_a_store_that_was_stopped_is_a_connection_error_that_names_it() -> None:
    """R112, D47: not "not closed", not a raw socket error, and the block still ends cleanly."""
    async with TCPStoreServer() as server:
        client = TCPStore(server.host, server.port, connect_timeout=1)
        async with client, Node(client, params(1, 1, heartbeat_timeout=2)) as node:
            await node.join()
            where = f"{server.host}:{server.port}"
            await server.aclose()
            with fail_after(10):
                for read in (node.handler.is_closed, node.handler.num_nodes_waiting, node.handler.status):
                    with pytest.raises(RendezvousConnectionError, match=where):
                        await read()
                with pytest.raises(RendezvousConnectionError, match=where):
                    await node.join()
                assert not await node.handler.shutdown()


# ---- load and cadence ---------------------------------------------------------------------------------------------


@VIRTUAL
async def test_many_joiners_write_the_state_in_batches() -> None:
    """D38, R88: swaps do not grow with the square of the nodes; announcements are one per node."""
    size = 48
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        nodes = [Node(store, params(size, size, base=CALM)) for _ in range(size)]
        done, over = 0, anyio.Event()

        async def agent(node: Node) -> None:
            nonlocal done
            async with node:
                await node.join()
                done += 1
                await over.wait()

        for node in nodes:
            tg.start_soon(agent, node)
        with fail_after(60):
            await until(lambda: done == size)
        counters = [node.handler.counters for node in nodes]
        over.set()
    assert sum(c.swaps for c in counters) <= 2 * size
    assert sum(c.announcements for c in counters) <= 2 * size


@VIRTUAL
async def test_idle_nodes_with_few_attempts_do_not_evict_each_other() -> None:
    """D36: beating starts with the join, at its own pace; also through a long last call."""
    settings = params(2, 3, keep_alive_interval=1, keep_alive_max_attempt=2, last_call_timeout=20, join_timeout=60)
    async with MemoryStore() as store, Node(store, settings) as a, Node(store, settings) as b:
        infos = await form(a, b)
        assert {i.world_size for i in infos} == {2}
        await anyio.sleep(30)
        assert await a.handler.num_nodes_waiting() == await b.handler.num_nodes_waiting() == 0
        assert a.handler.counters.evictions == b.handler.counters.evictions == 0


@VIRTUAL
async def test_the_last_leaver_dying_between_two_rounds_stops_nobody() -> None:
    """R19: a has re-joined, b is the last of the old round and is killed; the new one opens all the same."""
    async with MemoryStore() as store, Node(store, params(1, 2)) as a, Node(store, params(1, 2)) as b:
        await form(a, b)
        async with anyio.create_task_group() as tg:
            got = []

            async def join() -> None:
                got.append(await a.join())

            tg.start_soon(join)
            await anyio.sleep(0.1)
            b.line.cut()
            with fail_after(3):
                await until(lambda: got)
        assert outcome(got) == [(1, 0, 1)]


def _blocked_agent(backend: tuple, endpoint: tuple, worlds: list) -> None:
    """A node on an event loop of its own in another thread; in its first world of two it blocks that loop for 2 s."""

    async def agent() -> None:
        blocked = False
        async with TCPStore(*endpoint) as store, Node(store, _blocked_settings("127.0.0.3")) as node:
            async for world in node.handler.rounds():
                async with world:
                    worlds.append((world.round, world.world_size))
                    if world.world_size == 2 and blocked:
                        world.finish()
                    elif world.world_size == 2:
                        time.sleep(2)  # what a careless host program does
                        blocked = True
                        await anyio.sleep_forever()
                    else:
                        await anyio.sleep_forever()

    anyio.run(agent, backend=backend[0], backend_options=backend[1])


def _blocked_settings(addr: str) -> RendezvousParameters:
    return params(1, 2, addr, keep_alive_interval=0.3, last_call_timeout=0.5, join_timeout=60)


async def test_a_node_whose_event_loop_was_blocked_joins_again_and_is_no_orphan(anyio_backend: tuple) -> None:
    """R94, D9: 2 s in ``time.sleep`` with an expiry of 0.9 s; evicted, told, back."""
    async with TCPStoreServer() as server, anyio.create_task_group() as tg:
        theirs: list = []
        mine: list = []
        endpoint = (server.host, server.port)
        tg.start_soon(anyio.to_thread.run_sync, lambda: _blocked_agent(anyio_backend, endpoint, theirs))
        async with TCPStore(*endpoint) as store, Node(store, _blocked_settings("127.0.0.2")) as node:
            with fail_after(40):
                async for world in node.handler.rounds():
                    async with world:
                        mine.append((world.round, world.world_size))
                        if sum(size == 2 for _, size in mine) == 2:
                            world.finish()
                        else:
                            await anyio.sleep_forever()
    assert mine[-1] == theirs[-1]
    assert mine[-1][1] == 2
    lone = [number for number, size in mine if size == 1]
    assert any(number < mine[-1][0] for number in lone), "nobody noticed that the other was silent"


# ---- leaving while joining ----------------------------------------------------------------------------------------


@VIRTUAL
@pytest.mark.parametrize("phase", ["waiting", "bootstrap"])
async def test_a_join_ends_with_an_error_when_its_node_leaves_meanwhile(phase: str) -> None:
    """Another task calls ``leave()``: the join does not hang, and does not join again behind its back."""
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as b, anyio.create_task_group() as tg:
            ended = []

            async def never(name: str, args: tuple) -> None:
                if name == "compare_and_swap" and args[0].endswith("bootstrap"):
                    await anyio.sleep_forever()

            a.line.gate = never

            async def join() -> None:
                with pytest.raises(RendezvousError, match="left") as caught:
                    await b.join()
                assert not isinstance(caught.value, RendezvousClosedError)  # nothing is closed
                ended.append(True)

            tg.start_soon(join)
            if phase == "bootstrap":
                tg.start_soon(_swallow, a)
            await anyio.sleep(0.5)
            await b.handler.leave()
            with fail_after(2):
                await until(lambda: ended)
            await anyio.sleep(1)
            state = await state_of(store)
            assert state is not None
            assert not state.listed(b.inc)
            tg.cancel_scope.cancel()


@VIRTUAL
@pytest.mark.parametrize("phase", ["waiting", "bootstrap"])
async def test_a_join_in_another_task_ends_when_the_handlers_block_does(phase: str) -> None:
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a, anyio.create_task_group() as tg:
        ended = []

        async def never(name: str, args: tuple) -> None:
            if name == "compare_and_swap" and args[0].endswith("bootstrap"):
                await anyio.sleep_forever()

        a.line.gate = never

        async def join(node: Node) -> None:
            with pytest.raises(RendezvousError):
                await node.join()
            ended.append(True)

        if phase == "bootstrap":
            tg.start_soon(_swallow, a)
        async with Node(store, params(2, 2, "127.0.0.3")) as b:
            tg.start_soon(join, b)
            await anyio.sleep(0.5)
        with fail_after(2):
            await until(lambda: ended)
        tg.cancel_scope.cancel()
