"""The judge of simulations: each thing it must notice, made to happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from arendezvous.core.codec import encode_state
from arendezvous.core.ops import Role
from arendezvous.core.state import AgreedSettings, Gone, RendezvousState
from arendezvous.handler.info import RendezvousInfo
from arendezvous.node import NodeDesc
from arendezvous.store.memory import MemoryStore
from arendezvous.testing.simcheck import Checker, WatchedTable
from arendezvous.testing.simplan import make_plan
from tests.support import VIRTUAL

KEY = b"arendezvous/1/run/state"
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
SETTINGS = AgreedSettings(1, 2)


def desc(inc: bytes) -> NodeDesc:
    return NodeDesc("10.0.0.1", ord(inc[:1]), 0, inc)


def state(*members: bytes, queue: tuple[bytes, ...] = (), nonce: int = 1, **changes: Any) -> RendezvousState:
    listed = (*members, *queue)
    return RendezvousState(
        **{
            "settings": SETTINGS,
            "epoch": b"e" * 16,
            "nonce": bytes([nonce]) * 16,
            "round_nonce": b"r" * 16,
            "participants": members,
            "queue": queue,
            "nodes": {inc: desc(inc) for inc in listed},
            "folded": dict.fromkeys(listed, 1),
            **changes,
        }
    )


def life(name: str, inc: bytes, **changes: Any) -> Any:
    executor = SimpleNamespace(role=Role.MEMBER, me=SimpleNamespace(inc=inc, round_nonce=b"r" * 16), state=None)
    return SimpleNamespace(
        **{
            "name": name,
            "plan": SimpleNamespace(index=int(name[1])),
            "incs": [],
            "dead": False,
            "over": False,
            "phase": "member",
            "round": 0,
            "started": 0.0,
            "ended": 0.0,
            "executor": executor,
            **changes,
        }
    )


def judge(*lives: Any) -> tuple[Checker, Callable[[RendezvousState], None]]:
    checker = Checker(replace(make_plan(0), min_nodes=1, max_nodes=2, notify_lost=True), list(lives))
    for each in lives:
        checker.met(each, each.executor.me.inc)

    def write(written: RendezvousState) -> None:
        checker.see(KEY, bytes(16) + encode_state(written))

    return checker, write


def info(number: int, rank: int, *incs: bytes) -> RendezvousInfo:
    return RendezvousInfo(MemoryStore(), rank, len(incs), None, tuple(map(desc, incs)), round=number)


@VIRTUAL
async def test_states_that_follow_from_each_other_are_fine() -> None:
    anna, bert = life("n0.0", A), life("n1.0", B)
    checker, write = judge(anna, bert)
    write(state(A))
    write(state(A, B, nonce=2, complete=True))
    checker.given(anna, info(0, 0, A, B), A)
    checker.given(bert, info(0, 1, A, B), B)
    assert not checker.violations
    assert (checker.writes, checker.rounds) == (2, 1)


@VIRTUAL
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (state(A, complete=True), state(A, nonce=2), "a complete round was undone"),
        (state(A), state(A, nonce=2, round=0, epoch=b"f" * 16), "another one"),
        (state(A, complete=True, round=1), state(A, nonce=2, round=1, gen=1, round_nonce=b"s" * 16), "old number"),
        (state(A), state(A, B, C, nonce=2, settings=AgreedSettings(1, 3), complete=True), "completed with 3 nodes"),
    ],
    ids=["undone", "history", "number", "size"],
)
async def test_a_wrong_step_is_noticed(before: RendezvousState, after: RendezvousState, words: str) -> None:
    checker, write = judge(life("n0.0", A))
    write(before)
    write(after)
    assert any(words in sentence for sentence in checker.violations)


@VIRTUAL
async def test_bytes_that_nobody_can_read_are_noticed() -> None:
    checker, _ = judge()
    checker.see(KEY, bytes(40))
    assert "nobody can read" in checker.violations[0]


@VIRTUAL
async def test_a_node_that_was_told_it_has_withdrawn_may_be_in_no_later_round() -> None:
    checker, write = judge(life("n0.0", A))
    checker.withdrew(A)
    write(state(A, complete=True))
    assert "its withdrawal was acknowledged" in checker.violations[0]


@VIRTUAL
async def test_a_node_that_wants_in_again_may() -> None:
    checker, write = judge(life("n0.0", A))
    checker.withdrew(A)
    checker.wants(A)
    write(state(A, complete=True))
    assert not checker.violations


@VIRTUAL
@pytest.mark.parametrize(
    ("handed", "words"),
    [
        (info(0, 1, A), "has rank 1 of 1"),
        (info(0, 0, A), "sees round 0 as"),
        (info(7, 0, A, B), "not complete"),
    ],
    ids=["rank", "world", "round"],
)
async def test_a_wrong_world_is_noticed(handed: RendezvousInfo, words: str) -> None:
    anna = life("n0.0", A)
    checker, write = judge(anna, life("n1.0", B))
    write(state(A, B, complete=True) if words != "has rank 1 of 1" else state(A, complete=True))
    checker.given(anna, handed, A)
    assert any(words in sentence for sentence in checker.violations)


@VIRTUAL
async def test_the_same_round_twice_is_noticed() -> None:
    anna = life("n0.0", A)
    checker, write = judge(anna)
    write(state(A, complete=True))
    checker.given(anna, info(0, 0, A), A)
    checker.given(anna, info(0, 0, A), A)
    assert "was handed round 0 after 0" in checker.violations[0]


@VIRTUAL
async def test_a_ghost_that_is_ranked_with_its_successor_is_noticed() -> None:
    ghost, successor = life("n0.0", A, dead=True, ended=1.0), life("n0.1", B, started=2.0)
    checker, write = judge(ghost, successor)
    same = {A: desc(A), B: replace(desc(A), incarnation=B)}
    write(state(A, B, nodes=same, complete=True))
    assert "with its successor" in checker.violations[0]


@VIRTUAL
async def test_members_of_the_current_round_and_spares_are_at_rest() -> None:
    anna, bert, carl = life("n0.0", A), life("n1.0", B), life("n2.0", C)
    carl.executor.role = Role.JOINING
    checker, write = judge(anna, bert, carl)
    write(state(A, B, queue=(C,), complete=True))
    for each in (anna, bert, carl):
        each.executor.state = checker.state
    assert not checker.unrest()


@VIRTUAL
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda anna: setattr(anna.executor, "role", None), "silent orphan"),
        (lambda anna: setattr(anna, "executor", None), "silent orphan"),
        (lambda anna: setattr(anna.executor, "state", None), "does not know the state"),
        (lambda anna: setattr(anna.executor, "role", Role.LEAVING), "is leaving"),
        (lambda anna: setattr(anna, "round", 4), "is no live member"),
        (lambda anna: setattr(anna.executor, "role", Role.JOINING), "does not enter it"),
        (lambda anna: setattr(anna, "dead", True), "listed and not alive"),
    ],
    ids=["nothing", "no driver", "ignorant", "leaving", "old round", "not entering", "dead"],
)
async def test_whoever_is_not_at_rest_is_named(change: Callable[[Any], None], words: str) -> None:
    anna, bert = life("n0.0", A), life("n1.0", B)
    checker, write = judge(anna, bert)
    write(state(A, B, complete=True))
    anna.executor.state = bert.executor.state = checker.state
    change(anna)
    assert any(words in sentence for sentence in checker.unrest())


@VIRTUAL
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (state(A, B), "is not complete"),
        (state(A, B, complete=True, gone={B: Gone.LOST}), "goes on without"),
        (state(A, queue=(B,), complete=True), "nobody makes room"),
    ],
    ids=["forming", "owed", "seats"],
)
async def test_a_state_in_which_something_is_left_to_do_is_no_rest(written: RendezvousState, words: str) -> None:
    anna = life("n0.0", A)
    checker, write = judge(anna)
    write(written)
    anna.executor.state = checker.state
    assert any(words in sentence for sentence in checker.unrest())


def test_a_watched_table_shows_every_change() -> None:
    seen: list[tuple[bytes, bytes]] = []
    table = WatchedTable(lambda key, value: seen.append((key, value)), grace=1.0)
    table.set(b"a", b"1")
    table.add(b"n", 2)
    table.compare_and_swap(b"a", b"wrong", b"3")
    table.compare_and_swap(b"a", b"1", b"3")
    assert seen == [(b"a", b"1"), (b"n", b"2"), (b"a", b"3")]
