"""Hypothesis strategies for announcements and agreed states."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from arendezvous.core.state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState
from arendezvous.node import RANK_ORDERS, NodeDesc

IDS = st.binary(min_size=16, max_size=16)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SECONDS = st.floats(0.001, 1e6)
SEQUENCES = st.integers(1, 2**62)
VALUES = st.one_of(TEXTS, st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.booleans())


@st.composite
def agreed(draw: st.DrawFn, most: int = 9) -> AgreedSettings:
    low = draw(st.integers(1, most))
    return AgreedSettings(
        low,
        draw(st.integers(low, most)),
        draw(st.sampled_from(RANK_ORDERS)),
        draw(SECONDS),
        draw(SECONDS),
        draw(st.integers(1, 10)),
    )


@st.composite
def nodes(draw: st.DrawFn, inc: bytes | None = None) -> NodeDesc:
    return NodeDesc(
        draw(TEXTS),
        draw(st.integers(0, 2**31)),
        draw(st.integers(0, 2**20)),
        draw(IDS) if inc is None else inc,
        draw(st.none() | st.integers(0, 100)),
        draw(st.integers(0, 64)),
        draw(st.dictionaries(TEXTS, VALUES, max_size=3)),
    )


@st.composite
def records(draw: st.DrawFn) -> Record:
    inc = draw(IDS)
    return Record(
        inc,
        draw(SEQUENCES),
        draw(st.sampled_from(Kind)),
        draw(st.none() | nodes(inc)),
        draw(st.none() | agreed()),
        draw(st.integers(-1, 2**53)),
        draw(st.booleans()),
        draw(st.binary(max_size=16)),
    )


@st.composite
def states(draw: st.DrawFn) -> RendezvousState:
    """Any state that satisfies the invariants."""
    settings = draw(agreed(4))
    everybody = draw(st.lists(IDS, unique=True, max_size=7))
    complete = draw(st.booleans()) and len(everybody) >= settings.min_nodes
    size = draw(st.integers(settings.min_nodes if complete else 0, settings.max_nodes))
    members, waiters = everybody[:size], everybody[size:]
    gone = draw(st.dictionaries(st.sampled_from(members), st.sampled_from(Gone))) if complete else {}
    finished = draw(st.frozensets(st.sampled_from(members))) if complete else frozenset()
    back = draw(st.lists(st.sampled_from(sorted(gone)), unique=True)) if gone else []
    number = draw(st.integers(0, 2**40))
    closed = draw(st.sampled_from([Closed.NO, Closed.CLOSED]))
    if complete and finished == set(members) and draw(st.booleans()):
        closed = Closed.DONE
    return RendezvousState(
        settings,
        draw(IDS),
        draw(IDS),
        draw(IDS),
        closed,
        draw(st.integers(0, 2**40)),
        number,
        complete,
        tuple(members),
        gone,
        finished,
        tuple(draw(st.permutations(back + waiters))),
        {inc: draw(nodes(inc)) for inc in everybody},
        {**draw(st.dictionaries(IDS, SEQUENCES, max_size=3)), **{inc: draw(SEQUENCES) for inc in everybody}},
        draw(st.integers(0, min(number, 5))),
        draw(st.integers(0, 2**40)),
    )


def exactly(state: RendezvousState) -> tuple[object, ...]:
    """For comparisons that include what is no part of a descriptor's identity."""
    bodies = {
        inc: (node, node.node_rank, node.local_world_size, dict(node.attributes)) for inc, node in state.nodes.items()
    }
    return (replace(state), bodies)
