"""Breadth-first search over everything that can happen, with shortest traces.

A global state is a tuple of small integers: agreed state, announcement log, one number per process, what may still be
spent, the message in flight. Safety is checked at every step, liveness at the end: a state from which nothing happens
without a fault must be a legal rest state, and steps without faults never go round in a circle.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from arendezvous.core.state import RendezvousState

from .config import Config
from .rest import rest
from .search import Search
from .space import Violation

__all__ = ("Outcome", "explore")


@dataclass
class Outcome:
    """What an exploration found.

    Attributes:
        config: What was explored.
        states: How many global states were found.
        seconds: How long it took.
        cpu: How long it computed.
        complete: All of them were expanded.
        violation: What must never happen, with its shortest trace.
        stuck: A rest state that is not legal, with its shortest trace; how many there are.
        rests: How many legal rest states there are.
        cyclic: How many states lie on, or lead only to, a circle of steps without faults; -1 if not computed.
    """

    config: Config
    states: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    complete: bool = False
    violation: tuple[str, list[str]] | None = None
    stuck: tuple[str, list[str]] | None = None
    stuck_count: int = 0
    rests: int = 0
    cyclic: int = -1
    circle: list[str] = field(default_factory=list)
    decisions: int = 0

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return self.violation is None and self.stuck is None and self.cyclic <= 0

    @property
    def verdict(self) -> str:
        """``violation``, ``stuck``, ``circle`` or ``clean``."""
        if self.violation is not None:
            return "violation"
        if self.stuck is not None:
            return "stuck"
        return "circle" if self.cyclic > 0 else "clean"

    def __str__(self) -> str:
        rate = self.states / self.cpu if self.cpu else 0.0
        text = (
            f"{self.config}: {self.states} states{'' if self.complete else ' (not all expanded)'}, "
            f"{self.seconds:.1f} s ({self.cpu:.1f} s CPU, {rate:.0f}/s), {self.decisions} decisions, "
            f"{self.rests} rest states: {self.verdict}"
        )
        for what, found in (("violation", self.violation), ("stuck", self.stuck)):
            if found is not None:
                steps = "".join(f"\n  {k:3}. {step}" for k, step in enumerate(found[1], 1))
                text += f"\n {what}: {found[0]}{steps}"
        if self.cyclic > 0:
            text += f"\n {self.cyclic} states on or before a circle: " + "".join(f"\n   - {x}" for x in self.circle)
        return text


def explore(
    config: Config,
    *,
    cap: int = 50_000_000,
    seconds: float = float("inf"),
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Explore everything that ``config`` allows.

    Args:
        config: What may happen.
        cap: Stop after this many states.
        seconds: Stop after this long.
        progress: Called now and then with a line of text.

    Returns:
        Outcome: with the shortest trace of what was found.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with _views(config):
            return _explore(config, cap, seconds, progress)
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _views(config: Config) -> Iterator[None]:
    """The seats as the design first had them, when ``view`` is off: those of the dead are never freed."""
    if "view" not in config.off:
        yield
        return
    naive = property(lambda state: max(0, state.settings.max_nodes - len(state.participants)))
    with patch.object(RendezvousState, "seats", naive):
        yield


def _explore(config: Config, cap: int, seconds: float, progress: Callable[[str], None] | None) -> Outcome:
    outcome = Outcome(config)
    start, cpu = time.perf_counter(), time.process_time()
    search = Search(config)
    canonical = search.canonical
    first = canonical(search.first)
    states: list[tuple[int, ...]] = [first]
    ids: dict[tuple[int, ...], int] = {first: 0}
    parents = array("i", [-1])
    edges, offsets = array("i"), array("q", [0])
    at = 0

    def emit(g: tuple[int, ...], free: bool, label: str) -> None:
        g = canonical(g)
        j = ids.get(g)
        if j is None:
            j = ids[g] = len(states)
            states.append(g)
            parents.append(at)
        if free:
            edges.append(j)

    successors = search.successors
    violation: str | None = None
    while at < len(states):
        try:
            successors(states[at], emit)
        except Violation as found:
            violation = str(found)
            break
        offsets.append(len(edges))
        at += 1
        if at & 0x3FFF == 0:
            spent = time.perf_counter() - start
            if progress is not None:
                progress(f"{at} of {len(states)} states expanded, {at / spent:.0f}/s")
            if len(states) > cap or spent > seconds:
                break
    outcome.states, outcome.complete = len(states), at == len(states)
    outcome.decisions = search.space.decisions
    if violation is not None:
        steps, concrete = _trace(search, states, parents, at)
        try:
            search.successors(concrete, lambda g, free, label: None)
        except Violation as found:
            violation = str(found)  # with the names that the trace uses
        outcome.violation = violation, [*steps, search.step]
    else:
        _liveness(outcome, search, states, parents, edges, offsets, at)
    outcome.seconds, outcome.cpu = time.perf_counter() - start, time.process_time() - cpu
    return outcome


def _liveness(
    outcome: Outcome,
    search: Search,
    states: list[tuple[int, ...]],
    parents: array[int],
    edges: array[int],
    offsets: array[int],
    expanded: int,
) -> None:
    for k in range(expanded):
        if offsets[k] == offsets[k + 1]:
            why = rest(search.space, states[k])
            if why is None:
                outcome.rests += 1
            else:
                outcome.stuck_count += 1
                if outcome.stuck is None:
                    steps, concrete = _trace(search, states, parents, k)
                    outcome.stuck = rest(search.space, concrete) or why, steps
    if not outcome.complete:
        return
    # Steps without faults that never go round: peel off whatever leads only to what was peeled off before. Only what
    # can reach a step back to an earlier number can be on a circle, which leaves little to peel.
    degree = array("i", (offsets[k + 1] - offsets[k] for k in range(expanded)))
    starts = array("i", bytes(4 * (expanded + 1)))
    for j in edges:
        starts[j + 1] += 1
    for k in range(expanded):
        starts[k + 1] += starts[k]
    fill, back = array("i", starts), array("i", bytes(4 * len(edges)))
    for k in range(expanded):
        for e in range(offsets[k], offsets[k + 1]):
            j = edges[e]
            back[fill[j]] = k
            fill[j] += 1
    todo = [k for k in range(expanded) if degree[k] == 0]
    peeled = 0
    while todo:
        j = todo.pop()
        peeled += 1
        for e in range(starts[j], starts[j + 1]):
            k = back[e]
            degree[k] -= 1
            if degree[k] == 0:
                todo.append(k)
    outcome.cyclic = expanded - peeled
    if outcome.cyclic:
        outcome.circle = _circle(search, states, parents, degree, edges, offsets)


def _walk(search: Search, g: tuple[int, ...], path: list[tuple[int, ...]]) -> tuple[list[str], tuple[int, ...]]:
    """Descriptions of the steps from ``g`` through representatives, with the names that the nodes have in ``g``."""
    steps: list[str] = []
    for to in path:
        found: list[tuple[tuple[int, ...], str]] = []

        def emit(
            h: tuple[int, ...],
            free: bool,
            label: str,
            to: tuple[int, ...] = to,
            found: list[tuple[tuple[int, ...], str]] = found,
        ) -> None:
            if search.canonical(h) == to:
                found.append((h, label if free else f"! {label}"))

        try:
            search.successors(g, emit)
        except Violation:
            pass
        g, label = found[0]
        steps.append(label)
    return steps, g


def _trace(
    search: Search, states: list[tuple[int, ...]], parents: array[int], k: int
) -> tuple[list[str], tuple[int, ...]]:
    path = [k]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return _walk(search, search.first, [states[j] for j in path[-2::-1]])


def _circle(
    search: Search,
    states: list[tuple[int, ...]],
    parents: array[int],
    degree: array[int],
    edges: array[int],
    offsets: array[int],
) -> list[str]:
    """The steps of one circle, after the shortest way to it."""
    k = next(k for k in range(len(degree)) if degree[k] > 0)
    seen: dict[int, int] = {}
    path: list[int] = []
    while k not in seen:
        seen[k] = len(path)
        path.append(k)
        k = next(edges[e] for e in range(offsets[k], offsets[k + 1]) if degree[edges[e]] > 0)
    circle = [*path[seen[k] :], k]
    steps, concrete = _trace(search, states, parents, circle[0])
    return [*steps, "--- and round and round:", *_walk(search, concrete, [states[j] for j in circle[1:]])[0]]
