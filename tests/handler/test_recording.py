"""Events and log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import pytest

from arendezvous.errors import RendezvousClosedError, RendezvousConnectionError
from arendezvous.events import NodeState, RdzvEvent, register_recorder
from arendezvous.handler.create import create_handler
from arendezvous.params import RendezvousParameters
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Node, form, params, until
from tests.support import VIRTUAL, fail_after


@pytest.fixture
def events() -> Iterator[list[RdzvEvent]]:
    seen: list[RdzvEvent] = []
    previous = register_recorder(seen.append)
    yield seen
    register_recorder(previous)


def has(events: list[RdzvEvent], state: NodeState, text: str) -> bool:
    return any(event.node_state is state and text in event.message for event in events)


@VIRTUAL
async def test_every_step_of_a_member_is_an_event_with_run_endpoint_and_node(events: list[RdzvEvent]) -> None:
    """D50."""
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        infos = await form(a, b)
        b.line.cut()
        with fail_after(3):
            await until(a.handler.num_nodes_waiting)
        await a.handler.set_closed()
        with pytest.raises(RendezvousClosedError):
            await a.join()
        name, rank, other = repr(a.handler.node), infos[0].rank, repr(b.handler.node)
        mine = [event for event in events if event.local_id == a.handler.node.local_id]
    assert {(event.run_id, event.master_endpoint) for event in mine} == {("run", "memory")}
    assert has(mine, NodeState.INITIALIZED, f"{name} joins")
    assert has(mine, NodeState.STARTING, "joined: ")
    assert has(mine, NodeState.RUNNING, "round 0 is complete with 2 nodes")
    assert has(mine, NodeState.RUNNING, f"{name} is rank {rank} of 2 in round 0")
    assert [event.rank for event in mine if event.name == "rank"] == [rank]
    assert has(mine, NodeState.UNHEALTHY, f"lost: {other}")
    assert has(mine, NodeState.CLOSED, "closed the rendezvous")
    assert has(mine, NodeState.FAILED, "RendezvousClosedError: ")
    assert next(e.error_trace for e in mine if e.node_state is NodeState.FAILED).startswith("Traceback")
    assert has(events, NodeState.STOPPED, f"{name} has stopped")


@VIRTUAL
async def test_a_finished_member_is_a_success(events: list[RdzvEvent]) -> None:
    async with MemoryStore() as store, Node(store, params()) as node:
        async for world in node.handler.rounds():
            async with world:
                world.finish()
    assert has(events, NodeState.SUCCEEDED, "done: every member has finished")


async def test_hosting_and_a_failed_connection_are_events(events: list[RdzvEvent]) -> None:
    async with create_handler(RendezvousParameters("p10d", "127.0.0.1:0", "run", linger=0)):
        pass
    assert has(events, NodeState.INITIALIZED, "hosts the rendezvous TCP store")
    unreachable = RendezvousParameters("p10d", "127.0.0.1:1", "run", is_host=False, read_timeout=0.2)
    with pytest.raises(RendezvousConnectionError):
        async with create_handler(unreachable):
            pass
    assert has(events, NodeState.FAILED, "connecting failed: RendezvousConnectionError")


@VIRTUAL
async def test_every_own_step_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """D50: and what the others do is there for who asks for more."""
    with caplog.at_level(logging.DEBUG, "arendezvous"):
        async with MemoryStore() as store, Node(store, params()) as node:
            await node.join()
            await node.handler.shutdown()
    own = [r.getMessage() for r in caplog.records if r.name.endswith("recording") and r.levelno == logging.INFO]
    assert [line.split(" ")[0] for line in own] == ["run:"] * len(own)
    for part in ("joins", "is rank 0 of 1 in round 0", "has closed", "has stopped"):
        assert sum(part in line for line in own) == 1
    assert any("round 0 is complete" in r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG)


@VIRTUAL
async def test_a_recorder_that_fails_does_not_fail_the_rendezvous() -> None:
    def broken(event: RdzvEvent) -> None:
        raise ZeroDivisionError

    previous = register_recorder(broken)
    try:
        async with MemoryStore() as store, Node(store, params()) as node:
            assert (await node.join()).world_size == 1
            await anyio.sleep(1)
    finally:
        register_recorder(previous)
