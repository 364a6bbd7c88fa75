"""``decide(view, now) -> Decision``: what one node does next, why, and when to ask again (protocol.md P6, P8, P9).

A pure function over one observer's view. It performs nothing: the handler announces, swaps, returns or sleeps as told.
The reason is a sentence with counts; the same one serves logs, ``status()``, time-outs and tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from .fold import ALL_RULES, TOMBSTONE_LIMIT, Evidence, Fresh, create, fence, fold, rivals
from .liveness import Sighting, judge
from .state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState

if TYPE_CHECKING:
    from ..node import NodeDesc

__all__ = (
    "BATCH",
    "DECISION_RULES",
    "TURN",
    "Action",
    "Decision",
    "Me",
    "Memory",
    "Role",
    "View",
    "decide",
    "own_record",
    "sentence",
)

#: Seconds between the turns of two possible folders when nothing moves (protocol.md P6).
TURN = 0.2
#: Seconds that the first folder waits for more newcomers before it folds those it has (protocol.md P6: 10-50 ms).
BATCH = 0.02

#: Names of the rules of this file that exploration can switch off, as it does with those of ``fold``.
DECISION_RULES = frozenset(
    {
        "relearn",  # P8.5: who was evicted learns it
        "enter_seq",  # P8.4: a round is entered only if it has folded this very intent, and once
        "withdraw",  # P9: only a folded LEAVE is an acknowledgement
        "own_memory",  # P4: the own record comes from memory
        "take_over",  # P6: anybody may fold
    }
)


class Role(Enum):
    """What this node wants at the moment."""

    JOINING = "joining"
    MEMBER = "member"
    FINISHED = "finished"
    LEAVING = "leaving"


class Action(Enum):
    """What the handler does next."""

    WAIT = "wait"  # for news, at most until wake_at
    ANNOUNCE = "announce"  # append own record to the state's generation
    FOLD = "fold"  # compare-and-swap the proposal over the state that was read
    ENTER = "enter"  # this node is a member of a completed round: hand it out
    REJOIN = "rejoin"  # evicted while it wanted in: announce again with the next sequence
    CLOSED = "closed"
    GRACEFUL = "graceful"
    TIMEOUT = "timeout"
    MISMATCH = "mismatch"  # this node's settings are not the run's
    ACKNOWLEDGED = "acknowledged"  # the withdrawal is certain
    RELEASED = "released"  # a finished member owes nothing any more
    EVICTED = "evicted"  # the round goes on without this member
    CHANGED = "changed"  # members were lost, left or wait: told once per change


@dataclass(frozen=True, slots=True)
class Me:
    """The observer itself.

    Attributes:
        inc: Own incarnation.
        node: Own descriptor.
        settings: The settings this node was started with.
        role: What it wants.
        seq: Sequence of its current intent; 0 before the first.
        announced: Generation its current record was appended to; None before that.
        last_round: The last round returned to it, -1 if none.
        round_nonce: The round it is a member of, or that it finished.
        failed: Its current JOIN follows a failure of its own work.
        finished: It has finished the round ``round_nonce``.
        notify_lost: It wants to be told of lost members.
    """

    inc: bytes
    node: NodeDesc
    settings: AgreedSettings
    role: Role
    seq: int = 0
    announced: tuple[bytes, int] | None = None
    last_round: int = -1
    round_nonce: bytes = b""
    failed: bool = False
    finished: bool = False
    notify_lost: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """What decide remembers from one call to the next, because it concerns time.

    Attributes:
        join_since: When the join clock started.
        min_seen: When this observer first saw the minimum reached, and in which round.
        work: When there was first something to fold, at which nonce, and whether the timer was re-armed once.
        redundant: It was a spare when it last looked.
        told: The change that the caller was told last.
    """

    join_since: float = 0.0
    min_seen: tuple[bytes, float] | None = None
    work: tuple[float, bytes, bool] | None = None
    redundant: bool = False
    told: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Everything that decides: the agreed state, the announcements and what this observer saw of the beats.

    Attributes:
        state: The state as read; None when there is none.
        records: Announcements of the state's generation that were read after it.
        me: The observer.
        fresh: Random bytes for a proposal.
        epoch: Random bytes for a state that this node would create.
        sightings: Heartbeats seen.
        memory: The last decision's memory.
        join: Join time-out in seconds.
        grace: Seconds that a missing lease is given before it is a death.
        jitter: In [0, 1): spreads the turns.
        rules: Rules in force.
        tombstone_limit: As in ``fold``.
    """

    state: RendezvousState | None
    records: tuple[Record, ...]
    me: Me
    fresh: Fresh
    epoch: bytes = b""
    sightings: Mapping[bytes, Sighting] = field(default_factory=lambda: MappingProxyType({}))
    memory: Memory = Memory()
    join: float = math.inf
    grace: float = 1.0
    jitter: float = 0.0
    rules: frozenset[str] = ALL_RULES | DECISION_RULES
    tombstone_limit: int = TOMBSTONE_LIMIT


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and when the answer may change without news.

    Attributes:
        action: What to do.
        reason: A sentence with counts.
        wake_at: The next instant to ask again, on the clock of ``now``; ``inf`` when only news can change the answer.
        proposal: FOLD: the state to write.
        memory: To be handed in next time.
    """

    action: Action
    reason: str
    wake_at: float = math.inf
    proposal: RendezvousState | None = None
    memory: Memory = Memory()


def own_record(me: Me) -> Record | None:
    """The announcement of this node's current intent; None for a member, who announces nothing."""
    if me.role is Role.JOINING:
        return Record(me.inc, me.seq, Kind.JOIN, me.node, me.settings, me.last_round, me.failed)
    if me.role is Role.FINISHED:
        return Record(me.inc, me.seq, Kind.FINISH, round_nonce=me.round_nonce)
    if me.role is Role.LEAVING:
        return Record(me.inc, me.seq, Kind.LEAVE, round_nonce=me.round_nonce if me.finished else b"")
    return None


