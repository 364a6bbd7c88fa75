"""Where an agent tells its operator things: lines for a log; a terminal may add one line that changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

__all__ = ("Display", "Lines", "say")


class Display(Protocol):
    """Takes what an agent has to tell.

    Attributes:
        is_live: It can show a line that changes; one that cannot gets lines of news, less often.
    """

    @property
    def is_live(self) -> bool: ...

    def say(self, text: str) -> None:
        """Show a line on what went wrong, or on how this node ends."""

    def news(self, text: str) -> None:
        """Show a line on what goes its way."""

    def wait(self, line: Callable[[int], str] | None) -> None:
        """Show what this node waits for instead of what was there; None: it no longer waits.

        Args:
            line: Returns a line for so many columns.
        """


def say(text: str) -> None:
    """Tell the operator something: one line on standard error."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"arendezvous: {text}\n")
        sys.stderr.flush()


class Lines:
    """Plain lines, as for a log file.

    Args:
        write: Takes each line.
        quiet: Show no news.
    """

    is_live = False

    def __init__(self, write: Callable[[str], None] = say, *, quiet: bool = False) -> None:
        self._write, self._quiet = write, quiet

    def say(self, text: str) -> None:
        """Show the line."""
        self._write(text)

    def news(self, text: str) -> None:
        """Show the line, unless quiet."""
        if not self._quiet:
            self._write(text)

    def wait(self, line: Callable[[int], str] | None) -> None:
        """Nothing here changes."""
