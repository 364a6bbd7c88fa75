"""Finishing (protocol.md, "Finish"): who counts as finished, when the job is done, and who re-forms without whom."""

from __future__ import annotations

import pytest

from arendezvous.core.state import Closed, Gone, Record

from .kit import Run, completed, finish, inc, incs, join, leave, settings, spell


def finished(run: Run, name: str, seq: int = 2) -> Record:
    return finish(name, run.state.round_nonce, seq)


def left_finished(run: Run, name: str, seq: int = 2) -> Record:
    return leave(name, seq, finished=run.state.round_nonce)


def test_a_finish_is_noted_and_folded_and_nobody_else_is_concerned() -> None:
    run = completed(2, 2, "a", "b")
    s = run.step(finished(run, "a"))
    assert s.finished == set(incs("a"))
    assert s.sequence(inc("a")) == 2
    assert (s.closed, s.complete, spell(s.live), s.owed) == (Closed.NO, True, "a b", ())


def test_all_finished_is_done() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"))
    s = run.step(finished(run, "b"))
    assert s.closed is Closed.DONE
    assert s.is_closed
    assert run.step(run.join("c")) is s


def test_done_does_not_wait_for_the_queue() -> None:
    run = completed(1, 1, "a")
    run.step(run.join("x"))
    assert run.step(finished(run, "a")).closed is Closed.DONE
    assert run.who == "a | x"


def test_a_finish_of_another_round_is_folded_only() -> None:
    run = completed(1, 1, "a")
    old = run.state.round_nonce
    run.step(run.join("a", 2))
    s = run.step(finish("a", old, 3))
    assert (s.round, s.closed, s.finished) == (1, Closed.NO, frozenset())
    assert s.sequence(inc("a")) == 3


def test_a_finish_without_a_round_is_folded_only() -> None:
    run = completed(1, 1, "a")
    assert run.step(finish("a", b"")).finished == frozenset()


def test_nobody_finishes_a_forming_round() -> None:
    run = Run(2, 2).begin("a")
    s = run.step(finished(run, "a"))
    assert (s.finished, s.sequence(inc("a"))) == (frozenset(), 2)


@pytest.mark.parametrize("who", ["outsider", "waiter", "lost", "rejoiner"])
def test_only_a_live_member_finishes(who: str) -> None:
    run = completed(1, 3, "a", "lost", "rejoiner")
    run.step(run.join("waiter"), run.join("rejoiner", 2), suspects="lost")
    s = run.step(finished(run, who, 3))
    assert (s.finished, s.sequence(inc(who))) == (frozenset(), 3)


def test_the_finish_bit_of_a_leave_counts_as_a_finish() -> None:
    run = completed(2, 2, "a", "b")
    s = run.step(left_finished(run, "a"))
    assert (s.finished, dict(s.gone)) == (frozenset(incs("a")), {inc("a"): Gone.LEFT})
    assert s.owed == ()
    assert run.step(left_finished(run, "b")).closed is Closed.DONE


def test_a_plain_leave_is_no_finish() -> None:
    run = completed(2, 2, "a", "b")
    s = run.step(leave("a"))
    assert (s.finished, spell(s.owed)) == (frozenset(), "a")


def test_a_finish_is_folded_before_a_suspicion_of_the_same_fold() -> None:
    """1b before 2: who finished and then died is finished."""
    run = completed(2, 2, "a", "b")
    s = run.step(finished(run, "a"), suspects="a")
    assert (s.finished, dict(s.gone), s.owed) == (frozenset(incs("a")), {inc("a"): Gone.LOST}, ())
    assert run.step(finished(run, "b")).closed is Closed.DONE


def test_a_death_before_the_finish_was_folded_is_a_loss() -> None:
    run = completed(2, 2, "a", "b")
    run.step(suspects="a")
    s = run.step(finished(run, "a"))
    assert (s.finished, spell(s.owed)) == (frozenset(), "a")