def decide(view: View, now: float) -> Decision:
    """Decide what this node does next.

    Args:
        view: What it knows.
        now: Its own monotonic clock, in seconds.

    Returns:
        Decision: never raises; every view has an answer.
    """
    state, me, memory = view.state, view.me, view.memory
    if state is None:
        return _without_state(view, now)
    redundant = state.is_redundant(me.inc)
    if memory.redundant and not redundant and me.role is Role.JOINING:
        memory = replace(memory, join_since=now)  # a spare that gets a seat has its whole join time again
    # A closed state admits nobody any more: who was a spare before stays one.
    if memory.redundant != redundant and not (state.is_closed and memory.redundant):
        memory = replace(memory, redundant=redundant)
    if memory.told and not _news(me, state):
        memory = replace(memory, told=())  # a waiter that goes and comes back is news again
    verdict = _verdict(view, state, memory, now)
    if verdict is not None:
        return verdict
    return _fold_or_wait(view, state, memory, now)


def _without_state(view: View, now: float) -> Decision:
    me, memory = view.me, view.memory
    if me.role is Role.LEAVING:
        record = own_record(me)
        assert record is not None  # a leaver always has one
        proposal = fence(record, me.settings, epoch=view.epoch, fresh=view.fresh)
        return Decision(Action.FOLD, "withdrawing from an empty store", proposal=proposal, memory=memory)
    if me.role is Role.FINISHED:
        return Decision(Action.RELEASED, "the store lost its state after this node had finished", memory=memory)
    if me.role is Role.MEMBER:
        return Decision(Action.EVICTED, f"the store lost the state of round {me.last_round}", memory=memory)
    if now >= memory.join_since + view.join:
        return Decision(Action.TIMEOUT, "the store holds no state", memory=memory)
    record = own_record(me)
    assert record is not None  # a joiner always has one
    proposal = create(record, epoch=view.epoch, fresh=view.fresh)
    return Decision(Action.FOLD, "the first node creates the state", proposal=proposal, memory=memory)


