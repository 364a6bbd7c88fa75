"""A run's status as text, as a table and as a document."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..text import printable

if TYPE_CHECKING:
    from rich.console import Group

    from ..handler.status import NodeStatus, RendezvousStatus
    from .statusnews import Change

__all__ = ("document", "headline", "plain", "table", "update")

_COLUMNS = ("RANK", "NODE", "ROLE", "CONDITION", "HEARTBEAT", "ATTACHED", "ATTRIBUTES")
_STYLES = {"lost": "red", "failed": "red", "left": "yellow", "rejoin": "yellow", "finished": "green"}


def headline(status: RendezvousStatus) -> list[str]:
    """Everything but the nodes, a line for each; safe to show."""
    pairs = [("run", status.run_id), ("store", status.endpoint)]
    if status.round is not None:
        stage = status.closed if status.closed != "no" else "complete" if status.complete else "forming"
        pairs += [
            ("round", f"{status.round}, {stage}"),
            ("nodes", f"{_counts(status)} (min {status.min_nodes}, max {status.max_nodes})"),
            ("failures", str(status.failures)),
        ]
    if status.missing:
        pairs.append(("missing", f"not back from the last round: {', '.join(map(repr, status.missing))}"))
    silent = [repr(row.node) for row in status.nodes if row.condition == "live" and not row.attached]
    if silent:
        pairs.append(("silent", f"not heard of: {', '.join(silent)}"))
    pairs.append(("state", status.reason))
    if status.round is not None and not status.complete and status.closed == "no":
        short = status.min_nodes - len(status.participants)
        wait = (
            f"at least {short} more node{'s' * (short > 1)}" if short > 0 else "the end of the last call, or all nodes"
        )
        pairs.append(("waits", f"for {wait}"))
    return [f"{name + ':':10}{printable(value)}" for name, value in pairs]


def _counts(status: RendezvousStatus) -> str:
    text = f"{len(status.participants)} in the round"
    if status.waiting:
        text += f", {len(status.waiting)} waiting"
    if status.spares:
        count = len(status.spares)
        text += f", {count} spare{'s' * (count > 1)}"
    return text


def plain(status: RendezvousStatus) -> str:
    """Aligned text."""
    lines = headline(status)
    if status.nodes:
        rows = [_COLUMNS, *map(_cells, status.nodes)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
        lines.append("")
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def table(status: RendezvousStatus) -> Group:
    """A table for a terminal, if there are nodes, below everything else."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # No title: one is as wide as the table, and a table without rows is nothing at all.
    text = Text("\n".join(headline(status)))
    if not status.nodes:
        return Group(text)
    shown = Table(box=SIMPLE_HEAD)
    for name in _COLUMNS:
        shown.add_column(name, overflow="fold", justify="right" if name in ("RANK", "HEARTBEAT") else "left")
    for row in status.nodes:
        # Text objects: nothing that a stranger wrote is read as markup.
        style = _STYLES.get(row.condition, "" if row.attached else "yellow")
        shown.add_row(*(Text(cell) for cell in _cells(row)), style=style)
    return Group(text, shown)


def _cells(row: NodeStatus) -> tuple[str, ...]:
    cells = (
        "-" if row.rank is None else str(row.rank),
        repr(row.node),
        row.role,
        row.condition,
        "?" if row.heartbeat_age is None else f"{row.heartbeat_age:.1f} s",
        "yes" if row.attached else "no",
        " ".join(f"{name}={value}" for name, value in row.node.attributes.items()) or "-",
    )
    return tuple(map(printable, cells))


def document(status: RendezvousStatus) -> dict[str, Any]:
    """The status with stable keys, for ``json``."""
    known = status.round is not None
    return {
        "format": 1,
        "run_id": status.run_id,
        "endpoint": status.endpoint,
        "round": status.round,
        "complete": status.complete,
        "closed": status.closed,
        "min_nodes": status.min_nodes if known else None,
        "max_nodes": status.max_nodes if known else None,
        "failures": status.failures,
        "reason": status.reason,
        "explanation": status.explain(),
        "nodes": [_node(row) for row in status.nodes],
        "missing": [repr(node) for node in status.missing],
    }


def _node(row: NodeStatus) -> dict[str, Any]:
    node = row.node
    return {
        "node": repr(node),
        "addr": node.addr,
        "pid": node.pid,
        "local_id": node.local_id,
        "incarnation": node.incarnation.hex(),
        "role": row.role,
        "rank": row.rank,
        "condition": row.condition,
        "heartbeat_age": _finite(row.heartbeat_age),
        "attached": row.attached,
        "node_rank": node.node_rank,
        "local_world_size": node.local_world_size,
        "attributes": {name: _finite(value) for name, value in node.attributes.items()},
    }


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor NaN; as text they at least say what they were."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def update(
    elapsed: float, changes: list[Change], status: RendezvousStatus | None, problem: str | None
) -> dict[str, Any]:
    """One look of ``--watch`` with stable keys, for ``json``."""
    return {
        "format": 1,
        "elapsed": round(elapsed, 3),
        "changes": [{"kind": c.kind, "node": c.node, "text": c.text} for c in changes],
        "status": None if status is None else document(status),
        "error": problem,
    }
