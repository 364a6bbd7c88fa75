"""Ending a run from outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousStateError
from arendezvous.handler.inspect import inspect
from arendezvous.handler.keys import Keys
from arendezvous.handler.purge import Remains, close, purge, remains
from arendezvous.params import RendezvousParameters
from arendezvous.store.client import TCPStore
from arendezvous.store.file import FileStore
from arendezvous.store.server import TCPStoreServer
from tests.handler.kit import CALM, KEYS, Line, Node, form, params, state_of, until
from tests.support import VIRTUAL, fail_after


def parameters(endpoint: str, run_id: str = "run", **options: Any) -> RendezvousParameters:
    return RendezvousParameters("p10d", endpoint, run_id, **options)


async def names(store: Any) -> list[str]:
    return [key for key, _ in await store.scan("")]


# ---- closing -------------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_closing_is_the_same_step_as_that_of_a_member() -> None:
    """P13: only ``closed`` and the nonce differ, and who waits is told."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(2, 2, join_timeout=60)) as node, anyio.create_task_group() as tg:

            async def join() -> None:
                with pytest.raises(RendezvousClosedError):
                    await node.join()

            tg.start_soon(join)
            with fail_after(10):
                await until(lambda: state_of(store))
            before = await state_of(store)
            assert await close(parameters(server.endpoint)) == "no"
            after = await state_of(store)
            assert before is not None
            assert after is not None
            assert after.closed.value == "closed"
            assert (before.epoch, before.round, before.participants) == (after.epoch, after.round, after.participants)
            assert before.nonce != after.nonce
        assert await close(parameters(server.endpoint)) == "closed"


@VIRTUAL
async def test_a_run_that_nobody_knows_is_not_closed() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        assert await close(parameters(server.endpoint)) is None
        assert await store.num_keys() == 0


@VIRTUAL
async def test_a_damaged_state_is_neither_closed_nor_touched() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        await store.set(KEYS.state, b"x" * 99)
        with pytest.raises(RendezvousStateError):
            await close(parameters(server.endpoint))
        assert await store.scan("") == [(KEYS.state, b"x" * 99)]


async def test_nothing_is_hosted_and_no_file_is_made(tmp_path: Path) -> None:
    for there in (
        parameters("127.0.0.1:1", read_timeout=0.3),
        parameters(str(tmp_path / "store"), store_type="file"),
    ):
        for call in (close, purge, remains):
            with fail_after(20), pytest.raises(RendezvousConnectionError):
                await call(there)
    assert list(tmp_path.iterdir()) == []


# ---- purging -------------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_run_is_purged_once_it_is_closed_and_all_have_gone() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        there = parameters(server.endpoint)
        async with Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
            await form(a, b)
            before = await names(store)
            live = await purge(there, force=True)
            assert live.removed == 0
            assert live.obstacle is not None
            for node in (a, b):
                assert repr(node.handler.node) in live.obstacle
            assert "close it first" in live.obstacle
            assert set(before) <= set(await names(store))
            await close(there)
            with fail_after(10):
                await until(lambda: _nobody(there))  # members of a closed run beat no longer
            found = await remains(there)
            assert set(found.unfinished) == {repr(node.handler.node) for node in (a, b)}
        await store.set("other", b"stays")
        count = len(await names(store)) - 1
        done = await purge(there)
        assert (done.removed, done.obstacle, done.was_reset) == (count, None, False)
        assert await names(store) == ["other"]
        assert (await purge(there)).removed == 0
        assert (await inspect(there)).round is None


@VIRTUAL
async def test_a_run_that_nobody_closed_and_nobody_attends_needs_force() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        there = parameters(server.endpoint)
        async with TCPStore(server.host, server.port) as line:
            async with Node(line, params(base=CALM)) as node:
                await node.join()
                state = await store.get(KEYS.state)
        await store.set(KEYS.state, state)  # as if it had died: nobody has withdrawn
        assert "--force" in str((await purge(there)).obstacle)
        assert (await purge(there, force=True)).removed > 0
        assert await names(store) == []


@VIRTUAL
@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ("run", ["run1", "ru", "run/", "run/state", "run%2F", "RUN", "run "]),
        ("a/b", ["a", "a/b/c", "a%2Fb", "a/"]),
        ("..", [".", "...", "../.."]),
        ("%", ["%25", "%2", "é"]),
        ("é", ["e", "é́", "%C3%A9"]),
    ],
)
async def test_keys_of_other_runs_stay(mine: str, others: list[str]) -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        for run_id in [mine, *others]:
            async with Node(store, params(run_id=run_id)) as node:
                await node.join()
            await store.set(Keys(run_id).prefix + "r/0.ab/user", b"1")
            await close(parameters(server.endpoint, run_id))
        before = await store.scan("")
        assert (await purge(parameters(server.endpoint, mine))).removed > 1
        prefix = Keys(mine).prefix
        assert await store.scan("") == [pair for pair in before if not pair[0].startswith(prefix)]
        for run_id in others:
            assert (await inspect(parameters(server.endpoint, run_id))).closed == "closed"


