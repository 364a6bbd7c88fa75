"""Every transition of the agreed state, in this one file (protocol.md P5, P10, P13 and the finish rules).

``fold`` is pure and total: from a state, the announcements read after it and what the folder saw of the beats it
computes the next state, or returns the very same object when there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..node import NodeDesc, order_nodes
from .state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState

__all__ = ("ALL_RULES", "NOTHING_SEEN", "TOMBSTONE_LIMIT", "Evidence", "Fresh", "close", "create", "fence", "fold")

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

    Participants and queue are dictionaries without values: ordered as lists are, and a thousand joins stay linear.
    """

    __slots__ = ("complete", "finished", "folded", "gone", "nodes", "participants", "queue", "settings", "triples")

    def __init__(self, state: RendezvousState) -> None:
        self.settings = state.settings
        self.complete = state.complete
        self.participants = dict.fromkeys(state.participants)
        self.gone = dict(state.gone)
        self.finished = set(state.finished)
        self.queue = dict.fromkeys(state.queue)
        self.nodes = dict(state.nodes)
        self.folded = dict(state.folded)
        self.triples: dict[tuple[str, int, int], set[bytes]] | None = None

    def listed(self, inc: bytes) -> bool:
        return (inc in self.participants and inc not in self.gone) or inc in self.queue

    def live(self) -> list[bytes]:
        return [inc for inc in self.participants if inc not in self.gone]

    def add(self, node: NodeDesc) -> None:
        """Into a forming round that has room, else into the queue."""
        inc = node.incarnation
        self.nodes[inc] = node
        if self.triples is not None:
            self.triples.setdefault(node.triple, set()).add(inc)
        if not self.complete and len(self.participants) < self.settings.max_nodes:
            self.participants[inc] = None
        else:
            self.queue[inc] = None

    def remove(self, inc: bytes, why: Gone) -> None:
        """P5.2: out of the queue; out of a forming round; a frozen round only notes why."""
        self.queue.pop(inc, None)
        if inc in self.participants:
            if self.complete:
                self.gone.setdefault(inc, why)
            else:
                del self.participants[inc]
        if inc not in self.participants:
            self.nodes.pop(inc, None)

    def twins(self, node: NodeDesc) -> list[bytes]:
        """Listed nodes with the same address, process and local id, but of another incarnation."""
        if self.triples is None:
            self.triples = {}
            for inc, known in self.nodes.items():
                self.triples.setdefault(known.triple, set()).add(inc)
        return [inc for inc in self.triples.get(node.triple, ()) if inc != node.incarnation and self.listed(inc)]


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
    if state.closed is not Closed.NO:
        return state
    news = [r for r in records if r.seq > state.folded.get(r.inc, 0) or ("seq" not in rules and r.kind is Kind.JOIN)]
    if not news and not evidence.suspects and _settled(state, evidence):
        return state
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


def _settled(state: RendezvousState, evidence: Evidence) -> bool:
    """Whether nothing follows from the state alone: what a fold wrote is settled but for the end of the last call."""
    size = len(state.participants)
    full = size >= state.settings.max_nodes or (evidence.last_call_over and size >= state.settings.min_nodes)
    return state.complete or not full


def _fold_finishes(state: RendezvousState, draft: _Draft, news: Sequence[Record], rules: frozenset[str]) -> None:
    """Finish rule 1b: a FINISH, or the finish bit of a LEAVE, of a live member of *this* complete round."""
    for record in news:
        if record.kind not in (Kind.FINISH, Kind.LEAVE) or not record.round_nonce:
            continue
        inc = record.inc
        if record.seq <= draft.folded.get(inc, 0):
            continue
        mine = record.round_nonce == state.round_nonce or "finish_round" not in rules
        if draft.complete and mine and inc in draft.participants and inc not in draft.gone:
            draft.finished.add(inc)
        if record.kind is Kind.FINISH:
            draft.folded[inc] = record.seq


def _fold_join(draft: _Draft, record: Record, proven: frozenset[bytes], rules: frozenset[str]) -> bool:
    """Fold one JOIN; False when it is held because a listed node has the same descriptor (P5.3)."""
    inc, node = record.inc, record.node
    if node is None or record.settings is None:
        return True
    if not (draft.complete or draft.participants or draft.queue):
        draft.settings = record.settings  # nobody is bound by the old ones (P12)
    if record.settings != draft.settings:
        return True  # not admitted: its owner reads the settings and says so
    if inc in draft.finished:
        return True  # an incarnation that finished is never admitted again
    if "hold" in rules:
        twins = draft.twins(node)
        if any(twin not in proven or inc not in proven for twin in twins):
            return False
    if draft.complete and inc in draft.participants and inc not in draft.gone:
        draft.gone[inc] = Gone.FAILED if record.failed else Gone.REJOIN
    if not draft.listed(inc):
        draft.add(node)
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
    done = False
    if draft.complete:
        ended = draft.participants if "done" in rules else draft.live()
        if draft.finished and draft.finished.issuperset(ended):
            done = True
        elif draft.finished.issuperset(draft.live()) if "open_unfinished" in rules else not draft.live():
            # Members of the old round keep their seats before waiters do, in their old order (D42).
            waiting = [*(inc for inc in draft.participants if inc in draft.queue)]
            waiting += [inc for inc in draft.queue if inc not in draft.participants]
            failures += Gone.FAILED in draft.gone.values()
            number, round_nonce, gen = max(number + 1, floor), fresh.round_nonce, gen + 1
            draft.complete, draft.participants = False, dict.fromkeys(waiting[: settings.max_nodes])
            draft.queue = dict.fromkeys(waiting[settings.max_nodes :])
            draft.gone, draft.finished = {}, set()
            keep = {*draft.participants, *draft.queue}
            draft.nodes = {inc: node for inc, node in draft.nodes.items() if inc in keep}
            # Older tombstones go with their generation (P10). Those of this very fold stay: their owners read the
            # acknowledgement of a LEAVE in the state that folded it (P9), and need not announce it once more.
            draft.folded = {
                inc: seq for inc, seq in draft.folded.items() if inc in keep or seq > state.folded.get(inc, 0)
            }
    if not draft.complete:
        number = max(number, floor)
        if draft.queue and len(draft.participants) < settings.max_nodes and "promote" in rules:
            free = settings.max_nodes - len(draft.participants)
            for inc in list(draft.queue)[:free]:
                del draft.queue[inc]
                draft.participants[inc] = None
        size = len(draft.participants)
        full = size >= settings.max_nodes or (evidence.last_call_over and size >= settings.min_nodes)
        if full and not evidence.shaky.intersection(draft.participants):
            draft.complete = True
            order = order_nodes([draft.nodes[inc] for inc in draft.participants], settings.rank_order)
            draft.participants = dict.fromkeys(node.incarnation for node in order)
    if len(draft.folded) - len(draft.nodes) > tombstone_limit:
        gen += 1
        draft.folded = {inc: seq for inc, seq in draft.folded.items() if inc in draft.nodes}

    after = RendezvousState(
        settings=settings,
        epoch=state.epoch,
        nonce=state.nonce,
        round_nonce=round_nonce,
        closed=Closed.DONE if done else Closed.NO,
        gen=gen,
        round=number,
        complete=draft.complete,
        participants=tuple(draft.participants),
        gone=draft.gone,
        finished=frozenset(draft.finished),
        queue=tuple(draft.queue),
        nodes=draft.nodes,
        folded=draft.folded,
        failures=failures,
        floor=max(floor, number),
    )
    before = state if state.floor == after.floor else replace(state, floor=after.floor)
    return state if after == before else replace(after, nonce=fresh.nonce)
