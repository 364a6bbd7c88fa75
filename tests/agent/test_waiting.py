from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from arendezvous import DynamicRendezvousHandler, MemoryStore, RendezvousConnectionError, RendezvousParameters
from arendezvous.agent.waiting import Connecting, Joining, status_line
from arendezvous.handler.status import NodeStatus, RendezvousStatus
from arendezvous.node import NodeDesc
from tests.support import VIRTUAL

PARAMS = RendezvousParameters("memory", "", "job", 2, 3, "127.0.0.1")


def forming(joined: int = 1, missing: Sequence[str] = (), **attributes: Any) -> RendezvousStatus:
    nodes = tuple(
        NodeStatus(NodeDesc(f"in{k}", 7, k, bytes([k]) * 16), "joining", None, "live", 0.1, True) for k in range(joined)
    )
    gone = tuple(NodeDesc(name, 9, k, bytes([k + 100]) * 16) for k, name in enumerate(missing))
    values: dict[str, Any] = {
        "run_id": "job", "endpoint": "h:29400", "round": 4, "complete": False, "closed": "no", "min_nodes": 2,
        "max_nodes": 8, "failures": 0, "nodes": nodes, "missing": gone, "reason": "because",
    }  # fmt: skip
    return RendezvousStatus(**{**values, **attributes})


def test_the_line_of_a_round_that_forms() -> None:
    assert status_line(forming(), 0, 200) == "round 4: 1 joined (min 2, max 8), h:29400"
    status = forming(3, ["n1", "n2"], join_left=600.0, last_call_left=29.6)
    assert status_line(status, 2.0, 200) == (
        f"round 4: 3 joined (min 2, max 8), missing: {status.missing[0]!r} and {status.missing[1]!r},"
        " last call 28 s, gives up in 598 s, h:29400"
    )


def test_the_seconds_run_between_looks_and_never_below_zero() -> None:
    status = forming(2, join_left=10.0, last_call_left=3.0)
    assert "last call 0 s, gives up in 2 s" in status_line(status, 8.0, 200)


def test_names_give_way_to_times_and_endpoint_when_the_terminal_is_narrow() -> None:
    status = forming(1, [f"node{k}" for k in range(30)], join_left=600.0)
    lines = [status_line(status, 0, width) for width in range(10, 400)]
    assert all(len(line) <= width for width, line in enumerate(lines, 10))
    assert all("node0" in line and "and 22 more" in line and "h:29400" in line for line in lines[-40:])
    for line in lines:
        if "missing:" in line:
            assert line.endswith(", gives up in 600 s, h:29400")
    assert any(line.endswith(", 30 missing, gives up in 600 s, h:29400") for line in lines)
    assert lines[0] == "round 4: …"


def test_nothing_that_a_terminal_obeys_gets_into_the_line() -> None:
    status = forming(1, ["evil\x1b[2Jhost\n"])
    line = status_line(status, 0, 200)
    assert line.isprintable()
    assert "\\x1b[2Jhost\\n" in line


@pytest.mark.parametrize("state", [{"complete": True}, {"closed": "closed"}, {"round": None}])
def test_what_is_no_forming_round_is_told_by_its_reason(state: dict[str, Any]) -> None:
    assert status_line(forming(1, ["n1"], **state), 0, 200).startswith("because")


@VIRTUAL
async def test_a_store_that_does_not_answer_is_named_with_the_time_so_far() -> None:
    import anyio

    waiting = Connecting("h:29400\x1b")
    await anyio.sleep(12)
    await waiting.look()
    assert waiting.sentence() == "connecting to the store at h:29400\\x1b (12 s so far)"
    assert waiting.line(200) == waiting.sentence()
    assert len(waiting.line(20)) == 20


@VIRTUAL
async def test_a_node_that_joins_tells_who_is_in_and_when_it_gives_up() -> None:
    import anyio

    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, PARAMS) as handler:
        waiting = Joining(handler, "h:1")
        assert waiting.line(80) == "joining at h:1"
        async with anyio.create_task_group() as tg:
            tg.start_soon(handler.next_rendezvous)
            await anyio.sleep(100)
            await waiting.look()
            assert "1/3 nodes joined round 0 (min 2, max 3); at least 1 more must join" in waiting.sentence()
            assert waiting.sentence().endswith("; gives up in 500 s")
            await anyio.sleep(50)
            assert "1 joined (min 2, max 3), gives up in 450 s" in waiting.line(200)
            other = DynamicRendezvousHandler.from_store(store, PARAMS)
            async with other:
                tg.start_soon(other.next_rendezvous)
                await anyio.sleep(10)
                await waiting.look()
                assert "2 joined (min 2, max 3), last call 20 s" in waiting.line(200)
                tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_store_that_is_away_is_the_reason_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, PARAMS) as handler:
        waiting = Joining(handler, "h:1")

        async def lost() -> RendezvousStatus:
            raise RendezvousConnectionError("The store is away.")

        monkeypatch.setattr(handler, "status", lost)
        await waiting.look()
        assert waiting.sentence() == waiting.line(80) == "The store is away."
        monkeypatch.undo()
        await waiting.look()
        assert "away" not in waiting.sentence()
