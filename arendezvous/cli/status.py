"""``arendezvous status``: who is in a run, who is missing and why it waits; it only reads."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from .app import event_loop_option
from .lookup import READ_TIMEOUT, ended, find, lookup_options, run_lookup, say

if TYPE_CHECKING:
    from ..handler.status import RendezvousStatus
    from ..params import RendezvousParameters
    from .statuswatch import Lines

__all__ = ("status",)

#: Seconds that a store has to answer one look of --watch before it counts as away.
_WATCH_TIMEOUT = 2.0


@click.command()
@lookup_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document; of --watch, a line per change.")
@click.option("--watch", is_flag=True, help="Look again, and list what changes.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 86400),
    default=1.0,
    metavar="S",
    show_default=True,
    help="Seconds between looks.",
)
@event_loop_option
def status(as_json: bool, watch: bool, interval: float, event_loop: str, **where: Any) -> int:
    """Show who is in a run, who is missing and why it waits. It never writes, joins or hosts anything.

    Exit status: 0 shown, also if nobody has joined; 2 usage; 3 store not reached or state damaged; --watch ends with
    130 on Ctrl-C, 143 on SIGTERM.

    \b
    Example:
      arendezvous status node0:29400 --rdzv-id job7 --watch
    """
    # Whoever watches wants to know soon that the store is away, and is not harmed if it was only slow.
    params = find(**where, patience=_WATCH_TIMEOUT if watch else READ_TIMEOUT)

    def body() -> int:
        return _watch(params, interval, as_json, event_loop) if watch else _look(params, as_json, event_loop)

    return ended(body, "`arendezvous purge` removes it; a fresh --rdzv-id avoids it.")


def _look(params: RendezvousParameters, as_json: bool, event_loop: str) -> int:
    from ..handler.inspect import inspect

    _show(run_lookup(lambda: inspect(params), event_loop), as_json)
    return 0


def _watch(params: RendezvousParameters, interval: float, as_json: bool, event_loop: str) -> int:
    from .statuswatch import Documents, Lines, Screen

    printer = Documents() if as_json else Screen() if _on_terminal() else Lines()
    run_lookup(lambda: _look_again(params, interval, printer), event_loop)
    return 0


def _show(found: RendezvousStatus, as_json: bool) -> None:
    from .statustext import document, plain, table

    if as_json:
        say(json.dumps(document(found), indent=1))
    elif _on_terminal():
        from rich.console import Console

        Console().print(table(found))
    else:
        say(plain(found))


def _on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


async def _look_again(params: RendezvousParameters, interval: float, printer: Lines) -> None:
    """Look until a signal comes; a new connection for each look, or a store that waits for its clients to go would."""
    import anyio

    from ..errors import RendezvousError
    from ..handler.inspect import inspect
    from .statusnews import Watcher

    watcher = Watcher()
    started = anyio.current_time()
    with printer:
        while True:
            try:
                changes = watcher.see(await inspect(params))
            except RendezvousError as exc:
                changes = watcher.miss(str(exc))
            printer.show(anyio.current_time() - started, changes, watcher)
            await anyio.sleep(interval)
            if _reader_is_gone():
                raise BrokenPipeError


def _reader_is_gone() -> bool:
    """Whether nobody reads our output any more: without news there is no write that would tell."""
    import select

    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
