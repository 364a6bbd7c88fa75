"""Announcements into the agreed state, in the order of protocol.md P5; the finish rules have a module of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arendezvous.core.fold import close, create, fence, fold, rivals
from arendezvous.core.state import Closed, Gone, invariants

from .kit import EPOCH, Nonces, Run, closing, completed, inc, incs, join, leave, settings, spell

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


def test_twins_that_are_both_listed_join_again_without_being_held() -> None:
    """Once told apart, two containers of one place re-join as promptly as anybody."""
    run = Run(2, 2).begin("a")
    run.step(run.join("b", place="a"), proven="a b")
    again = run.join("b", 2, place="a")
    assert rivals(run.state, [again]) == []
    run.step(again)
    assert spell(run.state.queue) == "b"


def test_a_twin_that_was_evicted_is_held_like_any_newcomer() -> None:
    run = Run(2, 2).begin("a")
    run.step(run.join("b", place="a"), proven="a b")
    run.step(suspects="b")
    before = run.state
    assert run.step(run.join("b", 2, place="a")) is before
    run.step(run.join("b", 2, place="a"), proven="a b")
    assert spell(run.state.queue) == "b"
