from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arendezvous.cli.statusnews import Watcher, differences
from arendezvous.handler.status import NodeStatus, RendezvousStatus
from arendezvous.node import NodeDesc


def row(name: str, role: str = "member", rank: int | None = None, condition: str = "live", **more: Any) -> NodeStatus:
    node = NodeDesc(name, 1, 0, name.encode())
    return NodeStatus(node, role, rank, condition, more.get("age", 0.1), more.get("attached", True))


def status(*rows: NodeStatus, number: int | None = 0, complete: bool = True, **more: Any) -> RendezvousStatus:
    made = RendezvousStatus("run", "h:1", number, complete, "no", 1, 4, 0, rows, (), "why")
    return replace(made, **more)


A, B = row("a", rank=0), row("b", rank=1)
NOBODY = status(number=None, complete=False)


def kinds(before: RendezvousStatus, after: RendezvousStatus) -> list[tuple[str, str | None]]:
    return [(change.kind, change.node) for change in differences(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (status(A, B), status(A, B), []),
        (status(A), status(replace(A, heartbeat_age=9.0)), []),
        (NOBODY, NOBODY, []),
        (NOBODY, status(row("a", "joining"), complete=False), [("joined", "a_1_0"), ("round", None)]),
        (status(row("a", "joining"), complete=False), status(A), [("complete", None)]),
        (status(A), status(A, row("b", "waiting")), [("waiting", "b_1_0")]),
        (status(A), status(A, row("b", "spare")), [("spare", "b_1_0")]),
        (status(A, row("b", "waiting")), status(A, row("b", "spare")), [("spare", "b_1_0")]),
        (status(A, B), status(A, B, number=1), [("complete", None)]),
        (status(A, B), status(row("a", "joining"), number=1, complete=False), [("gone", "b_1_0"), ("round", None)]),
        (status(A, replace(B, condition="lost")), status(A, number=1), [("complete", None)]),
        (status(A, B), status(A, replace(B, attached=False)), [("silent", "b_1_0")]),
        (status(A, replace(B, attached=False)), status(A, B), [("heard", "b_1_0")]),
        (status(A, B), status(A, replace(B, attached=False, condition="left")), [("left", "b_1_0")]),
        (status(A), status(A, failures=1), [("failures", None)]),
        (status(A), status(A, closed="closed"), [("closed", None)]),
        (status(A), NOBODY, [("purged", None)]),
    ],
)
def test_what_happened_between_two_looks(
    before: RendezvousStatus, after: RendezvousStatus, expected: list[tuple[str, str | None]]
) -> None:
    assert kinds(before, after) == expected


@pytest.mark.parametrize("condition", ["lost", "left", "finished", "failed", "rejoin"])
def test_each_end_of_a_member_is_told_by_its_name(condition: str) -> None:
    (change,) = differences(status(A, B), status(A, replace(B, condition=condition)))
    assert change.kind == condition
    assert change.text.startswith(f"{condition}: b_1_0 (")


def test_a_rank_is_told_with_a_member_that_joined() -> None:
    assert differences(status(A), status(A, B))[0].text == "joined: b_1_0 (rank 1)"


def test_the_first_look_changes_nothing() -> None:
    assert Watcher().see(status(A)) == []


def test_who_is_not_back_from_the_last_round_is_missing() -> None:
    watcher = Watcher()
    watcher.see(status(A, B))
    watcher.see(status(row("a", "joining"), number=1, complete=False))
    assert watcher.status is not None
    assert watcher.status.missing == (B.node,)
    assert "not back from the last round: b_1_0" in watcher.status.explain()


def test_a_store_that_went_away_is_told_once_and_what_happened_meanwhile_too() -> None:
    watcher = Watcher()
    watcher.see(status(A, B))
    (lost,) = watcher.miss("refused (for 2 s now)")
    assert (lost.kind, lost.text) == ("unreachable", "refused (for 2 s now); trying again")
    assert watcher.status is None
    assert watcher.miss("refused (for 4 s now)") == []
    assert [change.kind for change in watcher.miss("no route")] == ["unreachable"]
    found = watcher.see(status(A, replace(B, condition="lost")))
    assert [change.kind for change in found] == ["reachable", "lost"]
    assert watcher.problem is None
