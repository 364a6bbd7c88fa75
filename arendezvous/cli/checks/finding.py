"""What a check has found, and the report that they make."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...text import printable

__all__ = ("Finding", "Level", "Report", "fail", "note", "ok", "seconds", "warn")


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen.

    Attributes:
        level: How bad it is.
        subject: What was looked at.
        seen: What was seen.
        todo: What to do; only for ``ok`` it may be empty.
    """

    level: Level
    subject: str
    seen: str
    todo: str = ""


def ok(subject: str, seen: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, seen)


def note(subject: str, seen: str, todo: str) -> Finding:
    """Worth knowing; nothing is wrong."""
    return Finding(Level.NOTE, subject, seen, todo)


def warn(subject: str, seen: str, todo: str) -> Finding:
    """It works, or may; it will hurt."""
    return Finding(Level.WARN, subject, seen, todo)


def fail(subject: str, seen: str, todo: str) -> Finding:
    """Nodes will not meet like this."""
    return Finding(Level.FAIL, subject, seen, todo)


def seconds(duration: float) -> str:
    """A duration for people: ``0.21 ms``, ``35 ms``, ``1.2 s``."""
    if duration >= 1:
        return f"{duration:.3g} s" if duration < 1000 else f"{duration:.0f} s"
    return f"{duration * 1000:.2g} ms" if duration < 0.0995 else f"{duration * 1000:.0f} ms"


class Report:
    """Findings in the order in which they came.

    Args:
        tell: Called with each finding as it comes.
    """

    def __init__(self, tell: Callable[[Finding], None] = lambda _: None) -> None:
        self.findings: list[Finding] = []
        self._tell = tell

    def add(self, *findings: Finding) -> None:
        """Take findings."""
        for finding in findings:
            clean = Finding(finding.level, *map(printable, (finding.subject, finding.seen, finding.todo)))
            self.findings.append(clean)
            self._tell(clean)

    @property
    def status(self) -> int:
        """The exit status: 3 if anything failed, else 0."""
        return 3 if any(finding.level is Level.FAIL for finding in self.findings) else 0

    def summary(self) -> str:
        """How many of each, worst first."""
        counts = [(level, sum(f.level is level for f in self.findings)) for level in reversed(Level)]
        return ", ".join(f"{number} {level}" for level, number in counts if number) or "nothing to look at"

    def document(self, header: dict[str, str]) -> dict[str, Any]:
        """The report as one document."""
        return {
            "format": 1,
            "status": self.status,
            "header": header,
            "findings": [
                {"level": f.level.lower(), "subject": f.subject, "seen": f.seen, "todo": f.todo} for f in self.findings
            ],
        }