def _verdict(view: View, state: RendezvousState, memory: Memory, now: float) -> Decision | None:
    """The answers that end or redirect what this node wants, in the order of P8; None when it goes on."""
    me, inc = view.me, view.me.inc

    def answer(action: Action, reason: str) -> Decision:
        return Decision(action, reason, memory=memory)

    listed, folded = state.listed(inc), state.sequence(inc)
    live = state.is_member(inc)
    if me.role is Role.JOINING:
        if not state.vacant and (wrong := state.settings.differences(me.settings)):
            return answer(Action.MISMATCH, "the run's settings against this node's: " + "; ".join(wrong))
        current = folded >= me.seq or "enter_seq" not in view.rules
        if live and current and (state.round > me.last_round or "enter_seq" not in view.rules):
            return answer(Action.ENTER, f"round {state.round} is complete with {_nodes(len(state.participants))}")
        if state.closed is Closed.DONE or (state.is_closed and memory.redundant):
            return answer(Action.GRACEFUL, f"the job ended ({state.closed.value}) without needing this spare")
        if state.is_closed:
            return answer(Action.CLOSED, "the rendezvous was closed for ever")
        if folded >= me.seq and not listed and "relearn" in view.rules:
            return answer(Action.REJOIN, "this node was evicted while it waited")
        if now >= memory.join_since + view.join and not memory.redundant:
            return answer(Action.TIMEOUT, sentence(view, now))
    elif me.role is Role.MEMBER:
        if state.is_closed:
            return answer(Action.CLOSED, "the rendezvous was closed for ever")
        if (state.round_nonce != me.round_nonce or not live) and "relearn" in view.rules:
            return answer(Action.EVICTED, f"round {me.last_round} goes on without this node")
        if (news := _news(me, state)) and news != memory.told:
            return Decision(Action.CHANGED, _change(state), memory=replace(memory, told=news))
    elif me.role is Role.FINISHED:
        if state.closed is Closed.DONE:
            return answer(Action.RELEASED, "done: every member has finished")
        if state.is_closed:
            return answer(Action.RELEASED, "closed: the rendezvous was closed for ever")
        if state.round_nonce != me.round_nonce or not live:
            return answer(Action.RELEASED, "released: the others form a new round without those that have finished")
    elif me.role is Role.LEAVING and (state.is_closed or _withdrawn(view, state)):
        return answer(Action.ACKNOWLEDGED, "the withdrawal is in the state")
    if me.role is not Role.MEMBER and folded < me.seq and me.announced != (state.epoch, state.gen):
        return answer(Action.ANNOUNCE, f"announcing {me.role.value} in generation {state.gen}")
    return None


def _news(me: Me, state: RendezvousState) -> tuple[object, ...]:
    """What a member has to be told: who is owed and why, and who waits; empty when there is nothing."""
    owed = state.owed if me.notify_lost else ()
    waiting = () if state.finished else state.wait_list
    return (state.round_nonce, owed, tuple(state.gone[who] for who in owed), waiting) if owed or waiting else ()


def _withdrawn(view: View, state: RendezvousState) -> bool:
    """P9: certain only when the LEAVE itself was folded; "not listed" is not enough (protocol.md F1, F2, F17)."""
    if state.listed(view.me.inc):
        return False
    return state.sequence(view.me.inc) >= view.me.seq or "withdraw" not in view.rules


def _fold_or_wait(view: View, state: RendezvousState, memory: Memory, now: float) -> Decision:
    """P5 and P6: is there something to fold, and is it this node's turn?"""
    me = view.me
    records = _with_own(view, state)
    judgement = judge(
        view.sightings, now, expiry=state.settings.expiry, grace=view.grace, rivals=rivals(state, records)
    )
    seen, wake_at = judgement.evidence, judgement.wake_at
    # This node proves itself: it beats, or it would not be here.
    suspects, proven = seen.suspects - {me.inc}, seen.proven | {me.inc}
    place = _place(view, state, suspects, records)
    # Last call: a duration counted from when this observer first saw the minimum reached in this round.
    over = False
    if not state.complete and len(state.participants) >= state.settings.min_nodes:
        if memory.min_seen is None or memory.min_seen[0] != state.round_nonce:
            memory = replace(memory, min_seen=(state.round_nonce, now))
        assert memory.min_seen is not None
        ends = memory.min_seen[1] + state.settings.last_call + TURN * min(place, 8)
        over = now >= ends
        if not over:
            wake_at = min(wake_at, ends)
    elif memory.min_seen is not None:
        memory = replace(memory, min_seen=None)
    evidence = Evidence(suspects, proven, seen.shaky, over)
    proposal = fold(
        state,
        records,
        fresh=view.fresh,
        evidence=evidence,
        rules=view.rules,
        tombstone_limit=view.tombstone_limit,
    )
    if proposal is state:
        if memory.work is not None:
            memory = replace(memory, work=None)
        return Decision(Action.WAIT, sentence(view, now, memory), _patience(view, memory, wake_at), memory=memory)
    if memory.work is None:
        memory = replace(memory, work=(now, state.nonce, False))
    elif memory.work[1] != state.nonce and not memory.work[2]:
        memory = replace(memory, work=(now, state.nonce, True))  # re-armed once, or a take-over would starve (F21)
    assert memory.work is not None
    due = memory.work[0] + _delay(view, state, proposal, evidence, place)
    if now >= due and (place == 0 or "take_over" in view.rules or me.role is Role.LEAVING or state.complete):
        return Decision(Action.FOLD, _describe(state, proposal), proposal=proposal, memory=memory)
    wake_at = min(wake_at, due)
    return Decision(Action.WAIT, sentence(view, now, memory), _patience(view, memory, wake_at), memory=memory)


