"""Rounds that open, are filled from the queue and complete (protocol.md P5.4-P5.6), and tombstones (P10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arendezvous.core.fold import Evidence, fold
from arendezvous.core.state import Gone, Kind, Record, RendezvousState
from arendezvous.node import NodeDesc

from .kit import Run, completed, finish, inc, incs, leave, node, settings, spell

# ---- P5.4: opening ----------------------------------------------------------------------------------------------


def test_the_round_opens_when_the_last_member_is_gone() -> None:
    run = completed(2, 2, "a", "b")
    before = run.step(run.join("c"), run.join("a", 2))
    s = run.step(suspects="b", shaky="a")
    assert (s.round, s.gen, s.complete) == (1, 1, False)
    assert s.round_nonce != before.round_nonce
    assert s.gone == {}
    assert run.who == "a c |"


def test_members_of_the_old_round_keep_their_seats_before_waiters() -> None:
    """D42: even though the spare asked first."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("spare"))
    run.step(run.join("b", 2))
    s = run.step(run.join("a", 2))
    assert (s.round, s.complete) == (1, True)
    assert run.who == "a b | spare"


def test_a_rejoiner_is_ahead_of_the_spares_in_the_views_too() -> None:
    """Or it would be told that it is a spare, and its join clock would stand still."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("spare"))
    s = run.step(run.join("b", 2))
    assert (spell(s.wait_list), spell(s.redundancy)) == ("b", "spare")
    assert not s.is_redundant(inc("b"))


def test_all_members_return_for_more_rounds_with_dense_ranks() -> None:
    """R14: five for four seats, many times over: always four ranked, one waiting, never closed."""
    run = Run(4, 4).begin(*"abcd")
    run.step(run.join("e"))
    for turn in range(2, 22):
        s = run.step(*[run.join(name, turn) for name in "edcba"])
        assert (s.round, s.complete, run.who) == (turn - 1, True, "a b c d | e")


def test_a_freed_seat_goes_to_one_spare() -> None:
    """R13: four for two seats, then one dies."""
    run = Run(2, 2).begin(*"abcd")
    assert run.who == "a b | c d"
    assert run.state.num_nodes_waiting() == 0
    run.step(suspects="a")
    s = run.step(run.join("b", 2))
    assert (run.who, s.complete) == ("b c | d", True)


def test_opening_drops_old_tombstones_and_keeps_those_of_the_same_fold() -> None:
    """P9, P10: the owner of a LEAVE reads its acknowledgement in the state that folded it."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("x"), leave("x", 2))
    assert run.state.sequence(inc("x")) == 2
    s = run.step(leave("a"), leave("b"))
    assert (s.round, s.vacant) == (1, True)
    assert s.folded == {inc("a"): 2, inc("b"): 2}


def test_a_failure_counts_once_per_round_and_a_plain_rejoin_never() -> None:
    run = Run(2, 2).begin("a", "b")
    assert run.step(run.join("a", 2), run.join("b", 2)).failures == 0
    assert run.step(run.join("a", 3, failed=True), run.join("b", 3, failed=True)).failures == 1
    assert run.step(run.join("a", 4, failed=True)).failures == 1
    assert run.step(run.join("b", 4)).failures == 2
    assert run.state.round == 3


# ---- P5.5: promotion --------------------------------------------------------------------------------------------


def test_a_freed_seat_of_a_forming_round_is_given_to_the_queue() -> None:
    """F8."""
    run = Run(2, 2).begin("a")
    run.step(run.join("b"), run.join("c"), shaky="a")
    assert (run.who, run.state.complete) == ("a b | c", False)
    s = run.step(suspects="a")
    assert (run.who, s.complete) == ("b c |", True)


# ---- P5.6: completion -------------------------------------------------------------------------------------------


def test_the_maximum_completes_at_once_and_ranks_by_descriptor() -> None:
    run = Run(1, 3).begin("c", "a", "b")
    assert run.state.complete
    assert run.who == "a b c |"


def test_the_minimum_completes_only_when_the_last_call_is_over() -> None:
    """R23: time alone completes; nobody has to arrive."""
    run = Run(2, 4).begin("a", "b", "c")
    assert not run.state.complete
    s = run.step(over=True)
    assert (s.complete, spell(s.participants)) == (True, "a b c")


