"""Announcements into the agreed state, in the order of protocol.md P5; the finish rules have a module of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arendezvous.core.fold import Evidence, close, create, fence, fold, rivals
from arendezvous.core.state import Closed, Gone, Kind, Record, RendezvousState, invariants
from arendezvous.node import NodeDesc

from .kit import EPOCH, Nonces, Run, closing, completed, finish, inc, incs, join, leave, node, settings, spell

# ---- creation --------------------------------------------------------------------------------------------------


def test_the_first_joiner_creates_the_state_with_itself_and_its_settings() -> None:
    s = create(join("a", agreed=settings(2, 4)), epoch=EPOCH, fresh=Nonces()())
    assert (s.epoch, s.round, s.gen, s.complete) == (EPOCH, 0, 0, False)
    assert s.settings == settings(2, 4)
    assert spell(s.participants) == "a"
    assert s.sequence(inc("a")) == 1
    assert invariants(s) == []


def test_a_node_that_is_enough_by_itself_completes_in_the_creating_write() -> None:
    s = create(join("a", agreed=settings(1, 1)), epoch=EPOCH, fresh=Nonces()())
    assert s.complete


def test_rounds_grow_over_a_lost_store() -> None:
    """F24: the creator's last round is the floor of the new history."""
    s = create(join("a", last_round=6), epoch=b"f" * 16, fresh=Nonces()())
    assert s.round == 7


def test_a_later_joiner_raises_the_number_of_a_forming_round() -> None:
    run = Run(2, 3).begin("a")
    assert run.step(run.join("b", last_round=4)).round == 5
    assert run.step(run.join("c", last_round=2)).round == 5


def test_a_joiner_of_a_complete_round_raises_the_number_of_the_next() -> None:
    run = completed(1, 2, "a")
    assert run.step(run.join("b", last_round=9)).round == 0
    assert run.step(run.join("a", 2)).round == 10


def test_only_a_join_that_says_who_and_how_creates_a_state() -> None:
    for record in (leave("a"), replace(join("a"), node=None), replace(join("a"), settings=None)):
        with pytest.raises(ValueError, match="descriptor and settings"):
            create(record, epoch=EPOCH, fresh=Nonces()())


def test_a_fence_lists_nobody_and_has_folded_the_leave() -> None:
    """F2: only a write of one's own dooms a creating swap that is still in flight."""
    s = fence(leave("a", 3), settings(2, 2), epoch=EPOCH, fresh=Nonces()())
    assert s.vacant
    assert s.sequence(inc("a")) == 3
    assert fold(s, [join("a", 2)], fresh=Nonces()()) is s


# ---- P3: a record counts once -----------------------------------------------------------------------------------


def test_nothing_to_do_is_the_very_same_object() -> None:
    run = Run(2, 3).begin("a")
    before = run.state
    assert run.step() is before
    assert run.step(run.join("a")) is before
    assert run.step(suspects="z", proven="a z", shaky="a") is before
    assert run.step(over=True) is before


def test_a_record_counts_only_beyond_the_folded_sequence() -> None:
    run = Run(2, 3).begin("a", "b")
    run.step(leave("b", 2))
    assert run.who == "a |"
    assert run.step(run.join("b", 1)) is run.state
    run.step(run.join("b", 2))
    assert run.who == "a |"
    run.step(run.join("b", 3))
    assert run.who == "a b |"


def test_an_eviction_leaves_the_sequence_so_that_only_a_new_intent_comes_back() -> None:
    """F5: the JOIN of a dead node stays in the store."""
    run = Run(2, 3).begin("a", "b")
    s = run.step(suspects="b")
    assert s.sequence(inc("b")) == 1
    assert run.step(run.join("b", 1)) is s
    run.step(run.join("b", 2))
    assert run.who == "a b |"


def test_the_highest_sequence_wins_in_whatever_order_records_come() -> None:
    run = Run(2, 3).begin("a")
    run.step(leave("b", 2), run.join("b", 1))
    assert run.who == "a |"
    assert run.state.sequence(inc("b")) == 2


# ---- P5.1, P13: closed ------------------------------------------------------------------------------------------