def _with_own(view: View, state: RendezvousState) -> tuple[Record, ...]:
    """The records that were read, with this node's own one from memory, never from the store (P4, F4)."""
    own = own_record(view.me)
    if own is None or own.seq <= state.sequence(own.inc) or "own_memory" not in view.rules:
        return view.records
    if any(r.inc == own.inc and r.seq == own.seq for r in view.records):
        return tuple(own if r.inc == own.inc and r.seq == own.seq else r for r in view.records)
    return (*view.records, own)


def _place(view: View, state: RendezvousState, suspects: frozenset[bytes], records: tuple[Record, ...]) -> int:
    """This node's turn among those who may fold: the ring first, then the unfolded records (P6)."""
    ring, at = state.ring, state.position(view.me.inc)
    dead = {state.position(inc) for inc in suspects} - {-1}
    if at >= 0:
        # The predecessor of a dead node buries it first; who is farther away waits longer.
        return min((k - at - 1) % len(ring) for k in dead) if dead else at
    before = len(ring) - len(dead)
    for record in records:
        if record.inc == view.me.inc:
            break
        before += record.seq > state.sequence(record.inc)
    return before


def _delay(view: View, state: RendezvousState, proposal: RendezvousState, evidence: Evidence, place: int) -> float:
    """How long after the work appeared this node folds it."""
    if view.me.role is Role.LEAVING:
        # A leaver has a second, not turns; the jitter grows with the world, so that few fold for many.
        return view.jitter * min(0.3, BATCH + 0.002 * len(state.nodes))
    if place == 0:
        completes = (proposal.complete and proposal.round_nonce != state.round_nonce) or not state.complete
        urgent = evidence.suspects or proposal.is_closed or (proposal.complete and completes)
        return 0.0 if urgent else BATCH
    return TURN * (min(place, 8) + view.jitter)


def _patience(view: View, memory: Memory, wake_at: float) -> float:
    """The join time-out is a reason to wake up as well, except for a spare."""
    if view.me.role is Role.JOINING and not memory.redundant:
        return min(wake_at, memory.join_since + view.join)
    return wake_at


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _change(state: RendezvousState) -> str:
    """Why a member should re-join."""
    parts = []
    for why, verb in ((Gone.LOST, "lost"), (Gone.LEFT, "left"), (Gone.FAILED, "failed"), (Gone.REJOIN, "re-joining")):
        who = [inc for inc in state.owed if state.gone[inc] is why]
        if who:
            parts.append(f"{verb}: {state.names(who)}")
    if state.wait_list and not state.finished:
        parts.append(f"waiting: {state.names(state.wait_list)}")
    return f"round {state.round}: " + "; ".join(parts)


def _describe(before: RendezvousState, after: RendezvousState) -> str:
    if after.is_closed:
        return f"round {after.round} is {after.closed.value}"
    if after.complete and not (before.complete and before.round_nonce == after.round_nonce):
        return f"completing round {after.round} with {_nodes(len(after.participants))}"
    if after.round_nonce != before.round_nonce:
        return f"opening round {after.round} with {_nodes(len(after.participants))}"
    return f"round {after.round}: {len(after.live)} in, {len(after.queue)} waiting"


def sentence(view: View, now: float, memory: Memory | None = None) -> str:
    """One sentence on where this node stands: counts, who is missing and what ends the wait."""
    state, me = view.state, view.me
    memory = view.memory if memory is None else memory
    if state is None:
        return "nobody has joined yet"
    settings = state.settings
    bounds = f"min {settings.min_nodes}, max {settings.max_nodes}"
    if state.is_closed:
        return f"the rendezvous is {state.closed.value} in round {state.round}"
    if not state.complete:
        text = f"{len(state.participants)}/{settings.max_nodes} nodes joined round {state.round} ({bounds})"
        if len(state.participants) < settings.min_nodes:
            missing = settings.min_nodes - len(state.participants)
            text += f"; at least {missing} more must join"
        elif memory.min_seen is not None and memory.min_seen[0] == state.round_nonce:
            left = max(0.0, memory.min_seen[1] + settings.last_call - now)
            text += f"; last call ends in {left:.1f} s"
        if not state.listed(me.inc) and me.role is Role.JOINING:
            text += "; this node is not in yet"
        return text
    text = f"round {state.round} is complete with {_nodes(len(state.participants))} ({bounds})"
    if me.inc in state.live:
        if state.finished:
            rest = [inc for inc in state.live if inc not in state.finished]
            return f"{text}; {len(state.finished)} finished, still at work: {state.names(rest) or 'nobody'}"
        return f"{text}; {_change(state)}" if state.owed or state.wait_list else text
    if me.inc in state.redundancy:
        return f"{text}; this node is a spare, {_nodes(len(state.queue))} in the queue"
    return f"{text}; waiting until its members re-join: {state.names(state.live)}"
