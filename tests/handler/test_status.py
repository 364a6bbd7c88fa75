"""What operators see."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.core.state import AgreedSettings, Closed, Gone, RendezvousState
from arendezvous.handler.keys import Keys
from arendezvous.handler.status import describe
from arendezvous.node import NodeDesc
from arendezvous.store.base import LeaseInfo
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Node, form, params, until
from tests.support import VIRTUAL, fail_after

KEYS = Keys("run")


def node(n: int) -> NodeDesc:
    return NodeDesc(f"host{n}", 1, 0, bytes([n]) * 16)


def state(members: str, queue: str = "", **changes: object) -> RendezvousState:
    everybody = {node(int(n)).incarnation: node(int(n)) for n in members + queue}
    return RendezvousState(
        **{  # type: ignore[arg-type]
            "settings": AgreedSettings(2, 3),
            "epoch": b"e",
            "nonce": b"n",
            "round_nonce": b"r",
            "participants": tuple(node(int(n)).incarnation for n in members),
            "queue": tuple(node(int(n)).incarnation for n in queue),
            "nodes": everybody,
            "folded": dict.fromkeys(everybody, 1),
            "round": 4,
            **changes,
        }
    )


def leases(*ages: tuple[int, float, bool]) -> list[LeaseInfo]:
    return [LeaseInfo(KEYS.beat(node(n).incarnation), age, 15, attached) for n, age, attached in ages]


def test_members_waiters_and_spares_are_told_apart() -> None:
    """api.md A.3: roles, ranks, conditions and ages."""
    described = describe(
        state(
            "123", "45", complete=True, gone={node(2).incarnation: Gone.LOST}, finished=frozenset([node(3).incarnation])
        ),
        leases((1, 0.5, True), (3, 2.0, False), (4, 1.0, True)),
        KEYS,
        "store:1",
        reason="because",
    )
    rows = [(n.node.addr, n.role, n.rank, n.condition, n.heartbeat_age, n.attached) for n in described.nodes]
    assert rows == [
        ("host1", "member", 0, "live", 0.5, True),
        ("host2", "member", 1, "lost", None, False),
        ("host3", "member", 2, "finished", 2.0, False),
        # Somebody was lost and somebody has finished: the next round has room for all but the live one.
        ("host4", "waiting", None, "live", 1.0, True),
        ("host5", "waiting", None, "live", None, False),
    ]
    assert [n.node.addr for n in described.participants] == ["host1", "host2", "host3"]
    assert [n.node.addr for n in described.waiting] == ["host4", "host5"]
    assert (described.round, described.complete, described.min_nodes, described.max_nodes) == (4, True, 2, 3)
    assert described.closed == "no"


def test_a_waiter_without_a_seat_is_a_spare() -> None:
    described = describe(state("12", "345", complete=True), [], KEYS, "store:1", reason="full")
    assert [n.node.addr for n in described.waiting] == ["host3"]
    assert [n.node.addr for n in described.spares] == ["host4", "host5"]


def test_nodes_of_a_forming_round_have_no_rank_yet() -> None:
    described = describe(state("12"), leases((1, 0, True), (2, 0, True)), KEYS, "store:1", reason="forming")
    assert [(n.role, n.rank) for n in described.nodes] == [("joining", None), ("joining", None)]


def test_members_that_have_not_come_back_are_named() -> None:
    """Who is missing: members of the last round that are not in the one that is forming."""
    described = describe(
        state("12"), leases((1, 0, True), (2, 0, True)), KEYS, "s:1", reason="2/3 joined", previous=[node(1), node(3)]
    )
    assert [n.addr for n in described.missing] == ["host3"]
    assert "not back from the last round: host3_1_0" in described.explain()


def test_a_sentence_names_run_endpoint_reason_and_who_is_silent() -> None:
    described = describe(
        state("12", complete=True), leases((1, 0, True)), KEYS, "store:1", reason="round 4 is complete"
    )
    text = described.explain()
    for part in ("'run'", "store:1", "round 4 is complete", "not heard of: host2_1_0"):
        assert part in text
    assert "host1" not in text


def test_a_run_that_nobody_joined_and_one_that_is_over_are_described_too() -> None:
    nothing = describe(None, [], KEYS, "store:1", reason="nobody", bounds=(2, 3))
    assert (nothing.round, nothing.nodes, nothing.min_nodes, nothing.max_nodes) == (None, (), 2, 3)
    over = describe(state("12", complete=True, closed=Closed.DONE), [], KEYS, "store:1", reason="done")
    assert over.closed == "done"


@VIRTUAL
async def test_a_handler_explains_what_it_waits_for_and_when_that_ends() -> None:
    """R49, D52: counts, bounds and the last call, as they change."""
    async with MemoryStore() as store, Node(store, params(2, 4, last_call_timeout=3, join_timeout=60)) as a:
        assert "nobody has joined" in (await a.handler.status()).explain()
        async with (
            Node(store, params(2, 4, last_call_timeout=3, join_timeout=60)) as b,
            anyio.create_task_group() as tg,
        ):
            tg.start_soon(a.join)
            await anyio.sleep(1)
            text = (await a.handler.status()).explain()
            assert "1/4 nodes joined round 0 (min 2, max 4)" in text
            assert "at least 1 more must join" in text
            assert text == (await a.handler.status()).explain()
            tg.start_soon(b.join)
            await anyio.sleep(1)
            text = (await a.handler.status()).explain()
            assert "2/4 nodes" in text
            assert "last call ends in" in text
            with fail_after(10):
                await until(lambda: _complete(a))
            status = await b.handler.status()
            assert "round 0 is complete with 2 nodes" in status.explain()
            assert [n.rank for n in status.participants] == [0, 1]
            assert all(n.attached and n.heartbeat_age is not None for n in status.nodes)


async def _complete(node: Node) -> bool:
    return (await node.handler.status()).complete


@VIRTUAL
async def test_asking_writes_nothing() -> None:
    """D5."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        await form(a, b)
        async with Node(store, params(2, 2)) as outsider:
            for node in (a, b, outsider):
                written = len(node.line.written())
                for _ in range(5):
                    await node.handler.status()
                assert len(node.line.written()) == written
            assert outsider.line.written() == []


