"""What changed in a run between two looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..handler.status import NodeStatus, RendezvousStatus
    from ..node import NodeDesc

__all__ = ("Change", "Watcher", "differences")

_FATES = {
    "finished": "its work is done",
    "lost": "its heartbeats ended",
    "left": "it went",
    "rejoin": "it joins the next round",
    "failed": "its work failed, it joins the next round",
}
#: How a node came, by its role.
_ARRIVALS = {"member": "joined", "joining": "joined", "waiting": "waiting", "spare": "spare"}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that changed.

    Attributes:
        kind: ``joined``, ``waiting``, ``spare``, ``left``, ``lost``, ``finished``, ``failed``, ``rejoin``, ``gone``,
            ``silent``, ``heard``, ``round``, ``complete``, ``failures``, ``closed``, ``purged``, ``unreachable`` or
            ``reachable``.
        text: What to say about it.
        node: The node it is about, if it is about one.
    """

    kind: str
    text: str
    node: str | None = None


class Watcher:
    """Keeps the last look, and says what the next one changes.

    Attributes:
        status: The last one that was read; None before the first, and while the store cannot be read.
        problem: Why there is none.
    """

    def __init__(self) -> None:
        self.status: RendezvousStatus | None = None
        self.problem: str | None = None
        self._known: RendezvousStatus | None = None
        self._members: dict[bytes, NodeDesc] = {}

    def see(self, status: RendezvousStatus) -> list[Change]:
        """A look that found something out; the first one changes nothing."""
        changes = []
        if self.problem is not None:
            changes.append(Change("reachable", "the store answers again" if self._known else "the store answers"))
        if status.complete:
            self._members = {row.node.incarnation: row.node for row in status.participants}
        elif status.round is not None:
            here = {row.node.incarnation for row in status.nodes}
            status = replace(status, missing=tuple(n for inc, n in self._members.items() if inc not in here))
        if self._known is not None:
            changes += differences(self._known, status)
        self.status = self._known = status
        self.problem = None
        return changes

    def miss(self, problem: str) -> list[Change]:
        """A look that failed; said once until it succeeds, or fails for another reason."""
        # The seconds waited differ each time.
        news = self.problem is None or _reason(self.problem) != _reason(problem)
        self.status, self.problem = None, problem
        return [Change("unreachable", f"{problem}; trying again")] if news else []


def _reason(problem: str) -> str:
    return "".join(c for c in problem if not c.isdigit())


def differences(before: RendezvousStatus, after: RendezvousStatus) -> list[Change]:
    """What has happened between two looks at a run: nodes first, then the round, then the run.

    Args:
        before: The earlier look.
        after: The later one.
    """
    if after.round is None:
        return [] if before.round is None else [Change("purged", "the run was removed: nobody has joined")]
    changes = list(_nodes(before, after))
    opened = after.round != before.round
    if opened and not after.complete:
        changes.append(Change("round", f"round {after.round} is forming"))
    if after.complete and (opened or not before.complete):
        count = len(after.participants)
        changes.append(Change("complete", f"round {after.round} is complete with {count} node{'s' * (count != 1)}"))
    if after.failures != before.failures:
        changes.append(Change("failures", f"failures: {before.failures} -> {after.failures}"))
    if after.closed != before.closed:
        changes.append(Change("closed", after.reason))
    return changes


def _nodes(before: RendezvousStatus, after: RendezvousStatus) -> Iterator[Change]:
    old = {row.node.incarnation: row for row in before.nodes}
    new = {row.node.incarnation: row for row in after.nodes}
    for inc, row in old.items():
        if inc not in new and row.condition in ("live", "finished"):
            # Nobody keeps why somebody is not in a round that was never complete.
            yield _about(row, "gone", "it left or was lost")
    for inc, row in new.items():
        known = old.get(inc)
        if known is None:
            yield _about(row, _ARRIVALS[row.role], _place(row))
        elif row.role != known.role and row.role in ("waiting", "spare"):
            yield _about(row, row.role, "its place in the queue changed")
        if row.condition != (known.condition if known else "live") and row.condition != "live":
            yield _about(row, row.condition, _FATES[row.condition])
        elif known is not None and row.condition == "live" and row.attached != known.attached:
            if row.attached:
                yield _about(row, "heard", "it has a connection and heartbeats")
            else:
                yield _about(row, "silent", "its connection or its heartbeats ended")


def _place(row: NodeStatus) -> str:
    return "" if row.rank is None else f"rank {row.rank}"


def _about(row: NodeStatus, kind: str, why: str) -> Change:
    name = repr(row.node)
    return Change(kind, f"{kind}: {name}" + (f" ({why})" if why else ""), name)
