"""Every transition of the agreed state, in this one file (protocol.md P5, P10, P13 and the finish rules).

``fold`` is pure and total: from a state, the announcements read after it and what the folder saw of the beats it
computes the next state, or returns the very same object when there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..node import NodeDesc, order_nodes
from .state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState

__all__ = (
    "ALL_RULES",
    "NOTHING_SEEN",
    "TOMBSTONE_LIMIT",
    "Evidence",
    "Fresh",
    "close",
    "create",
    "fence",
    "fold",
    "rivals",
)

#: Tombstones kept within one generation before the generation is bumped without a new round (protocol.md P10).
TOMBSTONE_LIMIT = 4096

#: Names of the rules that exploration can switch off one by one, to prove that its checker would notice.
ALL_RULES = frozenset(
    {
        "seq",  # P3: a record counts once
        "tomb",  # P10: tombstones live as long as their generation
        "promote",  # P5.5: a freed seat is given to the queue
        "hold",  # P5.3: equal descriptors are held until both are seen to beat
        "done",  # P5.4a: done only when all of P finished, not only the live
        "finish_before_suspects",  # P5.1b
        "finish_round",  # a FINISH counts for its own round only
        "open_unfinished",  # P5.4b: live holding only finished members opens the next round
    }
)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Random bytes for one write, handed in so that the core stays pure; 16 bytes each."""

    nonce: bytes
    round_nonce: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one observer saw of the beats.

    Attributes:
        suspects: Dead: no progress for the expiry, or the lease is gone.
        proven: Seen to beat since the observer first looked at them.
        shaky: A dropped connection or a missing lease, not yet a death: holds completion (P5.6).
        last_call_over: The last call has ended on this observer's clock.
    """

    suspects: frozenset[bytes] = frozenset()
    proven: frozenset[bytes] = frozenset()
    shaky: frozenset[bytes] = frozenset()
    last_call_over: bool = False


NOTHING_SEEN = Evidence()


def create(record: Record, *, epoch: bytes, fresh: Fresh) -> RendezvousState:
    """The first state of a run, with the creator's own JOIN folded from memory (P2, P4).

    Args:
        record: The creator's JOIN.
        epoch: 16 random bytes, one history each.
        fresh: Nonces of this write.

    Returns:
        RendezvousState: round ``1 + last_round`` of the creator, so that rounds grow over a lost store too.
    """
    if record.kind is not Kind.JOIN or record.node is None or record.settings is None:
        raise ValueError("only a JOIN with a descriptor and settings creates a state")
    return fold(_empty(record.settings, epoch, fresh), [record], fresh=fresh)


def fence(record: Record, settings: AgreedSettings, *, epoch: bytes, fresh: Fresh) -> RendezvousState:
    """A first state that lists nobody and has folded ``record``, a LEAVE.

    A node that withdraws while the store is empty may have a creating swap in flight; only a write of its own dooms
    that one (F2).
    """
    return fold(_empty(settings, epoch, fresh), [record], fresh=fresh)


def _empty(settings: AgreedSettings, epoch: bytes, fresh: Fresh) -> RendezvousState:
    return RendezvousState(settings=settings, epoch=epoch, nonce=fresh.nonce, round_nonce=fresh.round_nonce)


def close(state: RendezvousState, *, fresh: Fresh) -> RendezvousState:
    """Close the run id for ever (P13); a closed state comes back unchanged."""
    return state if state.is_closed else replace(state, closed=Closed.CLOSED, nonce=fresh.nonce)


class _Draft:
    """A state under construction: the mutable twin of :class:`RendezvousState`.

    Participants and queue are dictionaries used as ordered sets, so that a thousand records cost a thousand steps.
    """

    __slots__ = ("_places", "complete", "finished", "folded", "gone", "nodes", "participants", "queue", "settings")

    def __init__(self, state: RendezvousState) -> None:
        self.settings = state.settings
        self.complete = state.complete
        self.participants = dict.fromkeys(state.participants)
        self.gone = dict(state.gone)
        self.finished = set(state.finished)
        self.queue = dict.fromkeys(state.queue)
        self.nodes = dict(state.nodes)
        self.folded = dict(state.folded)
        self._places: dict[tuple[str, int, int], list[bytes]] | None = None

    def is_live(self, inc: bytes) -> bool:
        return inc in self.participants and inc not in self.gone

    def listed(self, inc: bytes) -> bool:
        return self.is_live(inc) or inc in self.queue

    def live(self) -> list[bytes]:
        return [inc for inc in self.participants if inc not in self.gone]

    def twins(self, inc: bytes, node: NodeDesc) -> list[bytes]:
        """Listed incarnations, other than ``inc``, at the place of ``node``."""
        if self._places is None:
            self._places = {}
            for known, desc in self.nodes.items():
                self._places.setdefault(desc.triple, []).append(known)
        return [known for known in self._places.get(node.triple, ()) if known != inc and self.listed(known)]

    def admit(self, inc: bytes, node: NodeDesc) -> None:
        """Into a forming round while it has room, else into the queue."""
        self.nodes[inc] = node
        if self._places is not None:
            self._places.setdefault(node.triple, []).append(inc)
        room = not self.complete and len(self.participants) < self.settings.max_nodes
        (self.participants if room else self.queue)[inc] = None

    def remove(self, inc: bytes, why: Gone) -> None:
        """P5.2: out of the queue; out of a forming round; a frozen round only notes why."""
        self.queue.pop(inc, None)
        if inc in self.participants:
            if self.complete:
                self.gone.setdefault(inc, why)
                return
            del self.participants[inc]
        self.nodes.pop(inc, None)


def fold(
    state: RendezvousState,
    records: Iterable[Record],
    *,
    fresh: Fresh,
    evidence: Evidence = NOTHING_SEEN,
    rules: frozenset[str] = ALL_RULES,
    tombstone_limit: int = TOMBSTONE_LIMIT,
) -> RendezvousState:
    """Apply announcements and evidence to a state, in the order of protocol.md P5.

    Args:
        state: The state that was read, before the announcements were.
        records: Announcements of ``state.gen``, in the store's creation order; folded ones are skipped.
        fresh: Nonces for the result.
        evidence: What the folder saw of the beats.
        rules: Which rules are in force; exploration switches single ones off.
        tombstone_limit: How many unlisted incarnations are remembered within one generation.

    Returns:
        RendezvousState: the same object when nothing changes, so that nothing is written.
    """
    if state.is_closed:
        return state
    known = state.folded
    news = [r for r in records if r.seq > known.get(r.inc, 0) or ("seq" not in rules and r.kind is Kind.JOIN)]
    if not news and not any(map(state.listed, evidence.suspects)) and _settled(state, evidence):
        return state  # the common case: a member that looks around
    draft = _Draft(state)
    floor, closed = state.floor, False

    if "finish_before_suspects" in rules:
        _fold_finishes(state, draft, news, rules)
    for inc in sorted(evidence.suspects):  # every folder writes the same
        draft.remove(inc, Gone.LOST)
    if "finish_before_suspects" not in rules:
        _fold_finishes(state, draft, news, rules)

    for record in news:
        inc = record.inc
        if record.seq <= draft.folded.get(inc, 0) and (
            "seq" in rules or draft.listed(inc) or inc in draft.participants
        ):
            continue
        if record.kind is Kind.CLOSE:
            draft.folded[inc] = record.seq
            closed = True
            break
        if record.kind is Kind.FINISH:
            draft.folded[inc] = record.seq
            continue
        if record.kind is Kind.LEAVE:
            draft.remove(inc, Gone.LEFT)
        elif not _fold_join(draft, record, evidence.proven, rules):
            continue  # held: stays unfolded
        elif draft.listed(inc):
            floor = max(floor, record.last_round + 1)
        draft.folded[inc] = max(draft.folded.get(inc, 0), record.seq)

    if closed:
        return replace(state, closed=Closed.CLOSED, nonce=fresh.nonce)
    if "tomb" not in rules:
        for inc in [inc for inc in draft.folded if not draft.listed(inc) and inc not in draft.participants]:
            del draft.folded[inc]
    return _settle(state, draft, evidence, floor, fresh, rules, tombstone_limit)


def rivals(state: RendezvousState, records: Iterable[Record]) -> list[list[bytes]]:
    """Incarnations at one place of which at least one wants in: the newcomers, and whoever is listed there (P5.3)."""
    places: dict[tuple[str, int, int], list[bytes]] = {}
    for record in records:
        wants_in = record.kind is Kind.JOIN and record.seq > state.sequence(record.inc)
        if wants_in and record.node is not None and not state.listed(record.inc):
            places.setdefault(record.node.triple, []).append(record.inc)
    if places:
        for inc, node in state.nodes.items():
            group = places.get(node.triple)
            if group is not None and state.listed(inc):
                group.append(inc)
    return [group for group in places.values() if len(group) > 1]


def _settled(state: RendezvousState, evidence: Evidence) -> bool:
    """Whether nothing follows from the state alone: to finish, open, promote or complete (P5.4-P5.6)."""
    size = len(state.participants)
    if state.complete:
        return not state.finished and len(state.gone) < size
    if state.queue and size < state.settings.max_nodes:
        return False
    return not _is_full(size, state.settings, evidence) or not evidence.shaky.isdisjoint(state.participants)


def _is_full(size: int, settings: AgreedSettings, evidence: Evidence) -> bool:
    """Compared with >=, so that no step over the exact number can miss it (defects.md D15)."""
    return size >= settings.max_nodes or (evidence.last_call_over and size >= settings.min_nodes)


def _fold_finishes(state: RendezvousState, draft: _Draft, news: Sequence[Record], rules: frozenset[str]) -> None:
    """Finish rule 1b: a FINISH, or the finish bit of a LEAVE, of a live member of *this* complete round."""
    for record in news:
        if record.kind not in (Kind.FINISH, Kind.LEAVE) or not record.round_nonce:
            continue
        inc = record.inc
        if record.seq <= draft.folded.get(inc, 0):
            continue
        mine = record.round_nonce == state.round_nonce or "finish_round" not in rules
        if draft.complete and mine and draft.is_live(inc):
            draft.finished.add(inc)
        if record.kind is Kind.FINISH:
            draft.folded[inc] = record.seq


def _fold_join(draft: _Draft, record: Record, proven: frozenset[bytes], rules: frozenset[str]) -> bool:
    """Fold one JOIN; False when it is held because a listed node has the same descriptor (P5.3)."""
    inc, node = record.inc, record.node
    if node is None or record.settings is None:
        return True
    if not (draft.complete or draft.participants or draft.queue):
        draft.settings = record.settings  # vacant: nobody is bound by the old ones (P12)
    if record.settings != draft.settings:
        return True  # not admitted: its owner reads the settings and says so
    if inc in draft.finished:
        return True  # an incarnation that finished is never admitted again
    # Who is listed beside its twin has passed this before.
    newcomer = "hold" in rules and not draft.listed(inc)
    if newcomer and (twins := draft.twins(inc, node)) and not proven.issuperset((inc, *twins)):
        return False
    if draft.complete and draft.is_live(inc):
        draft.gone[inc] = Gone.FAILED if record.failed else Gone.REJOIN
    if not draft.listed(inc):
        draft.admit(inc, node)
    return True


def _settle(
    state: RendezvousState,
    draft: _Draft,
    evidence: Evidence,
    floor: int,
    fresh: Fresh,
    rules: frozenset[str],
    tombstone_limit: int,
) -> RendezvousState:
    """Finish, open, promote and complete (P5.4-P5.6)."""
    settings = draft.settings
    number, round_nonce, gen, failures = state.round, state.round_nonce, state.gen, state.failures
    participants, queue = list(draft.participants), list(draft.queue)
    done = False
    if draft.complete:
        ended = participants if "done" in rules else draft.live()
        if draft.finished and draft.finished.issuperset(ended):
            done = True
        elif draft.finished.issuperset(draft.live()) if "open_unfinished" in rules else not draft.live():
            rank = {inc: k for k, inc in enumerate(participants)}
            # Members of the old round keep their seats before waiters do, in their old order (D42).
            queue.sort(key=lambda inc: rank.get(inc, len(rank)))
            failures += Gone.FAILED in draft.gone.values()
            number, round_nonce, gen = max(number + 1, floor), fresh.round_nonce, gen + 1
            draft.complete, draft.gone, draft.finished = False, {}, set()
            participants, queue = queue[: settings.max_nodes], queue[settings.max_nodes :]
            draft.nodes = {inc: draft.nodes[inc] for inc in (*participants, *queue)}
            _forget(state, draft)
    if draft.complete and draft.gone:
        # A re-joiner is ahead of the waiters in the views already, not only when its round opens (D42).
        queue.sort(key=lambda inc: inc not in draft.participants)
    if not draft.complete:
        number = max(number, floor)
        if queue and len(participants) < settings.max_nodes and "promote" in rules:
            free = settings.max_nodes - len(participants)
            participants, queue = participants + queue[:free], queue[free:]
        # A suspect that a newer record let back in is no more certain than one whose connection dropped (P5.6).
        doubtful = not (evidence.shaky.isdisjoint(participants) and evidence.suspects.isdisjoint(participants))
        if _is_full(len(participants), settings, evidence) and not doubtful:
            draft.complete = True
            order = order_nodes([draft.nodes[inc] for inc in participants], settings.rank_order)
            participants = [node.incarnation for node in order]
    heard = draft.folded
    if gen == state.gen and len(state.folded) - len(state.nodes) > tombstone_limit:
        gen += 1
        _forget(state, draft)
    after = RendezvousState(
        settings=settings,
        epoch=state.epoch,
        nonce=fresh.nonce,
        round_nonce=round_nonce,
        closed=Closed.DONE if done else Closed.NO,
        gen=gen,
        round=number,
        complete=draft.complete,
        participants=tuple(participants),
        gone=draft.gone,
        finished=frozenset(draft.finished),
        queue=tuple(queue),
        nodes=draft.nodes,
        folded=draft.folded,
        failures=failures,
        floor=max(floor, number),
    )
    # Neither the floor nor a new generation is written for its own sake: nobody writes only to forget.
    changed = (
        done
        or round_nonce != state.round_nonce
        or after.complete != state.complete
        or number != state.round
        or after.participants != state.participants
        or after.queue != state.queue
        or after.gone != state.gone
        or after.finished != state.finished
        or heard != state.folded
        or settings != state.settings
    )
    return after if changed else state


def _forget(state: RendezvousState, draft: _Draft) -> None:
    """Drop the tombstones of older folds, as a new generation may (P10).

    Those of this very fold stay: their owners read the acknowledgement of a LEAVE in the state that folded it (P9), and
    need not announce it once more.
    """
    known = state.folded
    draft.folded = {inc: seq for inc, seq in draft.folded.items() if inc in draft.nodes or seq > known.get(inc, 0)}
