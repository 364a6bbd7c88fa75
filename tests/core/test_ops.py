"""What one node does next: every action of every role, in the order of protocol.md P8. Turns have their own module."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from arendezvous.core.fold import Fresh, close
from arendezvous.core.ops import Action, Decision, Me, Memory, Role, View, decide, own_record
from arendezvous.core.state import Closed, Kind, Record, RendezvousState, invariants

from .kit import EPOCH, Run, closing, completed, finish, inc, leave, node, settings, spell

FRESH = Fresh(b"N" * 16, b"R" * 16)
OTHER = b"f" * 16


def me(name: str, role: Role = Role.JOINING, run: Run | None = None, **more: Any) -> Me:
    """The observer ``name``, having announced itself in the state's generation."""
    values: dict[str, Any] = {"seq": 1, "settings": run.agreed if run else settings()}
    if run is not None:
        values["announced"] = (run.state.epoch, run.state.gen)
    if role in (Role.MEMBER, Role.FINISHED) and run is not None:
        values |= {"round_nonce": run.state.round_nonce, "last_round": run.state.round}
    return Me(inc(name), node(name), role=role, **{**values, **more})


def view(state: RendezvousState | None, who: Me, *records: Record, **more: Any) -> View:
    return View(state, records, who, FRESH, epoch=EPOCH, **more)


def ask(state: RendezvousState | None, who: Me, *records: Record, now: float = 0.0, **more: Any) -> Decision:
    return decide(view(state, who, *records, **more), now)


def does(state: RendezvousState | None, who: Me, *records: Record, now: float = 0.0, **more: Any) -> Action:
    return ask(state, who, *records, now=now, **more).action


# ---- the own announcement ---------------------------------------------------------------------------------------


def test_each_role_announces_its_own_intent() -> None:
    joiner = own_record(me("a", seq=4, last_round=2, failed=True))
    assert joiner == Record(inc("a"), 4, Kind.JOIN, node("a"), settings(), 2, True)
    assert own_record(me("a", Role.MEMBER)) is None
    assert own_record(me("a", Role.FINISHED, seq=5, round_nonce=b"r" * 16)) == finish("a", b"r" * 16, 5)
    assert own_record(me("a", Role.LEAVING, seq=5, round_nonce=b"r" * 16)) == leave("a", 5)
    done = me("a", Role.LEAVING, seq=5, round_nonce=b"r" * 16, finished=True)
    assert own_record(done) == leave("a", 5, finished=b"r" * 16)


# ---- no state ---------------------------------------------------------------------------------------------------


def test_a_joiner_creates_the_state() -> None:
    decision = ask(None, me("a", settings=settings(2, 2)))
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert (decision.proposal.epoch, spell(decision.proposal.participants)) == (EPOCH, "a")
    assert invariants(decision.proposal) == []


def test_a_joiner_whose_time_is_over_creates_nothing() -> None:
    assert does(None, me("a"), join=5.0, now=4.999) is Action.FOLD
    decision = ask(None, me("a"), join=5.0, now=5.0)
    assert (decision.action, decision.reason) == (Action.TIMEOUT, "the store holds no state")


def test_a_leaver_fences_an_empty_store() -> None:
    """F2: a creating swap of its own may still be on its way."""
    decision = ask(None, me("a", Role.LEAVING, seq=2))
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert (decision.proposal.vacant, decision.proposal.sequence(inc("a"))) == (True, 2)
    assert does(decision.proposal, me("a", Role.LEAVING, seq=2)) is Action.ACKNOWLEDGED


def test_a_member_is_evicted_and_a_finished_one_released_when_the_state_is_lost() -> None:
    run = completed(1, 1, "a")
    decision = ask(None, me("a", Role.MEMBER, run))
    assert (decision.action, decision.reason) == (Action.EVICTED, "the store lost the state of round 0")
    assert does(None, me("a", Role.FINISHED, run)) is Action.RELEASED


# ---- joining ----------------------------------------------------------------------------------------------------


