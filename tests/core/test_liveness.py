"""The failure detector: sightings, verdicts on the observer's own clock, and the ring of who watches whom."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.core.liveness import Judgement, Sighting, absent, judge, seen, targets
from arendezvous.core.state import Gone, RendezvousState

from .kit import Run, completed, inc, incs, spell

EXPIRY, GRACE = 3.0, 1.0
A, B = inc("a"), inc("b")


def verdict(sighting: Sighting, now: float) -> Judgement:
    return judge({A: sighting}, now, expiry=EXPIRY, grace=GRACE)


def called(judgement: Judgement) -> str:
    """``dead``, ``shaky``, ``proven`` or nothing."""
    evidence = judgement.evidence
    named = [("dead", evidence.suspects), ("shaky", evidence.shaky), ("proven", evidence.proven)]
    return " ".join(name for name, who in named if A in who)


# ---- one sighting after another ---------------------------------------------------------------------------------


def test_the_first_look_starts_the_clock_and_proves_nothing() -> None:
    s = seen(None, b"7", 10.0)
    assert (s.since, s.progressed, s.value, s.moved, s.absent, s.present_once) == (10.0, 10.0, b"7", False, None, True)


def test_only_a_changed_value_is_progress() -> None:
    s = seen(seen(None, b"7", 10.0), b"7", 11.0)
    assert (s.progressed, s.moved) == (10.0, False)
    s = seen(s, b"8", 12.0)
    assert (s.since, s.progressed, s.moved) == (10.0, 12.0, True)
    assert seen(s, b"8", 13.0).moved, "what has moved once stays proven until it is dead"


def test_a_value_going_backwards_is_progress_as_well() -> None:
    """Counters are compared for difference only: another incarnation has another key, and clocks play no part."""
    assert seen(seen(None, b"9", 0.0), b"1", 1.0).progressed == 1.0


def test_appearing_after_an_absence_is_progress_but_no_proof() -> None:
    s = seen(absent(None, 10.0), b"1", 10.5)
    assert (s.progressed, s.moved, s.absent) == (10.5, False, None)
    assert seen(s, b"2", 11.0).moved


def test_an_absence_is_counted_from_its_first_look() -> None:
    s = absent(absent(None, 10.0), 10.5)
    assert (s.absent, s.present_once) == (10.0, False)
    s = absent(absent(seen(None, b"1", 10.0), 11.0), 12.0)
    assert (s.absent, s.present_once) == (11.0, True)


def test_a_dropped_connection_is_remembered_until_it_is_back() -> None:
    s = seen(seen(None, b"1", 10.0), b"1", 11.0, attached=False)
    assert (s.absent, s.dropped) == (11.0, True)
    assert seen(s, b"1", 12.0, attached=False).absent == 11.0
    back = seen(s, b"1", 12.0)
    assert (back.absent, back.dropped) == (None, False)


def test_a_beat_over_a_new_connection_clears_the_drop() -> None:
    s = seen(seen(None, b"1", 10.0, attached=False), b"2", 11.0, attached=False)
    assert (s.absent, s.dropped, s.progressed) == (None, False, 11.0)


def test_the_lease_of_a_dropped_connection_ends_it() -> None:
    s = absent(seen(None, b"1", 10.0, attached=False), 10.4)
    assert (s.absent, s.dropped) == (10.0, False)
    assert called(verdict(s, 10.4)) == "dead"


# ---- verdicts ---------------------------------------------------------------------------------------------------

STILL = seen(None, b"1", 10.0)
MOVING = seen(STILL, b"2", 11.0)
MISSING = absent(None, 10.0)
DROPPED = seen(MOVING, b"2", 11.5, attached=False)
ENDED = absent(MOVING, 11.5)


@pytest.mark.parametrize(
    ("sighting", "now", "name", "wake_at"),
    [
        (STILL, 10.0, "", 13.0),
        (STILL, 12.999, "", 13.0),
        (STILL, 13.0, "dead", math.inf),
        (MOVING, 11.0, "proven", 14.0),
        (MOVING, 13.999, "proven", 14.0),
        (MOVING, 14.0, "dead", math.inf),
        (MISSING, 10.0, "shaky", 11.0),
        (MISSING, 10.999, "shaky", 11.0),
        (MISSING, 11.0, "dead", math.inf),
        (DROPPED, 11.5, "shaky", 12.5),
        (DROPPED, 12.5, "dead", math.inf),
        (ENDED, 11.5, "dead", math.inf),
        (replace(DROPPED, absent=13.5), 13.6, "shaky", 14.0),
    ],
)
def test_verdicts_at_and_around_the_instant(sighting: Sighting, now: float, name: str, wake_at: float) -> None:
    judgement = verdict(sighting, now)
    assert called(judgement) == name
    assert judgement.wake_at == wake_at


def test_the_earliest_deadline_wakes() -> None:
    judgement = judge({A: MOVING, B: MISSING}, 10.5, expiry=EXPIRY, grace=GRACE)
    assert judgement.wake_at == 11.0
    assert judge({}, 0.0, expiry=EXPIRY, grace=GRACE).wake_at == math.inf


def test_no_verdict_speaks_of_the_last_call() -> None:
    assert not verdict(STILL, 99.0).evidence.last_call_over


def test_a_rival_is_proven_only_by_progress_since_both_were_seen() -> None:
    """P5.3: what a ghost did before its successor came proves nothing."""
    ghost = seen(seen(None, b"1", 0.0), b"2", 1.0)
    successor = seen(None, b"1", 1.5)
    alone = judge({A: ghost, B: successor}, 2.0, expiry=EXPIRY, grace=GRACE)
    assert alone.evidence.proven == {A}
    rivals = judge({A: ghost, B: successor}, 2.0, expiry=EXPIRY, grace=GRACE, rivals=[(A, B)])
    assert rivals.evidence.proven == frozenset()
    both = {A: seen(ghost, b"3", 2.0), B: seen(successor, b"2", 2.0)}
    assert judge(both, 2.0, expiry=EXPIRY, grace=GRACE, rivals=[(A, B)]).evidence.proven == {A, B}


def test_rivals_that_nobody_looked_at_are_not_proven() -> None:
    assert judge({}, 0.0, expiry=EXPIRY, grace=GRACE, rivals=[(A, B)]).evidence.proven == frozenset()


LOOKS = st.lists(
    st.tuples(st.floats(0.01, 2.0), st.sampled_from(["same", "beat", "dropped", "missing"])), min_size=1, max_size=12
)


@given(LOOKS)
def test_every_node_is_dead_or_has_an_instant_at_which_it_may_be(looks: list[tuple[float, str]]) -> None:
    now, count, s = 0.0, 0, None
    for pause, look in looks:
        now += pause
        count += look == "beat"
        s = absent(s, now) if look == "missing" else seen(s, b"%d" % count, now, attached=look != "dropped")
    assert s is not None
    judgement = verdict(s, now)
    dead = called(judgement) == "dead"
    assert (judgement.wake_at == math.inf) is dead
    if not dead:
        assert now < judgement.wake_at <= s.progressed + EXPIRY
        assert called(verdict(s, judgement.wake_at)) == "dead", "nothing but news averts it"
    assert sum(word in called(judgement) for word in ("dead", "shaky", "proven")) <= 1


@given(st.floats(0, 1e9), LOOKS)
def test_verdicts_do_not_depend_on_where_the_clock_starts(start: float, looks: list[tuple[float, str]]) -> None:
    """D6: only differences of the observer's own clock count."""
    start = float(round(start))

    def judged(offset: float) -> str:
        now, s = offset, None
        for pause, look in looks:
            now += round(pause * 64) / 64  # exact in binary, at any offset of the range
            s = absent(s, now) if look == "missing" else seen(s, look.encode(), now, attached=look != "dropped")
        assert s is not None
        return called(verdict(s, now))

    assert judged(0.0) == judged(start)


