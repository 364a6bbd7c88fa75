"""What operators see of a run: who is in, who is missing, why the round has not formed and when it will."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.state import RendezvousState

if TYPE_CHECKING:
    from ..node import NodeDesc
    from ..store.base import LeaseInfo
    from .keys import Keys

__all__ = ("NodeStatus", "RendezvousStatus", "describe")


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of a run.

    Attributes:
        node: Its descriptor, attributes included.
        role: ``member``, ``joining``, ``waiting`` or ``spare``.
        rank: Its rank in a complete round; None before that.
        condition: ``live``, ``finished``, ``lost``, ``left``, ``rejoin`` or ``failed``.
        heartbeat_age: Seconds since its last heartbeat, as the store reports it; None where it has none.
        attached: False while its connection to the store is gone.
    """

    node: NodeDesc
    role: str
    rank: int | None
    condition: str
    heartbeat_age: float | None
    attached: bool


@dataclass(frozen=True, slots=True)
class RendezvousStatus:
    """A view of a run at one instant.

    Attributes:
        run_id: The run.
        endpoint: Where its store is.
        round: Number of the round that is forming or complete; None when nobody has joined.
        complete: The round is frozen.
        closed: ``no``, ``closed`` or ``done``.
        min_nodes: As the first joiner recorded it.
        max_nodes: As the first joiner recorded it.
        failures: Rounds that a failure opened.
        nodes: Participants in rank or join order, then waiters, then spares.
        missing: Members of the last complete round that have not come back to the one that is forming.
        reason: What it waits for, as a sentence.
        wake_at: Seconds until that may change without news; None when only news can.
        join_left: Seconds until the node that looks gives up; None when it does not join, or waits as a spare.
        last_call_left: Seconds until it would freeze the round without another joiner; None before the minimum.
    """

    run_id: str
    endpoint: str
    round: int | None
    complete: bool
    closed: str
    min_nodes: int
    max_nodes: int
    failures: int
    nodes: tuple[NodeStatus, ...]
    missing: tuple[NodeDesc, ...]
    reason: str
    wake_at: float | None = None
    join_left: float | None = None
    last_call_left: float | None = None

    @property
    def participants(self) -> tuple[NodeStatus, ...]:
        """The members of the round, in rank or join order."""
        return tuple(n for n in self.nodes if n.role in ("member", "joining"))

    @property
    def waiting(self) -> tuple[NodeStatus, ...]:
        """Waiters that find a seat in the next round."""
        return tuple(n for n in self.nodes if n.role == "waiting")

    @property
    def spares(self) -> tuple[NodeStatus, ...]:
        """Waiters without a seat."""
        return tuple(n for n in self.nodes if n.role == "spare")

    def explain(self) -> str:
        """One sentence: where the run stands and what it waits for."""
        text = f"rendezvous {self.run_id!r} at {self.endpoint}: {self.reason}"
        if self.missing and not self.complete and self.closed == "no":
            text += f"; not back from the last round: {', '.join(repr(node) for node in self.missing)}"
        silent = [repr(n.node) for n in self.nodes if not n.attached and n.condition == "live"]
        if silent:
            text += f"; not heard of: {', '.join(silent)}"
        return text


def describe(
    state: RendezvousState | None,
    leases: Iterable[LeaseInfo],
    keys: Keys,
    endpoint: str,
    *,
    reason: str,
    previous: Iterable[NodeDesc] = (),
    bounds: tuple[int, int] = (1, 1),
) -> RendezvousStatus:
    """Build a status from a state and the leases that were read after it."""
    if state is None:
        return RendezvousStatus(keys.run_id, endpoint, None, False, "no", *bounds, 0, (), tuple(previous), reason)
    ages = {info.key: info for info in leases}
    seats = state.seats

    def row(inc: bytes, role: str, rank: int | None, condition: str) -> NodeStatus:
        info = ages.get(keys.beat(inc))
        return NodeStatus(
            state.nodes[inc],
            role,
            rank,
            condition,
            None if info is None else info.age,
            info is not None and info.attached,
        )

    rows = []
    for k, inc in enumerate(state.participants):
        why = state.gone.get(inc)
        condition = "finished" if inc in state.finished else "live" if why is None else why.value
        rows.append(row(inc, "member" if state.complete else "joining", k if state.complete else None, condition))
    rows += [row(inc, "waiting" if k < seats else "spare", None, "live") for k, inc in enumerate(state.queue)]
    here = {node.node.triple for node in rows}
    return RendezvousStatus(
        run_id=keys.run_id,
        endpoint=endpoint,
        round=state.round,
        complete=state.complete,
        closed=state.closed.value,
        min_nodes=state.settings.min_nodes,
        max_nodes=state.settings.max_nodes,
        failures=state.failures,
        nodes=tuple(rows),
        missing=tuple(node for node in previous if node.triple not in here),
        reason=reason,
    )
