"""The agreed value: its views and its invariants, each of which a broken state violates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arendezvous.core.state import AgreedSettings, Closed, Gone, RendezvousState, invariants

from .kit import EPOCH, completed, finish, inc, incs, leave, node, settings, spell


def state(members: str = "", queue: str = "", low: int = 1, high: int = 3, **more: Any) -> RendezvousState:
    """A state with the named participants and waiters, all of sequence 1; anything else may be overridden."""
    listed = dict.fromkeys([*members.split(), *queue.split()])
    values: dict[str, Any] = {
        "settings": settings(low, high),
        "epoch": EPOCH,
        "nonce": b"n" * 16,
        "round_nonce": b"r" * 16,
        "participants": incs(members),
        "queue": incs(queue),
        "nodes": {inc(name): node(name) for name in listed},
        "folded": dict.fromkeys(map(inc, listed), 1),
    }
    return RendezvousState(**{**values, **more})


def full(members: str = "a b c", queue: str = "", **more: Any) -> RendezvousState:
    return state(members, queue, complete=True, **more)


def gone(**why: Gone) -> dict[bytes, Gone]:
    return {inc(name): reason for name, reason in why.items()}


# ---- views -----------------------------------------------------------------------------------------------------


def test_the_expiry_is_the_interval_times_the_attempts() -> None:
    assert settings(keep_alive_interval=0.5, keep_alive_max_attempt=4).expiry == 2.0


def test_differing_settings_name_both_values() -> None:
    ours, theirs = AgreedSettings(2, 4, last_call=1.0), AgreedSettings(3, 4, last_call=2.0)
    assert ours.differences(ours) == []
    assert ours.differences(theirs) == ["min_nodes: 2 against 3", "last_call: 1.0 against 2.0"]


def test_every_setting_is_compared() -> None:
    ours, theirs = AgreedSettings(1, 2), AgreedSettings(2, 3, "natural", 1.0, 2.0, 9)
    named = [text.split(":")[0] for text in ours.differences(theirs)]
    assert named == list(AgreedSettings.__slots__)


def test_the_ring_is_the_live_in_rank_order_and_then_the_queue() -> None:
    s = full("a b c", "x y", gone=gone(b=Gone.LOST))
    assert spell(s.live) == "a c"
    assert spell(s.ring) == "a c x y"
    assert [s.position(one) for one in incs("a c x y b z")] == [0, 1, 2, 3, -1, -1]


def test_a_member_that_is_gone_is_not_listed_unless_it_waits() -> None:
    s = full("a b c", "b", gone=gone(b=Gone.REJOIN, c=Gone.LEFT))
    assert [s.listed(one) for one in incs("a b c z")] == [True, True, False, False]
    assert [s.is_live(one) for one in incs("a b c z")] == [True, False, False, False]
    assert [s.is_member(one) for one in incs("a b c z")] == [True, False, False, False]


def test_nobody_is_a_member_of_a_forming_round() -> None:
    assert state("a").is_live(inc("a"))
    assert not state("a").is_member(inc("a"))


def test_a_state_is_vacant_only_when_nobody_is_listed_and_no_round_is_complete() -> None:
    assert state().vacant
    assert not state("a").vacant
    assert not full("a", gone=gone(a=Gone.LOST)).vacant


@pytest.mark.parametrize(
    ("live", "waiters", "high", "waiting", "spares"),
    [(2, 0, 2, 0, 0), (2, 3, 2, 0, 3), (1, 3, 2, 1, 2), (1, 1, 4, 1, 0), (2, 5, 4, 2, 3)],
)
def test_waiters_count_only_as_far_as_there_are_seats(
    live: int, waiters: int, high: int, waiting: int, spares: int
) -> None:
    """D28, R13, R14: min(waiters, max - members); a full round has spares and nobody waiting."""
    members, queue = " ".join("abcd"[:live]), " ".join("vwxyz"[:waiters])
    s = full(members, queue, high=high)
    assert len(s.wait_list) == waiting == s.num_nodes_waiting()
    assert len(s.redundancy) == spares
    assert s.wait_list + s.redundancy == s.queue
    assert [one for one in s.queue if s.is_redundant(one)] == list(s.redundancy)
    assert not any(s.is_redundant(one) for one in s.live)


@pytest.mark.parametrize("why", [Gone.LOST, Gone.LEFT])
def test_a_loss_adds_one_and_frees_a_seat(why: Gone) -> None:
    """F14: a frozen roster must not keep the dead one's seat."""
    s = full("a b c", "x", gone=gone(b=why))
    assert s.seats == 1
    assert s.num_nodes_waiting() == 2
    assert s.num_nodes_waiting(notify_lost_nodes=False) == 1
    assert full("a b c", gone=gone(b=why)).num_nodes_waiting() == 1