# ---- who watches whom -------------------------------------------------------------------------------------------


def ring(members: str, queue: str = "", gone: str = "") -> RendezvousState:
    count = len(members.split())
    run = completed(count, count, *members.split())
    run.step(*[run.join(name) for name in queue.split()])
    return replace(run.state, gone=dict.fromkeys(incs(gone), Gone.LOST))


def watched(state: RendezvousState, me: str, silent: str = "") -> str:
    return spell(targets(state, inc(me), incs(silent)))


@pytest.mark.parametrize(
    ("me", "silent", "whom"),
    [
        ("a", "", "b c"),
        ("d", "", "e f"),
        ("g", "", "a b"),
        ("a", "b", "b c"),
        ("a", "b c", "b c d e"),
        ("a", "b c d", "b c d e"),
        ("a", "b c d e", "b c d e f g"),
        ("f", "g a", "g a b c"),
        ("a", "b c d e f g", "b c d e f g"),
        ("z", "", "a b"),
        ("z", "a b", "a b c d"),
        ("z", "a b c d e f g", "a b c d e f g"),
    ],
)
def test_the_next_two_of_the_ring_doubling_past_the_silent(me: str, silent: str, whom: str) -> None:
    """P7: one ring over members and queue; who is not listed starts at its beginning."""
    assert watched(ring("a b c d", "e f g"), me, silent) == whom


