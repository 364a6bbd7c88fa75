"""The checker of the simulations can fail: each kind of thing that must hold is broken once."""

from __future__ import annotations

import os
from dataclasses import replace

from arendezvous.core.codec import encode_state
from arendezvous.core.fold import Evidence, Fresh, create, fold
from arendezvous.core.state import AgreedSettings, Kind, Record, RendezvousState
from arendezvous.node import NodeDesc
from arendezvous.testing.simcheck import Checker, WatchedTable
from arendezvous.testing.simplan import make_plan
from tests.support import VIRTUAL

HEADER = b"\0" * 16
KEY = b"arendezvous/1/sim/state"


def checker() -> Checker:
    plan = next(plan for plan in map(make_plan, range(100)) if plan.min_nodes <= 2 <= plan.max_nodes)
    return Checker(plan, [])


def fresh() -> Fresh:
    return Fresh(os.urandom(16), os.urandom(16))


def world() -> RendezvousState:
    settings = AgreedSettings(1, 3)
    records = []
    for k in range(2):
        inc = os.urandom(16)
        records.append(Record(inc, 1, Kind.JOIN, NodeDesc("a", k, 0, inc), settings))
    state = create(records[0], epoch=os.urandom(16), fresh=fresh())
    return fold(state, records, fresh=fresh(), evidence=Evidence(last_call_over=True))


@VIRTUAL
async def test_a_lawful_history_passes() -> None:
    check = checker()
    check.see(KEY, HEADER + encode_state(world()))
    assert check.violations == []
    assert (check.writes, check.rounds) == (1, 1)


@VIRTUAL
async def test_a_state_that_cannot_be_read_is_a_violation() -> None:
    check = checker()
    check.see(KEY, HEADER + b"nonsense")
    assert "nobody can read" in check.violations[0]


@VIRTUAL
async def test_an_unlawful_step_is_a_violation() -> None:
    """The participants of a complete round change, under the same nonce of the round."""
    check, state = checker(), world()
    check.see(KEY, HEADER + encode_state(state))
    fewer = state.participants[:1]
    broken = replace(state, nonce=os.urandom(16), participants=fewer, nodes={inc: state.nodes[inc] for inc in fewer})
    check.see(KEY, HEADER + encode_state(broken))
    assert any("participants of a complete round changed" in text for text in check.violations)


@VIRTUAL
async def test_another_history_is_a_violation() -> None:
    check = checker()
    check.see(KEY, HEADER + encode_state(world()))
    check.see(KEY, HEADER + encode_state(world()))
    assert any("history was replaced" in text for text in check.violations)


@VIRTUAL
async def test_heartbeats_do_not_disturb_the_rest() -> None:
    check = checker()
    check.see(b"arendezvous/1/sim/hb/00", b"beat")
    assert check.quiet_since == 0.0
    assert check.writes == 0


def test_a_watched_table_shows_what_it_writes() -> None:
    seen: list[tuple[bytes, bytes]] = []
    table = WatchedTable(lambda key, value: seen.append((key, value)), grace=1.0)
    table.set(b"k", b"v")
    assert seen == [(b"k", b"v")]
