"""Looking at a run from outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousStateError
from arendezvous.handler import create
from arendezvous.handler.create import create_handler
from arendezvous.handler.inspect import inspect, reset
from arendezvous.handler.keys import Keys
from arendezvous.params import RendezvousParameters
from arendezvous.store.client import TCPStore
from arendezvous.store.file import FileStore
from arendezvous.store.server import TCPStoreServer
from tests.handler.kit import CALM, HEADER, KEYS, Node, form, params, until
from tests.support import VIRTUAL, fail_after


def parameters(endpoint: str, **options: Any) -> RendezvousParameters:
    return RendezvousParameters("p10d", endpoint, "run", **options)


async def test_a_run_is_described_by_somebody_who_only_reads() -> None:
    """D5: nothing in the store changes, nothing is hosted or joined."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        nobody = await inspect(parameters(server.endpoint))
        assert (nobody.round, nobody.nodes) == (None, ())
        assert "nobody has joined" in nobody.explain()
        assert await store.num_keys() == 0
        settings = params(2, 3, base=CALM | {"last_call_timeout": 0.2})
        async with Node(store, settings) as a, Node(store, settings) as b:
            async with anyio.create_task_group() as tg:
                tg.start_soon(a.join)
                with fail_after(10):
                    await until(lambda: _joining(server.endpoint, 1))
                forming = await inspect(parameters(server.endpoint))
                assert "1/3 nodes joined round 0 (min 2, max 3)" in forming.explain()
                await b.join()
            ids = sorted([a.handler.node.local_id, b.handler.node.local_id])
            before = [pair for pair in await store.scan("") if "/hb/" not in pair[0]]
            for _ in range(3):
                status = await inspect(parameters(server.endpoint))
            assert [pair for pair in await store.scan("") if "/hb/" not in pair[0]] == before
    assert status.explain() == f"rendezvous 'run' at {server.endpoint}: round 0 is complete with 2 nodes"
    assert (status.round, status.complete, status.min_nodes, status.max_nodes, status.closed) == (0, True, 2, 3, "no")
    assert sorted(n.node.local_id for n in status.nodes) == ids
    assert all(n.heartbeat_age is not None and n.attached for n in status.nodes)


async def _joining(endpoint: str, count: int) -> bool:
    return len((await inspect(parameters(endpoint))).nodes) == count


@VIRTUAL
async def test_a_closed_run_is_described_as_closed() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store, Node(store, params()) as node:
        await node.handler.set_closed()
        status = await inspect(parameters(server.endpoint))
    assert status.closed == "closed"
    assert "closed" in status.explain()


async def test_inspecting_never_hosts() -> None:
    """api.md A.1: an endpoint of this machine at which nobody serves is an error that names it."""
    with fail_after(20), pytest.raises(RendezvousConnectionError, match="127.0.0.1:1"):
        await inspect(parameters("127.0.0.1:1", read_timeout=0.3))