def test_members_watch_waiters_and_waiters_watch_members() -> None:
    """F7: dead spares and rounds of which only waiters live are buried."""
    s = ring("a b", "x")
    assert (watched(s, "a"), watched(s, "b"), watched(s, "x")) == ("b x", "x a", "a b")


def test_those_who_are_gone_are_not_watched_and_watch_from_the_start() -> None:
    s = ring("a b c d", gone="b")
    assert watched(s, "a") == "c d"
    assert watched(s, "b") == "a c"


def test_a_forming_round_is_watched_in_join_order() -> None:
    run = Run(4, 5).begin("c", "a", "b")
    assert (watched(run.state, "c"), watched(run.state, "a")) == ("a b", "b c")


def test_nobody_watches_itself() -> None:
    run = Run(2, 2).begin("a")
    assert watched(run.state, "a") == ""
    assert watched(run.state, "z") == "a"
    run = completed(2, 2, "a", "b")
    assert watched(run.state, "a") == "b"
    assert watched(run.state, "a", "b") == "b"
    empty = replace(run.state, participants=(), nodes={}, complete=False)
    assert watched(empty, "a") == ""


@given(st.integers(1, 30), st.sets(st.integers(0, 29)), st.integers(0, 29))
def test_whoever_lives_finds_the_next_that_lives(size: int, dead: set[int], me: int) -> None:
    """A dead rack is found in one go, and the ring is never cut in two."""
    names = [f"n{k:02}" for k in range(size)]
    s = ring(" ".join(names))
    me %= size
    silent = [inc(names[k]) for k in dead if k < size and k != me]
    whom = targets(s, inc(names[me]), silent)
    assert inc(names[me]) not in whom
    assert len(set(whom)) == len(whom)
    alive = [names[(me + k) % size] for k in range(1, size) if inc(names[(me + k) % size]) not in silent]
    if alive:
        assert inc(alive[0]) in whom
    else:
        assert len(whom) == size - 1


@given(st.integers(2, 40))
def test_every_node_is_watched_by_two_others(size: int) -> None:
    names = [f"n{k:02}" for k in range(size)]
    s = ring(" ".join(names))
    watchers = dict.fromkeys(s.ring, 0)
    for name in names:
        for one in targets(s, inc(name)):
            watchers[one] += 1
    assert set(watchers.values()) == {min(2, size - 1)}