def test_below_the_minimum_nothing_completes() -> None:
    run = Run(2, 4).begin("a")
    assert run.step(over=True) is run.state


def test_a_step_over_the_exact_numbers_completes_all_the_same() -> None:
    """D15: comparisons are >=, so that a state beyond the number is not stuck."""
    run = Run(3, 3).begin("a")
    run.state = replace(run.state, settings=settings(1, 1))
    assert run.step().complete


@pytest.mark.parametrize(
    ("order", "ranked"),
    [("address", "n10 n2 n9"), ("natural", "n2 n9 n10"), ("stable", "n9 n10 n2"), ("node_rank", "n2 n10 n9")],
)
def test_ranks_follow_the_agreed_order(order: str, ranked: str) -> None:
    run = Run(3, 3, {"rank_order": order}).begin("n9")
    ranks = {"n9": 2, "n10": 1, "n2": 0}

    def wish(name: str, seq: int) -> Record:
        desc: NodeDesc = node(name, node_rank=ranks[name])
        return Record(inc(name), seq, Kind.JOIN, desc, run.agreed)

    run.step(leave("n9", 2), *(wish(name, 3) for name in ("n9", "n10", "n2")))
    assert spell(run.state.participants) == ranked


def test_a_shaky_participant_holds_the_completion_until_it_is_judged() -> None:
    """R107, F20: A joined and was killed, C joins: not {A, C}."""
    run = Run(2, 2).begin("a")
    run.step(run.join("c"), shaky="a")
    assert (run.who, run.state.complete) == ("a c |", False)
    before = run.state
    assert run.step(shaky="a") is before
    run.step(suspects="a")
    assert (run.who, run.state.complete) == ("c |", False)
    s = run.step(run.join("d"))
    assert (run.who, s.complete) == ("c d |", True)


def test_a_shaky_participant_that_recovers_is_ranked() -> None:
    run = Run(2, 2).begin("a")
    run.step(run.join("c"), shaky="a")
    assert run.step().complete
    assert run.who == "a c |"


def test_a_shaky_waiter_holds_nothing() -> None:
    run = Run(2, 2).begin("a")
    assert run.step(run.join("b"), run.join("c"), shaky="c").complete


# ---- P10: too many tombstones -----------------------------------------------------------------------------------


def test_tombstones_are_forgotten_beyond_the_limit_with_the_next_change() -> None:
    run = Run(2, 3).begin("a")
    for k in range(4):
        run.step(run.join(f"x{k}"), leave(f"x{k}", 2), tombstone_limit=3)
        assert run.state.gen == 0
    before = run.state
    assert run.step(tombstone_limit=3) is before, "nobody writes only to forget"
    s = run.step(run.join("b"), leave("y", 1), tombstone_limit=3)
    assert (s.gen, s.round, s.round_nonce) == (1, 0, before.round_nonce)
    assert s.folded == {inc("a"): 1, inc("b"): 1, inc("y"): 1}


def test_a_generation_without_a_round_keeps_those_that_are_gone() -> None:
    run = completed(1, 3, "a", "b")
    run.step(suspects="b")
    for k in range(3):
        run.step(leave(f"x{k}", 1), tombstone_limit=1)
    assert run.state.gen == 1
    assert run.state.gone == {inc("b"): Gone.LOST}
    assert run.state.sequence(inc("b")) == 1


# ---- the whole --------------------------------------------------------------------------------------------------


def test_one_fold_may_do_all_of_it() -> None:
    run = completed(2, 3, "a", "b")
    s = run.step(
        run.join("c"), run.join("a", 2), leave("b"), finish("z", run.state.round_nonce), run.join("d"), over=True
    )
    assert (s.round, s.complete, run.who) == (1, True, "a c d |")


def test_two_folders_of_the_same_news_write_the_same_but_for_the_nonces() -> None:
    run = completed(2, 3, "a", "b")
    news = [run.join("c"), leave("a")]
    seen = Evidence(suspects=frozenset(incs("a b")), last_call_over=True)
    results: list[RendezvousState] = [fold(run.state, news, fresh=run.nonces(), evidence=seen) for _ in "12"]
    assert results[0] == replace(results[1], nonce=results[0].nonce, round_nonce=results[0].round_nonce)
