"""What happened and when: every time is measured, none is computed from an option."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ("Event", "Timeline")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the story.

    Attributes:
        act: Number of the act, from 1.
        kind: One word.
        at: Seconds since the start.
        took: Seconds since what it is measured from; None for what the demo itself does.
        text: A sentence.
        facts: Numbers for programs: round, nodes, pids.
    """

    act: int
    kind: str
    at: float
    took: float | None
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The event for programs."""
        times = {"at": round(self.at, 3), "took": None if self.took is None else round(self.took, 3)}
        return {"act": self.act, "kind": self.kind, **times, "text": self.text, **self.facts}


class Timeline:
    """The story so far.

    Args:
        tell: Called with each event as it happens.
        start: When it began, by ``time.monotonic``; now by default.
    """

    def __init__(self, tell: Callable[[Event], None] = lambda _: None, start: float | None = None) -> None:
        self.act = 0
        self.events: list[Event] = []
        self._tell = tell
        self._start = time.monotonic() if start is None else start

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def add(self, kind: str, text: str, since: float | None = None, **facts: Any) -> float:
        """Something has happened just now.

        Args:
            kind: One word.
            text: A sentence; ``{took}`` in it becomes the time since ``since``.
            since: What it is measured from, in seconds since the start.
            **facts: Numbers for programs.

        Returns:
            float: when, in seconds since the start.
        """
        at = self.now
        took = None if since is None else at - since
        if took is not None:
            text = text.replace("{took}", f"{took:.2f} s")
        event = Event(self.act, kind, at, took, text, facts)
        self.events.append(event)
        self._tell(event)
        return at
