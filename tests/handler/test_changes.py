"""What members are told."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.core.state import AgreedSettings, Closed, Gone, RendezvousState
from arendezvous.handler.changes import MembershipChange, Publisher, difference
from arendezvous.node import NodeDesc
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Node, form, params, until
from tests.support import VIRTUAL, fail_after


def inc(n: int) -> bytes:
    return bytes([n]) * 16


def node(n: int) -> NodeDesc:
    return NodeDesc(f"host{n}", 1, 0, inc(n))


def state(*members: int, queue: tuple[int, ...] = (), **changes: object) -> RendezvousState:
    everybody = {inc(n): node(n) for n in (*members, *queue)}
    base = {
        "settings": AgreedSettings(1, 4),
        "epoch": b"e",
        "nonce": b"n",
        "round_nonce": b"r0",
        "participants": tuple(map(inc, members)),
        "queue": tuple(map(inc, queue)),
        "nodes": everybody,
        "folded": dict.fromkeys(everybody, 1),
    }
    return RendezvousState(**{**base, **changes})  # type: ignore[arg-type]


def kinds(changes: list[MembershipChange]) -> list[tuple[str, tuple[str, ...]]]:
    return [(c.kind, tuple(n.addr for n in c.nodes)) for c in changes]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, state(1), [("joined", ("host1",))]),
        (state(1), state(1, 2), [("joined", ("host2",))]),
        (state(1), state(1), []),
        (state(1, 2), state(1, 2, complete=True), [("completed", ("host1", "host2"))]),
        (state(1, complete=True), state(1, complete=True), []),
        (state(1, complete=True), state(1, queue=(2,), complete=True), [("waiting", ("host2",))]),
        (
            state(1, 2, complete=True),
            state(1, 2, complete=True, gone={inc(2): Gone.LOST}),
            [("lost", ("host2",))],
        ),
        (
            state(1, 2, complete=True),
            state(1, 2, complete=True, gone={inc(2): Gone.LEFT}),
            [("left", ("host2",))],
        ),
        (
            state(1, 2, complete=True, gone={inc(2): Gone.LOST}),
            state(1, 2, complete=True, gone={inc(2): Gone.LOST}),
            [],
        ),
        (state(1), state(1, closed=Closed.CLOSED), [("closed", ())]),
        (state(1, closed=Closed.CLOSED), state(1, closed=Closed.CLOSED), []),
        (
            state(1, complete=True),
            state(1, round=1, round_nonce=b"r1", complete=True),
            [("joined", ("host1",)), ("completed", ("host1",))],
        ),
    ],
)
def test_two_states_tell_what_happened_between_them(
    before: RendezvousState | None,
    after: RendezvousState,
    expected: list[tuple[str, tuple[str, ...]]],
) -> None:
    changes = difference(before, after)
    assert kinds(changes) == expected
    for change in changes:
        assert change.reason
        assert change.round == after.round
        for member in change.nodes:
            assert repr(member) in change.reason or change.kind == "completed"


def test_the_end_of_a_job_says_whether_it_was_done_or_closed() -> None:
    done, closed = (difference(None, state(1, closed=how))[-1].reason for how in (Closed.DONE, Closed.CLOSED))
    assert "finished" in done
    assert "for ever" in closed


async def test_every_consumer_gets_what_came_since_its_call() -> None:
    publisher = Publisher()
    one = publisher.listen()
    publisher.publish([MembershipChange("joined", "joined: a", 0)])
    two = publisher.listen()
    publisher.publish([MembershipChange("left", "left: a", 0)])
    with fail_after(5):
        assert [(await anext(one)).kind, (await anext(one)).kind] == ["joined", "left"]
        assert (await anext(two)).kind == "left"


async def test_a_slow_consumer_gets_changes_of_one_kind_and_round_merged_and_none_lost() -> None:
    """design.md 6."""
    publisher = Publisher()
    changes = publisher.listen()
    for n in range(100):
        publisher.publish([MembershipChange("joined", f"joined: host{n}", 0, (node(n),))])
        publisher.publish([MembershipChange("joined", f"joined: host{n}", 0, (node(n),))])
    publisher.publish([MembershipChange("lost", "lost: host1", 0, (node(1),))])
    publisher.publish([MembershipChange("joined", "joined: host1", 1, (node(1),))])
    first = await anext(changes)
    assert first.nodes == tuple(node(n) for n in range(100))
    assert len(first.reason) <= 2100
    assert "host99" in first.reason
    rest = [await anext(changes), await anext(changes)]
    assert [(c.kind, c.round) for c in rest] == [("lost", 0), ("joined", 1)]


async def test_cancelling_an_iteration_loses_nothing() -> None:
    publisher = Publisher()
    changes = publisher.listen()
    with anyio.move_on_after(0.01) as scope:
        await anext(changes)
    assert scope.cancelled_caught
    publisher.publish([MembershipChange("joined", "x", 0)])
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(changes)
    assert scope.cancelled_caught
    with fail_after(5):
        assert (await anext(changes)).kind == "joined"


async def test_consumers_end_when_the_publisher_does_and_get_what_was_pending() -> None:
    publisher = Publisher()
    changes, idle = publisher.listen(), publisher.listen()
    publisher.publish([MembershipChange("joined", "x", 0)])
    with fail_after(5):
        async with anyio.create_task_group() as tg:

            async def drain() -> None:
                assert [c.kind async for c in idle] == ["joined"]

            tg.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            publisher.close()
        assert [c.kind async for c in changes] == ["joined"]
        assert [c async for c in publisher.listen()] == []


async def test_a_closed_consumer_ends_and_is_forgotten() -> None:
    publisher = Publisher()
    changes = publisher.listen()
    await changes.aclose()
    await changes.aclose()
    publisher.publish([MembershipChange("joined", "x", 0)])
    with fail_after(5):
        assert [c async for c in changes] == []


@VIRTUAL
async def test_a_handler_tells_its_consumers_everything_and_ends_them() -> None:
    """D32, D50: joined, completed, waiting, lost and closed, each with a reason that names who."""
    async with MemoryStore() as store:
        async with Node(store, params(1, 2)) as a:
            changes = a.handler.changes()
            await a.join()
            async with Node(store, params(1, 2)) as b:
                async with anyio.create_task_group() as tg:
                    tg.start_soon(b.join)
                    with fail_after(5):
                        await until(a.handler.num_nodes_waiting)
                        await a.join()
                b.line.cut()
                with fail_after(5):
                    await until(a.handler.num_nodes_waiting)
                name = repr(b.handler.node)
            await a.handler.set_closed()
            await anyio.sleep(0.1)
        with fail_after(5):
            told = [change async for change in changes]
    seen = {change.kind for change in told}
    assert {"joined", "completed", "waiting", "lost", "closed"} <= seen
    assert any(name in change.reason for change in told if change.kind == "waiting")
    assert any(name in change.reason for change in told if change.kind == "lost")


@VIRTUAL
async def test_two_handlers_tell_the_same_story() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        one, two = a.handler.changes(), b.handler.changes()
        await form(a, b)
        with fail_after(5):
            stories = []
            for changes in (one, two):
                names: set[str] = set()
                while (change := await anext(changes)).kind != "completed":
                    names.update(map(repr, change.nodes))
                stories.append((names, change.nodes))
    assert stories[0][1] == stories[1][1]
    assert all(names <= set(map(repr, members)) for names, members in stories)
