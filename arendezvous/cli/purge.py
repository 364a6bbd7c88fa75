"""``arendezvous purge``: remove the keys of a run that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..text import listed, printable
from .app import event_loop_option
from .lookup import ask, ended, find, lookup_options, run_lookup, say, trouble

if TYPE_CHECKING:
    from ..params import RendezvousParameters

__all__ = ("purge",)


@click.command()
@lookup_options
@click.option("--force", is_flag=True, help="Also an unclosed run that nobody is attached to.")
@click.option("--yes", is_flag=True, help="Do not ask; only a terminal is asked at all.")
@event_loop_option
def purge(force: bool, yes: bool, event_loop: str, **where: Any) -> int:
    """Remove the keys of a run that is over: closed or done, no live node attached. Its run id is free then. A damaged
    state is thrown away in any case; nodes that wait go on in a new round.

    Exit status: 0 removed; 1 not confirmed; 2 usage; 3 the run is not over, or its store is not reached; 130 Ctrl-C,
    143 SIGTERM.

    \b
    Example:
      arendezvous purge node0:29400 --rdzv-id job7
    """
    params = find(**where)
    return ended(lambda: _purge(params, force, yes, event_loop), "A fresh --rdzv-id avoids it.")


def _purge(params: RendezvousParameters, force: bool, yes: bool, event_loop: str) -> int:
    from ..handler.purge import purge as purge_from_outside
    from ..handler.purge import remains

    run = f"run {params.run_id!r} at {params.endpoint}"
    found = run_lookup(lambda: remains(params), event_loop)
    if not found.keys:
        say(printable(f"0 keys removed: there is nothing of {run}; if there should be, check --rdzv-id"))
        return 0
    obstacle = found.obstacle(force)
    if obstacle is None:
        about = f"its state is damaged ({found.damage})" if found.damage is not None else f"it is {found.closed}"
        if found.closed in (None, "no") and found.damage is None:
            about = "it is not closed, but nobody is attached"
        if found.unfinished:
            about += f"; these had not finished and may still be at work: {listed(found.unfinished)}"
        if not ask(printable(f"{run} has {_count(len(found.keys))}; {about}. Remove them?"), yes):
            say("arendezvous: not confirmed, nothing was changed", err=True)
            return 1
        # It looks again: somebody may have joined meanwhile.
        purged = run_lookup(lambda: purge_from_outside(params, force=force), event_loop)
        if purged.was_reset:
            say(printable(f"the state of {run} was damaged and has been thrown away"))
            if purged.attached:
                say(printable(f"attached nodes form a new round, their keys stay: {listed(purged.attached)}"))
                return 0
        obstacle = purged.obstacle
        if obstacle is None:
            say(printable(f"{_count(purged.removed)} of {run} removed"))
            return 0
    return trouble(f"The {run} was not purged: {obstacle}.")


def _count(number: int) -> str:
    return f"{number} key{'s' * (number != 1)}"