def test_two_losses_add_one() -> None:
    assert full(gone=gone(a=Gone.LOST, b=Gone.LEFT)).num_nodes_waiting() == 1


def test_a_rejoiner_counts_once_as_a_waiter() -> None:
    assert full("a b", "b", gone=gone(b=Gone.REJOIN)).num_nodes_waiting() == 1


@pytest.mark.parametrize("why", [Gone.REJOIN, Gone.FAILED])
def test_a_rejoiner_that_vanished_from_the_queue_is_a_loss(why: Gone) -> None:
    s = full("a b", gone=gone(b=why))
    assert s.num_nodes_waiting() == 1
    assert s.num_nodes_waiting(notify_lost_nodes=False) == 0


def test_nothing_is_waiting_before_a_round_is_complete_or_after_the_close() -> None:
    assert state("a b c", "x").num_nodes_waiting() == 0
    assert full("a b", "x", closed=Closed.CLOSED).num_nodes_waiting() == 0


def test_when_some_have_finished_and_nothing_is_owed_nobody_gets_a_seat() -> None:
    s = full("a b", "x", finished=frozenset(incs("a")))
    assert s.seats == 0
    assert spell(s.redundancy) == "x"
    assert s.num_nodes_waiting() == 0


def test_when_work_is_owed_seats_are_counted_without_the_finished() -> None:
    s = full("a b c", "x y z", finished=frozenset(incs("a")), gone=gone(b=Gone.LOST))
    assert spell(s.owed) == "b"
    assert s.seats == 2
    assert spell(s.wait_list) == "x y"
    assert s.num_nodes_waiting() == 3


def test_a_member_that_finished_and_went_is_not_owed() -> None:
    s = full("a b", finished=frozenset(incs("a")), gone=gone(a=Gone.LEFT))
    assert s.owed == ()
    assert s.num_nodes_waiting() == 0


def test_names_are_readable_and_at_most_eight() -> None:
    s = state("a")
    assert s.name(inc("a")) == "a_1_0"
    assert s.name(inc("b")) == f"incarnation {inc('b').hex()[:8]}"
    many = [inc(f"n{k}") for k in range(11)]
    assert s.names(many).endswith(" and 3 more")
    assert s.names(many).count("incarnation") == 8


def test_views_are_no_part_of_equality_and_do_not_survive_a_change() -> None:
    s, other = state("a b"), state("a b")
    assert spell(s.ring) == "a b"
    assert s == other
    assert spell(replace(s, participants=incs("a")).ring) == "a"


# ---- invariants ------------------------------------------------------------------------------------------------

GOOD = full("a b", "x", gone=gone(a=Gone.LOST), finished=frozenset(incs("b")))


def test_good_states_violate_nothing() -> None:
    assert invariants(GOOD) == []
    assert invariants(state()) == []
    assert invariants(state("a b", low=2)) == []
    assert invariants(full("a b", closed=Closed.DONE, finished=frozenset(incs("a b")))) == []


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (replace(state("a"), participants=incs("a a")), "a participant is listed twice"),
        (replace(full("a", "x"), queue=incs("x x")), "a waiter is queued twice"),
        (full("a b", "b"), "a live participant is queued as well"),
        (full("a", gone=gone(z=Gone.LOST)), "somebody is gone who was no participant"),
        (full("a", finished=frozenset(incs("z"))), "somebody finished who was no participant"),
        (state("a", gone=gone(a=Gone.LEFT)), "somebody is gone from a round that is forming"),
        (state("a", finished=frozenset(incs("a"))), "somebody finished a round that is forming"),
        (state("a b c d"), "more participants than max_nodes"),
        (full("a", low=2), "a complete round below min_nodes"),
        (state(low=3, high=2), "min_nodes and max_nodes are out of order"),
        (state(low=0, high=2), "min_nodes and max_nodes are out of order"),
        (state("a", nodes={}), "descriptors do not match the listed nodes"),
        (state("", nodes={inc("a"): node("a")}, folded={inc("a"): 1}), "descriptors do not match the listed nodes"),
        (state("a", folded={}), "a listed node has no folded sequence"),
        (state("a", folded={inc("a"): 0}), "a folded sequence is not positive"),
        (state(round=-1, failures=-2), "a counter is negative"),
        (state(gen=-1), "a counter is negative"),
        (state(failures=1), "more failures than rounds"),
        (state(nonce=b""), "a nonce is empty"),
        (state(round_nonce=b""), "a nonce is empty"),
        (state(epoch=b""), "a nonce is empty"),
        (
            full("a b", closed=Closed.DONE, finished=frozenset(incs("a"))),
            "closed as done although a member has not finished",
        ),
        (state("a", closed=Closed.DONE), "closed as done although a member has not finished"),
    ],
)
def test_a_broken_state_is_told_in_a_sentence(broken: RendezvousState, sentence: str) -> None:
    assert sentence in invariants(broken)


