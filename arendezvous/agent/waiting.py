"""What a node waits for, as a sentence for a log and as a line for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from ..errors import RendezvousError
from ..text import LISTED, listed, printable

if TYPE_CHECKING:
    from ..handler.base import RendezvousHandler
    from ..handler.status import RendezvousStatus

__all__ = ("Connecting", "Joining", "Waiting", "status_line")


class Waiting(Protocol):
    """Something that a node waits for."""

    async def look(self) -> None:
        """Find out how it stands; does not raise :class:`~arendezvous.RendezvousError`."""

    def sentence(self) -> str:
        """How it stood at the last look."""

    def line(self, width: int) -> str:
        """The same in so many columns, with the seconds that are left now."""


class Connecting:
    """The store has not answered yet.

    Args:
        endpoint: Where it should be.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._since = anyio.current_time()

    async def look(self) -> None:
        """There is nothing to see until it answers."""

    def sentence(self) -> str:
        """The endpoint and for how long."""
        return f"connecting to the store at {printable(self._endpoint)} ({self._elapsed():.0f} s so far)"

    def line(self, width: int) -> str:
        """The same; it fits."""
        return _cut(self.sentence(), width)

    def _elapsed(self) -> float:
        return anyio.current_time() - self._since


class Joining:
    """The round has not formed, or is not over.

    Args:
        handler: Knows how it stands.
        endpoint: Where its store is.
    """

    def __init__(self, handler: RendezvousHandler, endpoint: str) -> None:
        self._handler, self._endpoint = handler, endpoint
        self._status: RendezvousStatus | None = None
        self._problem = ""
        self._seen_at = anyio.current_time()

    async def look(self) -> None:
        """Ask the handler."""
        try:
            self._status, self._problem = await self._handler.status(), ""
        except RendezvousError as exc:
            self._problem = str(exc)
        self._seen_at = anyio.current_time()

    def sentence(self) -> str:
        """Who is in, who is missing and what ends the wait."""
        if self._problem or self._status is None:
            return self._problem
        left = self._status.join_left
        return self._status.explain() + ("" if left is None else f"; gives up in {left:.0f} s")

    def line(self, width: int) -> str:
        """The same in one line."""
        if self._problem:
            return _cut(printable(self._problem), width)
        if self._status is None:
            return _cut(f"joining at {printable(self._endpoint)}", width)
        return status_line(self._status, anyio.current_time() - self._seen_at, width)


def status_line(status: RendezvousStatus, age: float, width: int) -> str:
    """How a run stands, for a terminal: as many names of missing nodes as fit, then their number.

    Args:
        status: What the handler said.
        age: Seconds since then.
        width: Columns.
    """
    if status.complete or status.closed != "no" or status.round is None:
        head = status.reason
    else:
        bounds = f"min {status.min_nodes}, max {status.max_nodes}"
        head = f"round {status.round}: {len(status.participants)} joined ({bounds})"
    tail = ""
    if status.last_call_left is not None:
        tail += f", last call {_seconds(status.last_call_left - age)}"
    if status.join_left is not None:
        tail += f", gives up in {_seconds(status.join_left - age)}"
    tail += f", {status.endpoint}"
    missing = [repr(node) for node in status.missing] if not status.complete and status.closed == "no" else []
    line = ""
    for shown in range(min(len(missing), LISTED), -1, -1):
        line = printable(f"{head}{_missing(missing, shown)}{tail}")
        if len(line) <= width:
            break
    return _cut(line, width)


def _missing(names: list[str], shown: int) -> str:
    if not names:
        return ""
    if shown == 0:
        return f", {len(names)} missing"
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f", missing: {', '.join(names[:shown])}{rest}" if rest else f", missing: {listed(names)}"


def _seconds(left: float) -> str:
    return f"{max(0.0, left):.0f} s"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
