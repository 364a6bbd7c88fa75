"""The state of one run: who waits, and why it is not complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio

from ...errors import RendezvousError, RendezvousStateError
from ...handler.inspect import inspect
from ...text import listed
from .finding import Finding, fail, note, ok, warn

if TYPE_CHECKING:
    from ...handler.status import NodeStatus, RendezvousStatus
    from ...params import RendezvousParameters

__all__ = ("judge", "look")


async def look(params: RendezvousParameters, limit: float) -> list[Finding]:
    """Read the run's state and say what is to be said of it; nothing is written.

    Args:
        params: Where the run is.
        limit: Longest wait in seconds.
    """
    subject = f"run {params.run_id}"
    with anyio.move_on_after(limit):
        try:
            return judge(await inspect(params))
        except RendezvousStateError as exc:
            return [fail(subject, str(exc), "use a fresh --rdzv-id, or remove the damaged state: `arendezvous purge`")]
        except RendezvousError as exc:
            return [fail(subject, str(exc), "see the checks above")]
    return [fail(subject, f"the store did not tell its state within {limit:g} s", "see the checks above")]


def judge(status: RendezvousStatus) -> list[Finding]:
    """What is to be said of a run."""
    subject = f"run {status.run_id}"
    if status.round is None:
        return [note(subject, status.reason, "start agents with this --rdzv-id, or see whether theirs is another one")]
    if status.closed != "no":
        return [warn(subject, f"{status.reason}; it takes nobody any more", "use a fresh --rdzv-id")]
    found = []
    waiting = [*status.waiting, *status.spares]
    extra = f"; waiting: {_names(waiting)}" if waiting else ""
    if status.complete:
        found.append(ok(subject, status.reason + extra))
    else:
        here = f"; here: {_names(status.participants)}" if status.participants else ""
        short = status.min_nodes - len(status.participants)
        todo = (
            f"start {short} more agents with this --rdzv-id, or see why they do not come: run this command there"
            if short > 0
            else "wait: it completes when the last call ends or all nodes are there"
        )
        found.append(note(subject, status.reason + here + extra, todo))
    silent = [node for node in status.nodes if node.condition == "live" and not node.attached]
    if silent:
        found.append(
            warn(
                subject,
                f"no connection or heartbeat any more: {_names(silent)}",
                "see whether these hosts and processes are there; they are replaced when their heartbeats expire",
            )
        )
    return found


def _names(nodes: Iterable[NodeStatus]) -> str:
    return listed([repr(row.node) for row in nodes])