def then(before: RendezvousState, **changes: Any) -> tuple[RendezvousState, RendezvousState]:
    return before, replace(before, **{"nonce": b"m" * 16, **changes})


NEXT = {"round": 1, "gen": 1, "round_nonce": b"s" * 16}


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (then(state(), nonce=b"n" * 16, gen=1), "a write kept the nonce of the state it replaced"),
        (then(state(closed=Closed.CLOSED), closed=Closed.NO), "a closed run was written again"),
        (then(state(round=2), round=1), "the round shrank"),
        (then(state(gen=2), gen=1), "the generation shrank"),
        (then(state(round=2, failures=2), failures=1), "the failure count shrank"),
        (then(state(floor=2), floor=1), "the round floor shrank"),
        (then(full("a"), complete=False), "a complete round was undone"),
        (then(full("a"), round=1), "a complete round changed its number"),
        (then(full("a b"), participants=incs("b a")), "the participants of a complete round changed"),
        (then(full("a", finished=frozenset(incs("a"))), finished=frozenset()), "a member's finish was undone"),
        (then(full("a", gone=gone(a=Gone.LOST)), gone={}), "a member that was gone came back to its round"),
        (then(state("a"), **NEXT), "a round was opened over one that was forming"),
        (then(full("a"), **NEXT, complete=False), ""),
        (then(full("a"), **{**NEXT, "round": 0}, complete=False), "a round was opened under an old number"),
        (then(full("a"), **{**NEXT, "gen": 0}, complete=False), "a round was opened in an old generation"),
        (then(state(folded={inc("a"): 2}), folded={}), "a folded sequence was forgotten within its generation"),
        (
            then(state(folded={inc("a"): 2}), folded={inc("a"): 1}),
            "a folded sequence was forgotten within its generation",
        ),
        (then(state(folded={inc("a"): 2}), folded={}, gen=1), ""),
    ],
)
def test_a_broken_step_is_told_in_a_sentence(step: tuple[RendezvousState, RendezvousState], sentence: str) -> None:
    before, after = step
    assert sentence in invariants(after, before) if sentence else invariants(after, before) == []


def test_steps_of_another_history_are_not_compared() -> None:
    assert invariants(state(epoch=b"f" * 16), full("a", round=9)) == []


def test_every_sentence_of_invariants_is_tried_above() -> None:
    import inspect
    import re

    source = inspect.getsource(invariants)
    told = set(re.findall(r'"((?:a|an|the|somebody|more|min_nodes|descriptors|closed) [^"]+)"', source))
    here = inspect.getsource(inspect.getmodule(test_every_sentence_of_invariants_is_tried_above))  # type: ignore[arg-type]
    assert len(told) >= 27
    assert [sentence for sentence in told if here.count(f'"{sentence}"') == 0] == []


def test_what_a_member_is_told_follows_its_round() -> None:
    """R5, R22: from quiet, over a newcomer and a death, to the end."""
    run = completed(1, 3, "a", "b")
    assert run.state.num_nodes_waiting() == 0
    assert run.step(run.join("c")).num_nodes_waiting() == 1
    assert run.step(suspects="b").num_nodes_waiting() == 2
    assert run.step(leave("c")).num_nodes_waiting() == 1
    run = completed(1, 3, "a", "b")
    assert run.step(finish("b", run.state.round_nonce)).num_nodes_waiting() == 0
    assert run.step(run.join("c")).num_nodes_waiting() == 0
