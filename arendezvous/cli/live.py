"""The line that changes while ``arendezvous run`` waits at a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..agent.display import Lines

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ("LiveLine", "display")

_PREFIX = "arendezvous: "


def display(*, quiet: bool) -> Lines:
    """What suits standard error: a line that changes at a terminal that can show one, lines otherwise."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Lines(quiet=quiet)
    return LiveLine()


class LiveLine(Lines):
    """Lines that stay, above one that changes and goes when the wait is over."""

    is_live = True

    def __init__(self) -> None:
        super().__init__()
        # Now and not when the first line is due: importing takes a tenth of a second, and others then wait for us.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._make_live, self._text = Live, Text
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._loggers: list[logging.StreamHandler[Any]] = []

    def wait(self, line: Callable[[int], str] | None) -> None:
        """Draw the line, or remove it."""
        if line is None:
            self._stop()
            return
        # The last column stays empty: some terminals wrap when it is filled.
        text = _PREFIX + line(max(10, self._console.width - len(_PREFIX) - 1))
        drawn = self._text(text, no_wrap=True, overflow="ellipsis", style="dim")
        if self._live is None:
            # No thread that refreshes; what others print meanwhile goes above the line.
            self._live = self._make_live(
                drawn, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            before = sys.stderr
            self._live.start()
            self._console.show_cursor(True)  # a kill -9 must not leave a terminal without one
            for handler in logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                    handler.setStream(sys.stderr)
                    self._loggers.append(handler)
        self._live.update(drawn, refresh=True)

    def _stop(self) -> None:
        if self._live is None:
            return
        live, self._live = self._live, None
        live.stop()
        while self._loggers:
            self._loggers.pop().setStream(sys.stderr)