def test_another_setting_is_a_mismatch_that_names_both_values() -> None:
    """D15, P8.2."""
    run = Run(2, 4).begin("a")
    decision = ask(run.state, me("b", settings=settings(3, 3)))
    assert decision.action is Action.MISMATCH
    assert decision.reason == "the run's settings against this node's: min_nodes: 2 against 3; max_nodes: 4 against 3"


def test_a_vacant_state_binds_nobody() -> None:
    run = Run(2, 4).begin("a")
    run.step(leave("a"))
    joiner = me("b", settings=settings(1, 1), announced=(EPOCH, 0))
    decision = ask(run.state, joiner, now=1.0)
    assert decision.action is not Action.MISMATCH
    decision = decide(view(run.state, joiner, memory=decision.memory), 9.0)
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert (decision.proposal.settings, decision.proposal.complete) == (settings(1, 1), True)


def test_a_member_of_a_completed_round_enters_it() -> None:
    run = completed(2, 2, "a", "b")
    decision = ask(run.state, me("a", run=run))
    assert (decision.action, decision.reason) == (Action.ENTER, "round 0 is complete with 2 nodes")


def test_a_round_is_entered_though_it_was_closed_first() -> None:
    """D46; P8.4 before P8.3."""
    run = completed(2, 2, "a", "b")
    run.step(closing("b"))
    assert does(run.state, me("a", run=run)) is Action.ENTER


def test_a_rejoiner_does_not_enter_the_round_that_it_had() -> None:
    """F10: neither before its new intent is folded nor the same number twice."""
    run = completed(1, 1, "a")
    assert does(run.state, me("a", run=run, seq=2, last_round=0)) is not Action.ENTER
    assert does(run.state, me("a", run=run, seq=1, last_round=0)) is not Action.ENTER
    run.step(run.join("a", 2))
    assert does(run.state, me("a", run=run, seq=2, last_round=0)) is Action.ENTER


def test_a_member_that_is_gone_does_not_enter() -> None:
    run = completed(1, 3, "a", "b")
    run.step(suspects="a")
    assert does(run.state, me("a", run=run)) is Action.REJOIN


def test_the_closed_run_is_told_to_a_joiner() -> None:
    run = completed(1, 1, "a")
    shut = close(run.state, fresh=run.nonces())
    decision = ask(shut, me("b", run=run))
    assert (decision.action, decision.reason) == (Action.CLOSED, "the rendezvous was closed for ever")


