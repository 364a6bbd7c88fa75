"""What the nodes of a run agree on: one immutable value, changed only by compare-and-swap (protocol.md P2).

Heartbeats are not in here; neither is any instant. Views such as the wait list are derived, never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..node import NodeDesc

__all__ = (
    "AgreedSettings",
    "Closed",
    "Gone",
    "Kind",
    "Record",
    "RendezvousState",
    "invariants",
)


class Closed(Enum):
    """Whether the run id still takes rounds."""

    NO = "no"
    CLOSED = "closed"  # by set_closed() or shutdown()
    DONE = "done"  # every member of a round has finished


class Gone(Enum):
    """Why a member of a completed round is no longer live."""

    LEFT = "left"
    REJOIN = "rejoin"
    FAILED = "failed"  # re-joins because its work failed: the round that this opens counts as a failure
    LOST = "lost"


class Kind(Enum):
    """What a node announces."""

    JOIN = "join"
    LEAVE = "leave"
    FINISH = "finish"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class AgreedSettings:
    """The settings that the first joiner records for all (protocol.md P12); durations in seconds."""

    min_nodes: int
    max_nodes: int
    rank_order: str = "address"
    last_call: float = 30.0
    keep_alive_interval: float = 5.0
    keep_alive_max_attempt: int = 3

    @property
    def expiry(self) -> float:
        """Seconds without progress of its counter after which a node is dead."""
        return self.keep_alive_interval * self.keep_alive_max_attempt

    def differences(self, other: AgreedSettings) -> list[str]:
        """Each field in which ``other`` differs, as ``name: mine against theirs``."""
        return [
            f"{name}: {getattr(self, name)} against {getattr(other, name)}"
            for name in self.__slots__
            if getattr(self, name) != getattr(other, name)
        ]


@dataclass(frozen=True, slots=True)
class Record:
    """One announcement of one incarnation (protocol.md P1).

    Attributes:
        inc: The announcing incarnation, 16 bytes.
        seq: Counted by the owner, one more per new intent; repeating an intent keeps it.
        kind: The intent.
        node: The descriptor; JOIN only.
        settings: The settings the joiner asks for; JOIN only.
        last_round: The last round that was returned to this incarnation, -1 if none.
        failed: This JOIN follows a failure of the node's own work.
        round_nonce: FINISH, and LEAVE of a finished member: the round that was finished.
    """

    inc: bytes
    seq: int
    kind: Kind
    node: NodeDesc | None = None
    settings: AgreedSettings | None = None
    last_round: int = -1
    failed: bool = False
    round_nonce: bytes = b""


class _Listing(NamedTuple):
    """Views of a state that are looked up often."""

    live: tuple[bytes, ...]
    ring: tuple[bytes, ...]
    places: dict[bytes, int]


@dataclass(frozen=True, slots=True)
class RendezvousState:
    """The agreed value (protocol.md P2).

    Attributes:
        settings: What the first joiner recorded.
        epoch: Random at creation; another epoch is another history.
        nonce: Fresh for every write, so that equality with a written state proves the write.
        closed: Closed for ever, done, or neither.
        gen: Generation of the announcement area; grows when tombstones are dropped.
        round: Number of the round that is forming or complete.
        round_nonce: Random per round; scopes everything of the round in the store.
        complete: The round is frozen.
        participants: Join order while forming; rank order, frozen, once complete.
        gone: Members of a complete round that are no longer live, and why.
        finished: Members of a complete round whose work is done.
        queue: Waiters in order; the first ``seats`` of them are the wait list.
        nodes: Descriptors of participants and queue.
        folded: Highest sequence folded per incarnation, tombstones of unlisted ones included.
        failures: How many rounds a failure opened.
        floor: The next round's number is at least this, whatever store epoch the joiners come from.
    """

    settings: AgreedSettings
    epoch: bytes
    nonce: bytes
    round_nonce: bytes
    closed: Closed = Closed.NO
    gen: int = 0
    round: int = 0
    complete: bool = False
    participants: tuple[bytes, ...] = ()
    gone: Mapping[bytes, Gone] = field(default_factory=dict)
    finished: frozenset[bytes] = frozenset()
    queue: tuple[bytes, ...] = ()
    nodes: Mapping[bytes, NodeDesc] = field(default_factory=dict)
    folded: Mapping[bytes, int] = field(default_factory=dict)
    failures: int = 0
    floor: int = 0
    #: Who is listed and where, worked out when somebody first asks: a node asks often about a state that may be large.
    _listing: _Listing | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_closed(self) -> bool:
        """Closed for ever, or done."""
        return self.closed is not Closed.NO

    @property
    def _listed(self) -> _Listing:
        listing = self._listing
        if listing is None:
            live = self.participants
            if self.gone:
                live = tuple(inc for inc in live if inc not in self.gone)
            ring = live + self.queue
            listing = _Listing(live, ring, {inc: k for k, inc in enumerate(ring)})
            object.__setattr__(self, "_listing", listing)
        return listing

    @property
    def live(self) -> tuple[bytes, ...]:
        """Participants that are neither lost nor left nor re-joining."""
        return self._listed.live

    @property
    def ring(self) -> tuple[bytes, ...]:
        """Everybody listed: the live in rank or join order, then the queue (protocol.md P7)."""
        return self._listed.ring

    def position(self, inc: bytes) -> int:
        """Where ``inc`` is in the ring; -1 when it is not listed."""
        return self._listed.places.get(inc, -1)

    def listed(self, inc: bytes) -> bool:
        """In the queue, or a participant that is not gone."""
        return inc in self._listed.places

    def is_live(self, inc: bytes) -> bool:
        """A participant that is not gone."""
        return 0 <= self.position(inc) < len(self._listed.live)

    def is_member(self, inc: bytes) -> bool:
        """A live participant of a complete round."""
        return self.complete and self.is_live(inc)

    def is_redundant(self, inc: bytes) -> bool:
        """A spare: in the queue, without a seat."""
        return self.position(inc) >= len(self._listed.live) + self.seats

    @property
    def vacant(self) -> bool:
        """Nobody is listed and no round is complete: nobody is bound by the settings (protocol.md P12)."""
        return not (self.complete or self.participants or self.queue)

    def sequence(self, inc: bytes) -> int:
        """The highest sequence of ``inc`` that was folded; 0 if none."""
        return self.folded.get(inc, 0)

    @property
    def owed(self) -> tuple[bytes, ...]:
        """Members that went without having finished: their work is missing."""
        if not self.gone:
            return ()
        return tuple(inc for inc in self.participants if inc in self.gone and inc not in self.finished)

    @property
    def seats(self) -> int:
        """How many of the queue would find room in the next round."""
        if self.complete and self.finished:
            if not self.owed:
                return 0  # the job is ending: nobody is admitted any more
            return max(0, self.settings.max_nodes - sum(inc not in self.finished for inc in self.live))
        return max(0, self.settings.max_nodes - len(self.live))

    @property
    def wait_list(self) -> tuple[bytes, ...]:
        """The part of the queue that the next round has room for."""
        return self.queue[: self.seats]

    @property
    def redundancy(self) -> tuple[bytes, ...]:
        """Spares: the part of the queue without a seat."""
        return self.queue[self.seats :]

    def num_nodes_waiting(self, *, notify_lost_nodes: bool = True) -> int:
        """What a member is told (api.md A.1): waiters that find a seat, plus one for a loss."""
        if not self.complete or self.is_closed:
            return 0
        # Who re-joined and vanished from the queue is as lost to the round as who was lost at once.
        lost = notify_lost_nodes and any(
            self.gone[inc] in (Gone.LOST, Gone.LEFT) or not self.listed(inc) for inc in self.owed
        )
        return len(self.wait_list) + lost

    def name(self, inc: bytes) -> str:
        """A readable name of an incarnation."""
        node = self.nodes.get(inc)
        return repr(node) if node is not None else f"incarnation {inc.hex()[:8]}"

    def names(self, incs: tuple[bytes, ...] | list[bytes]) -> str:
        """Readable names, at most eight of them."""
        shown = ", ".join(self.name(inc) for inc in incs[:8])
        return f"{shown} and {len(incs) - 8} more" if len(incs) > 8 else shown


def invariants(state: RendezvousState, before: RendezvousState | None = None) -> list[str]:
    """Everything that must hold of a state, and of the step that led to it (protocol.md P14).

    Args:
        state: The state to check.
        before: The state that it replaced, when there was one.

    Returns:
        list[str]: one sentence per violated invariant; empty when all hold.
    """
    bad: list[str] = []
    members, queue = set(state.participants), set(state.queue)
    size = len(state.participants)

    def check(holds: bool, sentence: str) -> None:
        if not holds:
            bad.append(sentence)

    check(len(members) == size, "a participant is listed twice")
    check(len(queue) == len(state.queue), "a waiter is queued twice")
    check(not queue.intersection(state.live), "a live participant is queued as well")
    check(set(state.gone) <= members, "somebody is gone who was no participant")
    check(state.finished <= members, "somebody finished who was no participant")
    check(state.complete or not state.gone, "somebody is gone from a round that is forming")
    check(state.complete or not state.finished, "somebody finished a round that is forming")
    check(size <= state.settings.max_nodes, "more participants than max_nodes")
    check(not state.complete or size >= state.settings.min_nodes, "a complete round below min_nodes")
    check(1 <= state.settings.min_nodes <= state.settings.max_nodes, "min_nodes and max_nodes are out of order")
    check(members | queue == set(state.nodes), "descriptors do not match the listed nodes")
    check(set(state.nodes) <= set(state.folded), "a listed node has no folded sequence")
    check(all(seq > 0 for seq in state.folded.values()), "a folded sequence is not positive")
    check(state.round >= 0 and state.gen >= 0 and state.failures >= 0, "a counter is negative")
    check(state.failures <= state.round, "more failures than rounds")
    check(bool(state.nonce) and bool(state.round_nonce) and bool(state.epoch), "a nonce is empty")
    check(
        state.closed is not Closed.DONE or (state.complete and members == state.finished),
        "closed as done although a member has not finished",
    )
    if before is None or before.epoch != state.epoch:
        return bad
    check(state.nonce != before.nonce, "a write kept the nonce of the state it replaced")
    check(not before.is_closed, "a closed run was written again")
    check(state.round >= before.round, "the round shrank")
    check(state.gen >= before.gen, "the generation shrank")
    check(state.failures >= before.failures, "the failure count shrank")
    check(state.floor >= before.floor, "the round floor shrank")
    if state.round_nonce == before.round_nonce:
        check(state.complete or not before.complete, "a complete round was undone")
        check(not before.complete or state.round == before.round, "a complete round changed its number")
        check(
            not before.complete or state.participants == before.participants,
            "the participants of a complete round changed",
        )
        check(state.finished >= before.finished, "a member's finish was undone")
        check(set(state.gone) >= set(before.gone), "a member that was gone came back to its round")
    else:
        check(before.complete, "a round was opened over one that was forming")
        check(state.round > before.round, "a round was opened under an old number")
        check(state.gen > before.gen, "a round was opened in an old generation")
    if state.gen == before.gen:
        check(
            all(state.sequence(inc) >= seq for inc, seq in before.folded.items()),
            "a folded sequence was forgotten within its generation",
        )
    return bad