def test_closing_happens_once_and_nothing_is_folded_afterwards() -> None:
    run = completed(1, 2, "a")
    s = close(run.state, fresh=run.nonces())
    assert s.closed is Closed.CLOSED
    assert invariants(s, run.state) == []
    assert close(s, fresh=run.nonces()) is s
    run.state = s
    assert run.step(run.join("b"), suspects="a", over=True) is s


def test_a_close_stops_the_fold_and_keeps_the_round_for_its_members() -> None:
    """D46: the members of the completed round still find themselves in it."""
    run = completed(1, 2, "a", "b")
    s = run.step(leave("b"), closing("z", 1), run.join("a", 2))
    assert s.closed is Closed.CLOSED
    assert (s.complete, spell(s.live)) == (True, "a b")


# ---- P5.2: suspects ---------------------------------------------------------------------------------------------


def test_a_suspect_goes_from_queue_and_forming_round_and_is_lost_from_a_complete_one() -> None:
    run = Run(2, 3).begin("a", "b")
    run.step(suspects="a")
    assert run.who == "b |"
    assert inc("a") not in run.state.nodes

    run = completed(2, 2, "a", "b")
    run.step(run.join("c"), run.join("d"))
    s = run.step(suspects="a c")
    assert run.who == "a b | d"
    assert s.gone == {inc("a"): Gone.LOST}
    assert (inc("a") in s.nodes, inc("c") in s.nodes) == (True, False)


def test_a_death_or_a_leave_does_not_alter_a_frozen_round() -> None:
    """D8: everybody computes rank and size from the same roster, whenever they read."""
    run = completed(1, 3, "c", "a", "b")
    assert run.who == "a b c |"
    run.step(suspects="a")
    run.step(leave("b"))
    run.step(run.join("d"))
    assert run.who == "a b c | d"
    assert run.state.gone == {inc("a"): Gone.LOST, inc("b"): Gone.LEFT}


def test_a_suspect_with_a_newer_record_is_evicted_and_let_back_in() -> None:
    run = completed(2, 2, "a", "b")
    s = run.step(run.join("a", 2), suspects="a")
    assert s.gone == {inc("a"): Gone.LOST}
    assert run.who == "a b | a"


def test_a_suspect_let_back_in_holds_the_completion() -> None:
    """It is no more certain than a dropped connection; the next fold, without the suspicion, completes."""
    run = Run(2, 2).begin("a")
    run.step(run.join("a", 2), run.join("b"), suspects="a")
    assert not run.state.complete
    assert run.step().complete


def test_the_reason_that_came_first_stays() -> None:
    run = completed(1, 3, "a", "b", "c")
    run.step(leave("b"))
    assert run.step(suspects="b") is run.state
    run.step(run.join("c", 2))
    s = run.step(suspects="c")
    assert s.gone == {inc("b"): Gone.LEFT, inc("c"): Gone.REJOIN}
    assert run.who == "a b c |"


# ---- P5.3: records ----------------------------------------------------------------------------------------------


def test_joiners_fill_the_forming_round_in_order_and_then_the_queue() -> None:
    run = Run(3, 3).begin("a")
    s = run.step(*[run.join(name) for name in "cbxy"], shaky="a")
    assert (spell(s.participants), spell(s.queue), s.complete) == ("a c b", "x y", False)


def test_joiners_of_a_complete_round_wait() -> None:
    run = completed(1, 2, "a")
    run.step(run.join("b"))
    assert run.who == "a | b"
    assert run.state.round == 0


def test_a_leave_empties_the_seat() -> None:
    run = Run(2, 3).begin("a", "b")
    run.step(leave("b"))
    assert run.who == "a |"
    run = completed(2, 2, "a", "b")
    run.step(run.join("c"))
    run.step(leave("c"))
    assert run.who == "a b |"
    assert run.state.gone == {}


@pytest.mark.parametrize(("failed", "why"), [(False, Gone.REJOIN), (True, Gone.FAILED)])
def test_a_live_member_that_joins_again_is_gone_from_its_round_and_queued(failed: bool, why: Gone) -> None:
    run = completed(2, 2, "a", "b")
    s = run.step(run.join("b", 2, failed=failed))
    assert s.gone == {inc("b"): why}
    assert run.who == "a b | b"
    assert s.nodes.keys() == set(incs("a b"))


