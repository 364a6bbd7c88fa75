"""``arendezvous status``: who is in a run, who is missing and why it waits; it only reads."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from .app import event_loop_option, mistake
from .lookup import READ_TIMEOUT, Stopped, find, lookup_options, run_lookup, say, trouble

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
    params = find(**where)
    from ..errors import RendezvousError, RendezvousStateError

    try:
        if watch:
            from .statuswatch import Documents, Lines, Screen

            printer = Documents() if as_json else Screen() if _on_terminal() else Lines()
            run_lookup(lambda: _watch(params, interval, printer), event_loop)
            return 0
        from ..handler.inspect import inspect

        _show(run_lookup(lambda: inspect(params), event_loop), as_json)
    except Stopped as stopped:
        return stopped.status
    except RendezvousStateError as exc:
        return trouble(f"{exc} `arendezvous purge` removes it; a fresh --rdzv-id avoids it.")
    except RendezvousError as exc:
        return trouble(exc)
    except ValueError as exc:
        raise mistake(exc) from exc
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


async def _watch(params: RendezvousParameters, interval: float, printer: Lines) -> None:
    """Look until a signal comes; a new connection for each look, or a store that waits for its clients to go would."""
    import anyio

    from ..errors import RendezvousError
    from ..handler.inspect import inspect
    from ..params import RendezvousParameters
    from .statusnews import Watcher

    # Whoever watches wants to know soon that the store is away, and is not harmed if it was only slow.
    if params.config["read_timeout"] == READ_TIMEOUT:
        config = {**params.config, "read_timeout": _WATCH_TIMEOUT}
        params = RendezvousParameters(params.backend, params.endpoint, params.run_id, config=config)
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