async def test_inspecting_a_file_creates_none(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with fail_after(20), pytest.raises(RendezvousConnectionError, match=str(path)):
        await inspect(parameters(str(path), store_type="file"))
    assert list(tmp_path.iterdir()) == []


async def test_a_run_in_a_file_is_described(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with FileStore(path) as store, Node(store, params(base=CALM)) as node:
        await node.join()
        status = await inspect(parameters(str(path), store_type="file"))
        assert len(status.nodes) == 1
        assert status.nodes[0].attached


async def test_a_run_in_memory_is_described_if_this_process_has_it() -> None:
    endpoint = f"here{os.urandom(8).hex()}"
    memory = RendezvousParameters("memory", endpoint, "run", local_addr="127.0.0.1", **CALM)
    with pytest.raises(RendezvousConnectionError, match=endpoint):
        await inspect(memory)
    async with create_handler(memory) as handler:
        await handler.next_rendezvous()
        assert len((await inspect(memory)).nodes) == 1
    create.memory_stores.pop(endpoint)


@pytest.mark.parametrize("endpoint", ["host:99999", "http://x:1", "a:b:80"])
async def test_a_malformed_endpoint_is_a_value_error(endpoint: str) -> None:
    with pytest.raises(ValueError):
        await inspect(parameters(endpoint))


# ---- corrupt state ------------------------------------------------------------------------------------------------

CORRUPT = [b"\x80\x04\x95pickle", b"x" * HEADER, b"y" * HEADER + b"\x80\x04cposix\nsystem\n", b"\xff" * 500]


@VIRTUAL
@pytest.mark.parametrize("garbage", CORRUPT, ids=range(len(CORRUPT)))
async def test_readers_raise_over_a_damaged_state_and_run_nothing(garbage: bytes) -> None:
    """D39, R128, D1: data is data; a first join is told at once."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store, Node(store, params()) as node:
        await store.set(KEYS.state, garbage)
        for read in (node.handler.is_closed, node.handler.num_nodes_waiting, node.handler.status, node.join):
            with fail_after(5), pytest.raises(RendezvousStateError):
                await read()
        with pytest.raises(RendezvousStateError):
            await inspect(parameters(server.endpoint))
        with pytest.raises(RendezvousStateError):
            await node.handler.set_closed()
        assert await store.get(KEYS.state) == garbage


@VIRTUAL
@pytest.mark.parametrize("garbage", CORRUPT, ids=range(len(CORRUPT)))
async def test_a_waiting_node_waits_through_the_damage_and_a_repaired_key_heals_it(garbage: bytes) -> None:
    """D39."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        settings = params(2, 2, join_timeout=30)
        async with Node(store, settings) as a, Node(store, settings) as b, anyio.create_task_group() as tg:
            got = []

            async def join(node: Node) -> None:
                got.append(await node.join())

            tg.start_soon(join, a)
            await anyio.sleep(0.5)
            good = await store.get(KEYS.state)
            await store.set(KEYS.state, garbage)
            await anyio.sleep(5)
            assert not got
            await store.set(KEYS.state, good)
            tg.start_soon(join, b)
            with fail_after(5):
                await until(lambda: len(got) == 2)
        assert {i.world_size for i in got} == {2}


@VIRTUAL
@pytest.mark.parametrize("garbage", CORRUPT, ids=range(len(CORRUPT)))
async def test_a_reset_throws_a_damaged_state_away_and_waiting_nodes_go_on(garbage: bytes) -> None:
    """D39: under a round number that is higher than any before."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        settings = params(2, 2, join_timeout=30)
        async with Node(store, settings) as a, Node(store, settings) as b:
            await form(a, b)
            await store.set(KEYS.state, garbage)
            await anyio.sleep(1)
            assert await reset(parameters(server.endpoint))
            assert not await reset(parameters(server.endpoint))
            with fail_after(10):
                infos = await form(a, b)
    assert [(i.round, i.world_size) for i in infos] == [(1, 2), (1, 2)]


@VIRTUAL
@pytest.mark.parametrize("garbage", CORRUPT, ids=range(len(CORRUPT)))
async def test_a_member_keeps_its_round_over_a_damaged_state_and_its_readers_say_so(garbage: bytes) -> None:
    """D39: nobody is evicted over it, and nothing is read as if all were well."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
            await form(a, b)
            good = await store.get(KEYS.state)
            await store.set(KEYS.state, garbage)
            await anyio.sleep(10)
            for read in (a.handler.is_closed, a.handler.num_nodes_waiting, a.handler.status):
                with pytest.raises(RendezvousStateError):
                    await read()
            await store.set(KEYS.state, good)
            await anyio.sleep(2)
            assert await a.handler.num_nodes_waiting() == await b.handler.num_nodes_waiting() == 0
            assert a.handler.counters.evictions == b.handler.counters.evictions == 0


@VIRTUAL
async def test_a_state_that_can_be_read_is_not_thrown_away() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store, Node(store, params()) as node:
        assert not await reset(parameters(server.endpoint))
        await node.join()
        before = await store.get(KEYS.state)
        assert not await reset(parameters(server.endpoint))
        assert await store.get(KEYS.state) == before


@VIRTUAL
async def test_a_join_that_times_out_over_a_damaged_state_says_that_it_is_damaged() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(2, 2, join_timeout=2)) as node, anyio.create_task_group() as tg:

            async def join() -> None:
                with pytest.raises(RendezvousStateError):
                    await node.join()

            tg.start_soon(join)
            await anyio.sleep(0.5)
            await store.set(KEYS.state, b"garbage of some length")


@VIRTUAL
async def test_a_damaged_announcement_stops_nobody() -> None:
    """D39, for the announcement area."""
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        async with Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b, anyio.create_task_group() as tg:
            tg.start_soon(a.join)
            await anyio.sleep(0.3)
            assert a.handler._executor is not None
            state = a.handler._executor.state
            assert state is not None
            await store.set(Keys("run").record(state.epoch, state.gen, b"\5" * 16, 1), b"\x80\x04bad")
            with fail_after(5):
                assert (await b.join()).world_size == 2


async def test_a_damaged_heartbeat_value_is_only_a_value() -> None:
    async with TCPStoreServer() as server, TCPStore(server.host, server.port) as store:
        settings = params(2, 2, base=CALM)
        async with Node(store, settings) as a, Node(store, settings) as b:
            with fail_after(20):
                await form(a, b)
                await store.set(KEYS.beat(b.inc), b"nonsense")
                await anyio.sleep(0.2)
            assert await a.handler.num_nodes_waiting() == 0