@VIRTUAL
async def test_attributes_are_carried_to_everybody() -> None:
    """api.md A.1."""
    mine = params(2, 2, "127.0.0.2", attributes={"role": "trainer", "gpus": 8}, local_world_size=4)
    async with MemoryStore() as store, Node(store, mine) as a, Node(store, params(2, 2, "127.0.0.3")) as b:
        infos = await form(a, b)
        for info in infos:
            assert dict(info.participants[0].attributes) == {"role": "trainer", "gpus": 8}
            assert info.participants[0].local_world_size == 4
            assert dict(info.participants[1].attributes) == {}
        status = await b.handler.status()
        assert dict(status.nodes[0].node.attributes)["gpus"] == 8


@VIRTUAL
async def test_the_reason_of_a_missing_member_is_part_of_the_sentence() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2, join_timeout=60)) as a:
        async with Node(store, params(2, 2, join_timeout=60)) as b:
            await form(a, b)
            await b.handler.leave()
            async with anyio.create_task_group() as tg:
                tg.start_soon(a.join)
                await anyio.sleep(1)
                text = (await a.handler.status()).explain()
                assert f"not back from the last round: {b.handler.node!r}" in text
                tg.cancel_scope.cancel()


@pytest.mark.parametrize("complete", [True, False])
def test_a_status_is_a_value(complete: bool) -> None:
    args = (state("12", complete=complete), leases((1, 0, True)), KEYS, "store:1")
    assert describe(*args, reason="x") == describe(*args, reason="x")