@VIRTUAL
async def test_a_damaged_state_is_thrown_away_and_with_nobody_there_all_the_rest() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        await store.multi_set([KEYS.state, KEYS.bell, "else"], [b"rubbish" * 9, b"3", b"1"])
        found = await remains(parameters(server.endpoint))
        assert found.damage is not None
        assert len(found.keys) == 2
        done = await purge(parameters(server.endpoint))
        assert (done.removed, done.was_reset) == (2, True)
        assert await names(store) == ["else"]


@VIRTUAL
async def test_over_a_damaged_state_attached_nodes_go_on_in_a_new_round() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        settings = params(2, 2, join_timeout=30)
        async with Node(store, settings) as a, Node(store, settings) as b:
            await form(a, b)
            await store.set(KEYS.state, b"rubbish" * 9)
            await anyio.sleep(1)
            done = await purge(parameters(server.endpoint))
            assert (done.removed, done.was_reset, len(done.attached)) == (0, True, 2)
            with fail_after(10):
                infos = await form(a, b)
        assert [(i.round, i.world_size) for i in infos] == [(1, 2), (1, 2)]


@VIRTUAL
async def test_somebody_who_joins_between_the_look_and_the_removal_is_not_purged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state goes by a swap: a join has changed it, so there is another look, and that one finds who joined."""
    from contextlib import asynccontextmanager

    from arendezvous.handler import purge as module

    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(base=CALM)) as first:
            await first.join()
            state = await store.get(KEYS.state)
        await store.set(KEYS.state, state)  # as if it had died
        line = Line(store)
        async with Node(store, params(base=CALM)) as late:

            async def gate(name: str, args: tuple[Any, ...]) -> None:
                if name == "compare_and_swap":
                    line.gate = None
                    async with anyio.create_task_group() as tg:
                        tg.start_soon(join)
                        await until(lambda: _changed(store, state))

            async def join() -> None:
                await late.join()

            line.gate = gate

            @asynccontextmanager
            async def as_client(_: RendezvousParameters) -> Any:
                yield line

            monkeypatch.setattr(module, "as_client", as_client)
            with fail_after(60):
                done = await purge(parameters(server.endpoint), force=True)
            assert done.removed == 0
            assert repr(late.handler.node) in str(done.obstacle)


async def _changed(store: TCPStore, state: bytes) -> bool:
    return await store.peek(KEYS.state) != state


async def test_a_run_in_a_file_is_closed_and_purged(tmp_path: Path) -> None:
    there = parameters(str(tmp_path / "store"), store_type="file")
    async with FileStore(tmp_path / "store") as store:
        async with Node(store, params(base=CALM)) as node:
            await node.join()
            assert (await purge(there)).obstacle is not None
            assert await close(there) == "no"
        assert (await purge(there)).removed > 0
        assert await store.num_keys() == 0


async def _nobody(there: RendezvousParameters) -> bool:
    return not (await remains(there)).attached


@VIRTUAL
async def test_a_closed_run_stays_while_somebody_has_not_noticed() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        there = parameters(server.endpoint)
        async with Node(store, params()) as node:
            await node.join()
            await close(there)
            inc, name = node.inc, repr(node.handler.node)
        async with store.lease(60) as lease:
            await lease.set(KEYS.beat(inc), b"1")
            done = await purge(there, force=True)
            assert done.removed == 0
            assert f"it is closed, but still has 1 live node: {name}; wait" in str(done.obstacle)
        assert (await purge(there)).obstacle is None


def test_the_obstacle_names_eight_nodes_and_counts_the_rest() -> None:
    text = Remains(("k",), "no", None, tuple(f"n{k}" for k in range(10))).obstacle()
    assert text is not None
    assert "10 live nodes: n0, n1, n2, n3, n4, n5, n6, n7 and 2 more" in text


@VIRTUAL
async def test_a_strange_key_among_the_heartbeats_is_named_and_stops_nothing() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with store.lease(60) as lease:
            await lease.set(KEYS.beats + "no hex", b"")
            await lease.set(KEYS.beat(os.urandom(16)), b"")
            found = await remains(parameters(server.endpoint))
        assert "incarnation 'no hex'" in found.attached
        assert len(found.attached) == 2
