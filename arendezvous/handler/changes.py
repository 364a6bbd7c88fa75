"""What members are told: joined, waiting, left, lost, evicted, completed, closed; each with a reason (design.md 3).

Any number of consumers, each from its call on. A slow consumer gets changes of one kind and round merged, none lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import anyio

from ..core.state import Gone, RendezvousState

if TYPE_CHECKING:
    from ..node import NodeDesc

__all__ = ("Changes", "MembershipChange", "Publisher", "difference")


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """One change of the membership.

    Attributes:
        kind: ``joined``, ``waiting``, ``left``, ``lost``, ``evicted`` (this node), ``completed`` or ``closed``.
        reason: A sentence that names who.
        round: The round concerned.
        nodes: Whom it concerns.
    """

    kind: str
    reason: str
    round: int
    nodes: tuple[NodeDesc, ...] = ()


class Changes:
    """An iterator over changes, from its creation on; ends when its handler is closed.

    Cancellation:
        Cancelling an iteration loses nothing; the next one returns what came meanwhile.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._pending: OrderedDict[tuple[str, int], MembershipChange] = OrderedDict()
        self._event = anyio.Event()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MembershipChange:
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            self._event = anyio.Event()
            await self._event.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return self._pending.popitem(last=False)[1]

    async def aclose(self) -> None:
        """Stop listening; idempotent."""
        self._publisher.forget(self)
        self.end()

    def put(self, change: MembershipChange) -> None:
        """Add a change, merged into one of the same kind and round that was not consumed yet."""
        key = (change.kind, change.round)
        if (waiting := self._pending.get(key)) is not None:
            fresh = tuple(node for node in change.nodes if node not in waiting.nodes)
            reason = waiting.reason if change.reason in waiting.reason else f"{waiting.reason}; {change.reason}"
            if len(reason) > 2000:
                reason = change.reason
            change = replace(waiting, reason=reason, nodes=waiting.nodes + fresh)
        self._pending[key] = change
        self._event.set()

    def end(self) -> None:
        """No more changes will come."""
        self._ended = True
        self._event.set()


class Publisher:
    """Hands each change to every listener, without waiting for any.

    Args:
        record: Also told of each change.
    """

    def __init__(self, record: Callable[[MembershipChange], None] | None = None) -> None:
        self._record = record
        self._listeners: list[Changes] = []
        self._closed = False

    def listen(self) -> Changes:
        """A new listener; one made after the end is over at once."""
        changes = Changes(self)
        if self._closed:
            changes.end()
        else:
            self._listeners.append(changes)
        return changes

    def forget(self, listener: Changes) -> None:
        """Drop a listener; unknown ones are ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def publish(self, changes: Iterable[MembershipChange]) -> None:
        """Hand over changes in order."""
        for change in changes:
            if self._record is not None:
                self._record(change)
            for listener in tuple(self._listeners):
                listener.put(change)

    def close(self) -> None:
        """End all listeners once they have consumed what is pending."""
        self._closed = True
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()


def difference(before: RendezvousState | None, after: RendezvousState) -> list[MembershipChange]:
    """What happened between two states that were read one after the other."""
    changes: list[MembershipChange] = []

    def note(kind: str, verb: str, incs: Iterable[bytes]) -> None:
        who = tuple(incs)
        nodes = tuple(after.nodes[inc] for inc in who if inc in after.nodes)
        if nodes:
            changes.append(MembershipChange(kind, f"{verb}: {after.names(list(who))}", after.round, nodes))

    known = set(before.nodes) if before is not None and before.epoch == after.epoch else set()
    same_round = before is not None and before.round_nonce == after.round_nonce
    was_gone = set(before.gone) if before is not None and same_round else set()
    was_queued = set(before.queue) if before is not None else set()
    note("joined", "joined", (inc for inc in after.participants if inc not in known or not same_round))
    note("waiting", "waiting", (inc for inc in after.queue if inc not in was_queued))
    for kind, whys in (("left", {Gone.LEFT}), ("lost", {Gone.LOST})):
        note(kind, kind, (inc for inc, why in after.gone.items() if why in whys and inc not in was_gone))
    if after.complete and not (same_round and before is not None and before.complete):
        changes.append(
            MembershipChange(
                "completed",
                f"round {after.round} is complete with {len(after.participants)} nodes",
                after.round,
                tuple(after.nodes[inc] for inc in after.participants),
            )
        )
    if after.is_closed and not (before is not None and before.is_closed):
        how = "every member has finished" if after.closed.value == "done" else "the rendezvous was closed for ever"
        changes.append(MembershipChange("closed", how, after.round))
    return changes
