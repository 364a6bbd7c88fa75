"""How ``arendezvous status --watch`` shows what it sees: as lines, as documents or on a screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..text import printable
from .lookup import say
from .statustext import plain, table, update

if TYPE_CHECKING:
    from .statusnews import Change, Watcher

__all__ = ("Documents", "Lines", "Screen")


class Lines:
    """The whole status once, then a line for each change."""

    def __init__(self) -> None:
        self._shown = False

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def show(self, elapsed: float, changes: list[Change], watcher: Watcher) -> None:
        """Say what a look has brought.

        Args:
            elapsed: Seconds since it started.
            changes: What is new.
            watcher: What is known now.
        """
        for change in changes:
            say(_line(elapsed, change))
        if not self._shown and watcher.status is not None:
            self._shown = True
            say(plain(watcher.status))


class Documents(Lines):
    """A document for the first look and for each one that changes something, on a line each."""

    def show(self, elapsed: float, changes: list[Change], watcher: Watcher) -> None:
        """Print the document, if there is news."""
        if changes or not self._shown:
            self._shown = True
            say(json.dumps(update(elapsed, changes, watcher.status, watcher.problem)))


class Screen(Lines):
    """The table is drawn again at each look; the changes scroll by above it and stay."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live

        # No thread that refreshes: it is drawn when there is something to draw.
        self._live = Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Lines:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, elapsed: float, changes: list[Change], watcher: Watcher) -> None:
        """Draw the table; a status that cannot be read now leaves its place to the reason."""
        from rich.text import Text

        for change in changes:
            self._live.console.print(Text(_line(elapsed, change)))
        if watcher.status is not None:
            self._live.update(table(watcher.status), refresh=True)
        else:
            self._live.update(Text(printable(watcher.problem or ""), style="yellow"), refresh=True)


def _line(elapsed: float, change: Change) -> str:
    return f"+{elapsed:.1f} s  {printable(change.text)}"