def test_repeated_intents_of_a_waiter_change_nothing_but_its_sequence() -> None:
    run = completed(2, 2, "a", "b")
    run.step(run.join("b", 2))
    s = run.step(run.join("b", 3))
    assert run.who == "a b | b"
    assert s.sequence(inc("b")) == 3


def test_a_join_with_other_settings_is_folded_but_not_admitted() -> None:
    """D15: its owner reads the settings and names both values."""
    run = Run(2, 2).begin("a")
    s = run.step(join("b", agreed=settings(4, 4)))
    assert run.who == "a |"
    assert s.sequence(inc("b")) == 1
    assert s.settings == settings(2, 2)
    s = run.step(*[join(name, agreed=settings(4, 4)) for name in "cde"])
    assert (spell(s.participants), s.complete) == ("a", False)


def test_a_vacant_state_adopts_the_settings_of_the_next_joiner() -> None:
    """P12: only the fold that finds nobody listed may replace them."""
    run = Run(2, 2).begin("a")
    s = run.step(leave("a"), join("b", agreed=settings(1, 3)), join("c", agreed=settings(2, 2)))
    assert s.settings == settings(1, 3)
    assert spell(s.participants) == "b"


def test_a_complete_round_keeps_its_settings_even_if_all_are_gone() -> None:
    run = completed(1, 2, "a")
    s = run.step(join("b", agreed=settings(1, 5)), suspects="a")
    assert (s.round, s.vacant, s.settings) == (1, True, settings(1, 2))
    assert run.step(join("b", 2, settings(1, 5))).settings == settings(1, 5)


def test_a_record_without_descriptor_or_settings_is_folded_and_no_more() -> None:
    run = Run(2, 3).begin("a")
    run.step(replace(run.join("b"), node=None), replace(run.join("c"), settings=None))
    assert run.who == "a |"
    assert (run.state.sequence(inc("b")), run.state.sequence(inc("c"))) == (1, 1)


# ---- P5.3: equal descriptors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("proven", ["", "ghost", "b"])
def test_an_equal_descriptor_is_held_until_both_are_proven(proven: str) -> None:
    """D14, R17, F12: neither superseded nor ranked together."""
    run = Run(2, 3).begin("ghost")
    held = run.join("b", place="ghost")
    before = run.state
    assert run.step(held, proven=proven) is before
    assert before.sequence(inc("b")) == 0
    run.step(held, proven="ghost b")
    assert run.who == "ghost b |"


def test_a_held_newcomer_enters_in_the_fold_that_buries_its_ghost() -> None:
    run = Run(2, 3).begin("ghost")
    run.step(run.join("b", place="ghost"), suspects="ghost")
    assert run.who == "b |"


def test_a_newcomer_of_a_complete_round_waits_at_once_when_its_ghost_is_gone() -> None:
    run = completed(2, 2, "a", "ghost")
    before = run.state
    assert run.step(run.join("b", place="ghost")) is before
    run.step(run.join("b", place="ghost"), suspects="ghost")
    assert run.who == "a ghost | b"


def test_two_newcomers_of_one_place_do_not_both_enter() -> None:
    run = Run(3, 4).begin("a")
    records = [run.join("b", place="p"), run.join("c", place="p")]
    run.step(*records)
    assert run.who == "a b |"
    run.step(*records, proven="b c")
    assert run.who == "a b c |"


def test_a_ghosts_own_late_join_is_held_as_well() -> None:
    """F12: a one-sided hold fails."""
    run = Run(2, 3).begin("a")
    run.step(run.join("b", place="p"))
    before = run.state
    assert run.step(run.join("ghost", place="p")) is before


def test_a_member_may_join_again_at_its_own_place() -> None:
    run = completed(2, 2, "a", "b")
    run.step(run.join("a", 2))
    assert run.who == "a b | a"


def test_rivals_are_incarnations_of_one_place_of_which_one_wants_in() -> None:
    run = Run(2, 4).begin("ghost", "a")
    new, same = run.join("b", place="ghost"), run.join("c", place="ghost")
    assert [set(group) for group in rivals(run.state, [new, same])] == [set(incs("ghost b c"))]
    assert rivals(run.state, [run.join("b"), run.join("ghost")]) == []
    assert rivals(run.state, [leave("b")]) == []
    run.step(suspects="ghost")
    assert rivals(run.state, [new]) == []


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
