"""``arendezvous close``: close a run for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..text import listed, printable
from .app import event_loop_option
from .lookup import ask, ended, find, lookup_options, run_lookup, say, trouble

if TYPE_CHECKING:
    from ..handler.status import RendezvousStatus
    from ..params import RendezvousParameters

__all__ = ("close",)


@click.command()
@lookup_options
@click.option("--yes", is_flag=True, help="Do not ask; only a terminal is asked at all.")
@event_loop_option
def close(yes: bool, event_loop: str, **where: Any) -> int:
    """Close a run for ever: nobody joins it any more, who waits is told, and members end with their round.

    Exit status: 0 closed, also if it was; 1 not confirmed; 2 usage; 3 nobody has ever joined the run, or its store
    is not reached; 130 Ctrl-C, 143 SIGTERM.

    \b
    Example:
      arendezvous close node0:29400 --rdzv-id job7
    """
    params = find(**where)
    return ended(lambda: _close(params, yes, event_loop), "There is nothing to close; `arendezvous purge` removes it.")


def _close(params: RendezvousParameters, yes: bool, event_loop: str) -> int:
    from ..handler.inspect import inspect
    from ..handler.purge import close as close_from_outside

    # Asked between two runs of the loop: a prompt must neither hold one up nor lose its Ctrl-C to it.
    status = run_lookup(lambda: inspect(params), event_loop)
    run = f"run {params.run_id!r} at {status.endpoint}"
    if status.round is not None and status.closed == "no":
        if not ask(f"{_describe(status)}\nClose {printable(run)} for ever?", yes):
            say("arendezvous: not confirmed, nothing was changed", err=True)
            return 1
        before = run_lookup(lambda: close_from_outside(params), event_loop)
    else:
        before = None if status.round is None else status.closed
    if before is None:
        return trouble(f"Nobody has ever joined {run}, so there is nothing to close; check --rdzv-id and the endpoint.")
    if before == "no":
        say(printable(f"{run} is closed for ever"))
    else:
        say(printable(f"{run} was {before} already"))
    return 0


def _describe(status: RendezvousStatus) -> str:
    live = [row for row in status.nodes if row.condition == "live" and row.attached]
    names = listed([repr(row.node) for row in live])
    head = f"run {status.run_id!r}: {status.reason}"
    return f"{printable(head)}\n{len(live)} live node{'s' * (len(live) != 1)}{': ' * bool(live)}{printable(names)}"