def test_a_spare_leaves_gracefully_when_the_run_is_closed() -> None:
    """B.2 rows 1 and 2."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("x"))
    waiting = ask(run.state, me("x", run=run))
    assert (waiting.action, waiting.memory.redundant) == (Action.WAIT, True)
    shut = close(run.state, fresh=run.nonces())
    assert does(shut, me("x", run=run), memory=waiting.memory) is Action.GRACEFUL


def test_a_spare_that_first_reads_of_itself_in_the_closed_state_leaves_gracefully_too() -> None:
    run = completed(2, 2, "a", "b")
    run.step(run.join("x"))
    assert does(close(run.state, fresh=run.nonces()), me("x", run=run)) is Action.GRACEFUL


def test_a_waiter_with_a_seat_is_told_of_the_close_as_an_error() -> None:
    run = completed(1, 2, "a")
    run.step(run.join("x"))
    assert does(close(run.state, fresh=run.nonces()), me("x", run=run)) is Action.CLOSED


def test_a_done_job_needs_no_waiter() -> None:
    run = completed(1, 2, "a")
    run.step(run.join("x"))
    run.step(finish("a", run.state.round_nonce))
    decision = ask(run.state, me("x", run=run))
    assert (decision.action, decision.reason) == (Action.GRACEFUL, "the job ended (done) without needing this spare")
    assert does(run.state, me("y", run=run)) is Action.GRACEFUL


@pytest.mark.parametrize("complete", [False, True])
def test_an_evicted_waiter_announces_itself_anew(complete: bool) -> None:
    """F9, D35: its sequence is folded, so nobody would fold it again."""
    run = completed(2, 2, "a", "b") if complete else Run(2, 3).begin("a")
    run.step(run.join("x"))
    run.step(suspects="x")
    decision = ask(run.state, me("x", run=run))
    assert (decision.action, decision.reason) == (Action.REJOIN, "this node was evicted while it waited")


def test_the_join_time_ends_exactly_at_its_deadline() -> None:
    run = Run(2, 4).begin("a")
    waiting = ask(run.state, me("a", run=run), join=5.0, memory=Memory(join_since=10.0), now=14.999)
    assert (waiting.action, waiting.wake_at) == (Action.WAIT, 15.0)
    decision = ask(run.state, me("a", run=run), join=5.0, memory=Memory(join_since=10.0), now=15.0)
    assert decision.action is Action.TIMEOUT
    assert decision.reason == "1/4 nodes joined round 0 (min 2, max 4); at least 1 more must join"


def test_a_deadline_that_does_not_add_up_exactly_is_still_reached() -> None:
    """Rounding: (a + b) - a < b for many a and b; a handler that wakes at a + b must not wait for a + b again."""
    run = Run(2, 4).begin("a")
    since, limit = 0.1, 4.0
    assert (since + limit) - since < limit
    for state in (run.state, None):
        wake_at = since + limit
        assert does(state, me("a", run=run), join=limit, memory=Memory(join_since=since), now=wake_at) is Action.TIMEOUT


def test_a_spare_has_no_deadline_and_gets_its_whole_time_with_its_seat() -> None:
    """B.2 row 3; P8.6."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("x"))
    spare = ask(run.state, me("x", run=run), join=5.0, now=100.0)
    assert (spare.action, spare.wake_at) == (Action.WAIT, math.inf)
    run.step(suspects="a")
    seated = ask(run.state, me("x", run=run), join=5.0, now=101.0, memory=spare.memory)
    assert (seated.action, seated.memory.join_since) == (Action.WAIT, 101.0)
    assert does(run.state, me("x", run=run), join=5.0, now=105.9, memory=seated.memory) is Action.WAIT
    assert does(run.state, me("x", run=run), join=5.0, now=106.0, memory=seated.memory) is Action.TIMEOUT


