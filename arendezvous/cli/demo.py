"""``arendezvous demo``: what a rendezvous does, on this machine, with real processes."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import click

from .app import event_loop_option

if TYPE_CHECKING:
    from .story.timeline import Event, Timeline

__all__ = ("demo",)

_TITLES = {
    1: "A job forms",
    2: "An agent is killed",
    3: "The survivors go on",
    4: "A newcomer comes",
    5: "The job ends",
}
_COLOURS = {"killed": "red", "noticed": "yellow", "interim": "yellow", "formed": "green", "done": "green"}
_VERSIONS = ("arendezvous", "python", "anyio", "event loop", "platform")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
@event_loop_option
def demo(as_json: bool, event_loop: str) -> int:
    """Watch a job form, lose a node and grow, on this machine.

    Starts a store and three agents as real processes, kills one agent, lets a newcomer in and ends the job; all times
    are measured. Takes a few seconds and leaves no process behind.

    \b
    Exit status: 0 done, 1 something did not happen, 2 usage, 130, 143.

    \b
    Example:
      arendezvous demo
      arendezvous demo --json
    """
    start = time.monotonic()
    from .lookup import Stopped, run_lookup
    from .story.timeline import Timeline

    teller = None if as_json else _Teller()
    timeline = Timeline(teller.tell if teller else lambda _: None, start)
    try:
        problem, last_lines = run_lookup(lambda: _play(timeline, event_loop, teller), event_loop)
    except Stopped as exc:
        return exc.status
    if problem:
        click.echo(f"arendezvous: {problem}", err=True)
        for line in last_lines:
            click.echo(line, err=True)
    if as_json:
        click.echo(json.dumps(_document(timeline, event_loop, problem), indent=1))
    elif not problem:
        click.echo(f"\nEverything has ended; {timeline.now:.1f} s in all.")
    return 1 if problem else 0


async def _play(timeline: Timeline, loop: str, teller: _Teller | None) -> tuple[str, list[str]]:
    """Play the story; what went wrong, if anything, and what the processes said last."""
    if teller is not None:
        teller.welcome()  # here and not earlier: from the first line on, signals end it properly
    from .story.acts import Story
    from .story.cast import Unmet, open_cast

    last_lines: list[str] = []
    try:
        async with open_cast(loop) as cast:
            try:
                await Story(cast, timeline).play()
            except Unmet:
                last_lines = [f"  {actor.name}: {line}" for actor in cast.everybody for line in actor.last_lines]
                raise
    except Unmet as exc:
        return str(exc), last_lines
    return "", []


class _Teller:
    """Tells people what happens, as it happens."""

    def __init__(self) -> None:
        self._act = 0
        # click leaves colours out where there is no terminal.
        self._colour = False if os.environ.get("NO_COLOR") else None

    def welcome(self) -> None:
        """Before anything happens."""
        self._say("Real processes on this machine, `arendezvous serve` and `arendezvous run`.")
        self._say("All times are measured. It takes a few seconds; Ctrl-C ends it.")

    def tell(self, event: Event) -> None:
        """Print one line, below the title of its act."""
        if event.act != self._act:
            self._act = event.act
            self._say(click.style(f"\n{event.act}. {_TITLES[event.act]}", bold=True))
        kind = click.style(f"{event.kind:8}", fg=_COLOURS.get(event.kind), bold=event.kind in _COLOURS)
        self._say(f"{event.at:6.2f} s  {kind} {event.text}")

    def _say(self, line: str) -> None:
        click.echo(line, color=self._colour)


def _document(timeline: Timeline, loop: str, problem: str) -> dict[str, object]:
    from .checks.header import gather

    header = gather(loop, {})
    return {
        "format": 1,
        "status": 1 if problem else 0,
        "problem": problem or None,
        "versions": {name: header[name] for name in _VERSIONS},
        "events": [event.document() for event in timeline.events],
        "total": round(timeline.now, 3),
    }