def test_done_is_not_judged_by_the_live_only() -> None:
    """A false eviction must not end the job while its victim works."""
    run = completed(2, 3, "a", "b", "c")
    run.step(suspects="c")
    run.step(finished(run, "a"))
    s = run.step(finished(run, "b"))
    assert s.closed is Closed.NO
    assert (s.round, s.complete, run.who) == (1, False, "|")


def test_the_unfinished_form_anew_without_the_finished() -> None:
    run = completed(1, 3, "a", "b", "c")
    run.step(finished(run, "a"), suspects="b")
    s = run.step(run.join("c", 2))
    assert (s.round, s.complete, run.who) == (1, False, "c |")
    assert s.finished == frozenset()
    assert not s.listed(inc("a"))


def test_the_lost_ones_successor_takes_up_the_work_that_is_owed() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"))
    s = run.step(run.join("b2"), suspects="b")
    assert (s.round, run.who, s.complete) == (1, "b2 |", False)


def test_a_round_opens_empty_when_only_the_finished_are_live_and_nobody_waits() -> None:
    run = completed(1, 2, "a", "b")
    run.step(finished(run, "a"))
    s = run.step(leave("b"))
    assert (s.round, s.vacant, s.closed) == (1, True, Closed.NO)


def test_a_finished_incarnation_is_never_admitted_again() -> None:
    run = completed(2, 3, "a", "b", "c")
    run.step(finished(run, "a"))
    s = run.step(run.join("a", 3))
    assert (s.gone, run.who) == ({}, "a b c |")
    assert s.sequence(inc("a")) == 3
    run.step(left_finished(run, "a", 4))
    assert run.step(run.join("a", 5)).queue == ()


def test_a_newcomer_at_the_place_of_a_finished_member_waits_for_its_end() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"))
    before = run.state
    assert run.step(run.join("a2", place="a")) is before
    run.step(run.join("a2", place="a"), suspects="a")
    assert run.who == "a b | a2"


def test_while_the_job_ends_waiters_are_spares_and_nobody_is_told() -> None:
    run = completed(2, 3, "a", "b")
    run.step(run.join("x"))
    assert run.state.num_nodes_waiting() == 1
    s = run.step(finished(run, "a"))
    assert (s.seats, s.num_nodes_waiting(), spell(s.redundancy)) == (0, 0, "x")
    s = run.step(suspects="b")
    assert (s.round, run.who) == (1, "x |"), "owed work re-opens the job to the waiters"


def test_a_loss_after_a_finish_counts_as_a_change_only_while_work_is_owed() -> None:
    run = completed(1, 3, "a", "b", "c")
    run.step(finished(run, "a"))
    assert run.step(suspects="a").num_nodes_waiting() == 0
    assert run.step(suspects="b").num_nodes_waiting() == 1


def test_the_finish_of_a_failing_round_counts_its_failure() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"))
    s = run.step(run.join("b", 2, failed=True))
    assert (s.round, s.failures, run.who) == (1, 1, "b |")


def test_the_first_of_close_and_finish_wins() -> None:
    run = completed(1, 1, "a")
    close = Record(inc("a"), 3, join("a").kind.CLOSE)
    s = run.step(finished(run, "a"), close)
    assert s.closed is Closed.CLOSED
    run = completed(1, 1, "a")
    assert run.step(finished(run, "a")).closed is Closed.DONE
    assert run.step(close).closed is Closed.DONE


def test_finishing_twice_changes_the_sequence_only() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"))
    s = run.step(finished(run, "a", 3))
    assert (s.finished, s.sequence(inc("a"))) == (frozenset(incs("a")), 3)
    assert run.step(finished(run, "a", 3)) is s


def test_fewer_unfinished_than_the_minimum_keep_forming() -> None:
    run = completed(2, 2, "a", "b")
    run.step(finished(run, "a"), suspects="b")
    assert run.state.round == 1
    s = run.step(join("b2", agreed=settings(2, 2)), over=True)
    assert (s.complete, run.who) == (False, "b2 |")