def test_a_rejoiner_behind_spares_is_no_spare() -> None:
    """D42 in the views: its join clock runs."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("spare"))
    run.step(run.join("b", 2))
    decision = ask(run.state, me("b", run=run, seq=2, last_round=0), join=5.0, now=1.0)
    assert (decision.memory.redundant, decision.wake_at) == (False, 5.0)


@pytest.mark.parametrize("announced", [None, (EPOCH, 7), (OTHER, 0)])
def test_a_joiner_announces_itself_once_per_generation(announced: tuple[bytes, int] | None) -> None:
    """P8.7: a new generation, or the state of another store, is announced to anew."""
    run = Run(2, 3).begin("a")
    decision = ask(run.state, me("b", run=run, announced=announced))
    assert (decision.action, decision.reason) == (Action.ANNOUNCE, "announcing joining in generation 0")
    assert does(run.state, me("b", run=run)) is Action.WAIT


def test_what_is_folded_is_not_announced_again() -> None:
    run = Run(2, 3).begin("a")
    assert does(run.state, me("a", run=run, announced=None)) is Action.WAIT


# ---- members ----------------------------------------------------------------------------------------------------


def test_a_member_in_an_undisturbed_round_waits() -> None:
    run = completed(2, 3, "a", "b")
    decision = ask(run.state, me("a", Role.MEMBER, run), now=1.0)
    assert (decision.action, decision.wake_at) == (Action.WAIT, math.inf)
    assert decision.reason == "round 0 is complete with 2 nodes (min 2, max 3)"


def test_a_member_is_told_of_the_close() -> None:
    run = completed(2, 2, "a", "b")
    assert does(close(run.state, fresh=run.nonces()), me("a", Role.MEMBER, run)) is Action.CLOSED


@pytest.mark.parametrize("how", ["evicted", "next round", "other store"])
def test_a_member_learns_that_the_round_goes_on_without_it(how: str) -> None:
    """D9."""
    run = completed(1, 3, "a", "b")
    who = me("a", Role.MEMBER, run)
    run.step(suspects="a")
    if how == "next round":
        run.step(run.join("b", 2))
    elif how == "other store":
        run = completed(1, 1, "b")
        run.state = replace(run.state, round_nonce=OTHER, epoch=OTHER)
    decision = ask(run.state, who)
    assert (decision.action, decision.reason) == (Action.EVICTED, "round 0 goes on without this node")


def test_a_change_is_told_once_and_in_words() -> None:
    """D32, R5."""
    run = completed(2, 3, "a", "b")
    who = me("a", Role.MEMBER, run)
    run.step(suspects="b")
    first = ask(run.state, who)
    assert (first.action, first.reason) == (Action.CHANGED, "round 0: lost: b_1_0")
    again = ask(run.state, who, memory=first.memory)
    assert (again.action, again.memory) == (Action.WAIT, first.memory)
    run.step(run.join("c"))
    more = ask(run.state, who, memory=again.memory)
    assert (more.action, more.reason) == (Action.CHANGED, "round 0: lost: b_1_0; waiting: c_1_0")


def test_every_kind_of_change_has_its_word() -> None:
    run = completed(1, 5, *"abcde")
    who = me("a", Role.MEMBER, run)
    run.step(leave("b"), run.join("c", 2, failed=True), run.join("d", 2), suspects="e")
    assert ask(run.state, who).reason == (
        "round 0: lost: e_1_0; left: b_1_0; failed: c_1_0; re-joining: d_1_0; waiting: c_1_0, d_1_0"
    )


def test_a_member_that_does_not_want_to_hear_of_losses_hears_of_waiters_only() -> None:
    run = completed(2, 3, "a", "b")
    who = me("a", Role.MEMBER, run, notify_lost=False)
    run.step(suspects="b")
    assert does(run.state, who) is Action.WAIT
    run.step(run.join("c"))
    assert does(run.state, who) is Action.CHANGED


def test_spares_are_no_news() -> None:
    """D28."""
    run = completed(2, 2, "a", "b")
    run.step(run.join("x"))
    assert does(run.state, me("a", Role.MEMBER, run)) is Action.WAIT


def test_a_waiter_that_went_away_is_news_again_when_it_returns() -> None:
    run = completed(2, 3, "a", "b")
    who = me("a", Role.MEMBER, run)
    run.step(run.join("c"))
    told = ask(run.state, who)
    run.step(leave("c", 2))
    quiet = ask(run.state, who, memory=told.memory)
    assert (quiet.action, quiet.memory.told) == (Action.WAIT, ())
    run.step(run.join("c", 3))
    assert does(run.state, who, memory=quiet.memory) is Action.CHANGED


def test_the_same_loss_in_the_next_round_is_news_again() -> None:
    run = completed(2, 2, "a", "b")
    told = ask(run.step(suspects="b"), me("a", Role.MEMBER, run))
    run.step(run.join("a", 2), run.join("b", 2))
    assert (run.state.round, run.state.complete) == (1, True)
    run.step(suspects="b")
    assert does(run.state, me("a", Role.MEMBER, run), memory=told.memory) is Action.CHANGED


def test_an_unfinished_member_ignores_waiters_once_somebody_has_finished() -> None:
    run = completed(2, 3, "a", "b")
    run.step(run.join("x"), finish("b", run.state.round_nonce))
    who = me("a", Role.MEMBER, run)
    assert does(run.state, who) is Action.WAIT
    run.step(leave("b", 3))
    assert does(run.state, who) is Action.WAIT, "it had finished: nothing is owed"


def test_an_unfinished_member_is_told_when_work_is_owed() -> None:
    run = completed(3, 3, "a", "b", "c")
    run.step(run.join("x"), finish("b", run.state.round_nonce))
    run.step(suspects="c")
    decision = ask(run.state, me("a", Role.MEMBER, run))
    assert (decision.action, decision.reason) == (Action.CHANGED, "round 0: lost: c_1_0")


# ---- finished ---------------------------------------------------------------------------------------------------


def test_a_finished_member_announces_folds_and_waits_for_the_others() -> None:
    run = completed(2, 2, "a", "b")
    who = me("a", Role.FINISHED, run, seq=2, announced=None)
    assert does(run.state, who) is Action.ANNOUNCE
    who = replace(who, announced=(EPOCH, 0))
    waiting = ask(run.state, who, now=0.0)
    decision = ask(run.state, who, now=1.0, memory=waiting.memory)
    assert (waiting.action, decision.action) == (Action.WAIT, Action.FOLD)
    assert decision.proposal is not None
    run.state = decision.proposal
    decision = ask(run.state, who)
    assert decision.action is Action.WAIT
    assert decision.reason.endswith("1 finished, still at work: b_1_0")


def test_a_finished_member_learns_which_end_it_was() -> None:
    run = completed(1, 3, "a", "b", "c")
    who = me("a", Role.FINISHED, run, seq=2)
    run.step(finish("a", run.state.round_nonce))
    assert does(run.state, who) is Action.WAIT
    assert ask(close(run.state, fresh=run.nonces()), who).reason.startswith("closed:")
    before = run.state
    run.step(suspects="a")
    assert ask(run.state, who).reason.startswith("released:")
    run.state = before
    run.step(finish("b", run.state.round_nonce), finish("c", run.state.round_nonce))
    done = ask(run.state, who)
    assert (run.state.closed, done.action, done.reason) == (
        Closed.DONE,
        Action.RELEASED,
        "done: every member has finished",
    )
    run.state = before
    run.step(leave("b"), run.join("c", 2))
    assert run.state.round == 1
    assert does(run.state, who) is Action.RELEASED


# ---- leaving ----------------------------------------------------------------------------------------------------


def test_not_listed_is_no_acknowledgement() -> None:
    """P9, F1, F2, F17: only a folded LEAVE is."""
    run = Run(2, 3).begin("a")
    who = me("b", Role.LEAVING, run, seq=2)
    decision = ask(run.state, who)
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert decision.proposal.sequence(inc("b")) == 2
    assert does(decision.proposal, who) is Action.ACKNOWLEDGED


def test_a_leaver_announces_and_folds_from_memory() -> None:
    run = Run(2, 3).begin("a", "b")
    assert does(run.state, me("b", Role.LEAVING, run, seq=2, announced=None)) is Action.ANNOUNCE
    decision = ask(run.state, me("b", Role.LEAVING, run, seq=2))
    assert decision.action is Action.FOLD
    assert decision.proposal is not None
    assert spell(decision.proposal.participants) == "a"


def test_a_leaver_folds_its_own_intent_and_not_an_older_record_of_the_store() -> None:
    """P4, F4."""
    run = Run(2, 3).begin("a")
    decision = ask(run.state, me("b", Role.LEAVING, run, seq=2), run.join("b", 1))
    assert decision.proposal is not None
    assert (spell(decision.proposal.participants), decision.proposal.sequence(inc("b"))) == ("a", 2)


def test_a_closed_run_acknowledges_every_leave() -> None:
    run = completed(2, 2, "a", "b")
    shut = close(run.state, fresh=run.nonces())
    assert does(shut, me("a", Role.LEAVING, run, seq=2)) is Action.ACKNOWLEDGED


def test_a_leaver_that_is_still_listed_is_not_done_although_its_sequence_is_folded() -> None:
    run = Run(2, 3).begin("a")
    assert does(run.state, me("a", Role.LEAVING, run, seq=1)) is not Action.ACKNOWLEDGED


def test_a_leaving_finished_member_carries_its_finish() -> None:
    run = completed(2, 2, "a", "b")
    who = me("a", Role.LEAVING, run, seq=3, finished=True, round_nonce=run.state.round_nonce)
    decision = ask(run.state, who)
    assert decision.proposal is not None
    assert spell(decision.proposal.finished) == "a"
