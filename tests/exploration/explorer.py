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

from .config import FREE, LIMITED, Config
from .rest import rest
from .space import BAD, CAS, ENTER, FLIGHT, LOCAL, LOG, NOTIFY, Move, Node, Space, Violation

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
            f"{self.seconds:.1f} s ({self.cpu:.1f} s CPU, {rate:.0f}/s), {self.decisions} decisions, {self.rests} rest states: {self.verdict}"
        )
        for what, found in (("violation", self.violation), ("stuck", self.stuck)):
            if found is not None:
                steps = "".join(f"\n  {k:3}. {step}" for k, step in enumerate(found[1], 1))
                text += f"\n {what}: {found[0]}{steps}"
        if self.cyclic > 0:
            text += f"\n {self.cyclic} states on or before a circle: " + "".join(f"\n   - {x}" for x in self.circle)
        return text


class _Search:
    def __init__(self, config: Config) -> None:
        self.space = space = Space(config)
        self.n = config.nodes
        nobody = [space.node_id(i, Node("J", 0, 1)) for i in range(self.n)]
        self.purses: list[int] = [space.purse()]
        self._purse_ids = {self.purses[0]: 0}
        self._faults = sum(15 << 4 * (k + 1) for k, kind in enumerate(LIMITED) if kind not in FREE)
        self._pay: dict[tuple[int, int], int] = {}
        self.step = ""
        self.first = (0, 0, *nobody, 0, 0)
        self.canonical: Callable[[tuple[int, ...]], tuple[int, ...]] = space.canonical if space.symmetric else tuple
        self._moves: dict[tuple[int, int, int], list[dict[int, tuple[Move, ...]]]] = {}
        self._flags: dict[tuple[int, int], tuple[bool, bool, bool]] = {}

    def pay(self, purse: int, cost: int) -> int:
        """The id of what is left; -1 if it is too little."""
        left = self._pay.get((purse, cost))
        if left is None:
            have, price, short = self.purses[purse], self.space.costs[cost], False
            shift = 0
            while price >> shift:
                short |= (have >> shift) & 15 < (price >> shift) & 15
                shift += 4
            if short:
                left = -1
            else:
                rest_ = have - price
                if rest_ & 15 == 0:
                    rest_ &= ~self._faults  # nothing is left to pay them with
                if rest_ not in self._purse_ids:
                    self._purse_ids[rest_] = len(self.purses)
                    self.purses.append(rest_)
                left = self._purse_ids[rest_]
            self._pay[purse, cost] = left
        return left

    def successors(self, g: tuple[int, ...], emit: Callable[[tuple[int, ...], bool, str], None]) -> None:
        """Report every step from ``g``: where it leads, whether it is free of faults, and its description."""
        space, n = self.space, self.n
        sid, lid, purse, flight = g[0], g[1], g[-2], g[-1]
        alive = 0
        bits = space.alive_bit
        for nid in g[2:-2]:
            alive |= bits[nid]
        table = self._moves.get((sid, lid, alive))
        if table is None:
            table = self._moves[sid, lid, alive] = [{} for _ in range(2 * n)]
        if flight:
            self._land(g, emit)
        pay = self._pay
        rich = bool(self.purses[purse] & 15)
        for k in range(2 * n if rich else n):
            i = k if k < n else k - n
            nid = g[2 + i]
            moves = table[k].get(nid)
            if moves is None:
                self.step = f"{i} computes its next step"
                moves = table[k][nid] = space.moves(i, sid, lid, nid, alive, k >= n)
            for effect, label, cost, free, after, extra in moves:
                left = purse
                if cost:
                    left = pay.get((purse, cost))
                    if left is None:
                        left = self.pay(purse, cost)
                    if left < 0:
                        continue
                if effect == LOCAL:
                    emit((*g[: 2 + i], after, *g[3 + i : -2], left, flight), free, label)
                elif effect == CAS:
                    self.step = label
                    emit(self._swap(g, i, after, extra, left), free, label)
                elif effect == LOG:
                    emit((sid, extra, *g[2 : 2 + i], after, *g[3 + i : -2], left, flight), free, label)
                elif effect == FLIGHT:
                    if not flight:
                        emit((*g[: 2 + i], after, *g[3 + i : -2], left, extra), free, label)
                elif effect == ENTER:
                    self._same_world(g, i, after, label)
                    emit((*g[: 2 + i], after, *g[3 + i : -2], left, flight), free, label)
                elif effect == NOTIFY:
                    nodes = [space.woken[x] for x in g[2:-2]]
                    nodes[i] = after
                    emit((sid, lid, *nodes, left, flight), free, label)
                else:
                    assert effect == BAD
                    self.step = label
                    raise Violation(label)

    def _swap(self, g: tuple[int, ...], i: int, after: int, target: int, purse: int) -> tuple[int, ...]:
        """The global state once ``target`` was written; ``i`` is -1 when nobody waits for the answer."""
        space = self.space
        sid = g[0]
        flags = self._flags.get((sid, target))
        if flags is None:
            flags = self._flags[sid, target] = self._interesting(sid, target)
        self._check(g, target, i, flags)
        before, state = space.states[sid], space.states[target]
        assert state is not None
        opened = before is None or before.gen != state.gen
        others = space.moved_on if opened else space.doomed
        nodes = [others[x] for x in g[2:-2]]
        if i >= 0:
            nodes[i] = after
        lid = 0 if opened else space.prune(g[1], target)
        flight = g[-1]
        if flight:
            kind, what, _ = space.flights[flight]
            if kind == "C":
                flight = flight if not space.rule("nonce") else 0
            elif opened:
                flight = 0  # it will land in a log that nobody reads any more
            elif space.rule("seq") and space.rule("tomb"):
                record = space.records[what]
                if record.seq <= state.sequence(record.inc):
                    flight = 0
        return (target, lid, *nodes, purse, flight)

    def _interesting(self, sid: int, target: int) -> tuple[bool, bool, bool]:
        """Whether a swap completes a round, counts somebody as finished, closes the run as done."""
        space = self.space
        before, state = space.states[sid], space.states[target]
        assert state is not None
        completes = state.complete and (before is None or not before.complete or before.round != state.round)
        finishes = state.finished - (
            before.finished if before is not None and before.round == state.round else frozenset()
        )
        return completes, bool(finishes), state.closed.value == "done"

    def _check(self, g: tuple[int, ...], target: int, by: int, flags: tuple[bool, bool, bool]) -> None:
        """Checks that need the processes and not only the agreed states."""
        space, n = self.space, self.n
        completes, finishes, done = flags
        state, before = space.states[target], space.states[g[0]]
        assert state is not None
        incs, infos = space.incs, space.nodes
        nodes = [infos[x] for x in g[2:-2]]
        for i, node in enumerate(nodes):
            if node.phase == "O" and node.acknowledged and i != by:
                inc = incs[i + n * node.inc]
                if state.listed(inc) and not state.is_closed:
                    what = f"counted in round {state.round}" if completes else "listed again"
                    raise Violation(f"{i + n * node.inc} is {what} after its withdrawal was acknowledged")
        if completes:
            for inc in state.participants:
                x = space.index[inc]
                i, number = x % n, x // n
                node = nodes[i]
                if number == node.inc and node.finished >= 0:
                    raise Violation(f"{x} has finished and is in the later round {state.round}")
                if number != node.inc and incs[i + n] in state.participants:
                    raise Violation(f"the superseded incarnation {x} is ranked with its successor")
        if finishes:
            was = before.finished if before is not None and before.round == state.round else frozenset()
            for inc in state.finished - was:
                x = space.index[inc]
                node = nodes[x % n]
                if node.inc == x // n and node.finished != state.round:
                    raise Violation(f"{x} counts as finished in round {state.round} without having finished it")
        if done:
            for inc in state.participants:
                x = space.index[inc]
                node = nodes[x % n]
                if node.inc == x // n and node.phase not in "DOR" and node.finished < 0:
                    raise Violation(f"closed as done while the unfinished member {x} is alive")
                if inc not in state.finished:
                    raise Violation(f"closed as done although {x} has not finished")

    def _same_world(self, g: tuple[int, ...], i: int, after: int, label: str) -> None:
        """All who were given a round were given the same one."""
        infos = self.space.nodes
        mine = infos[after]
        for k, x in enumerate(g[2:-2]):
            other = infos[x]
            if k != i and other.roster and other.last == mine.last and other.phase in "MF":
                if other.roster != mine.roster:
                    raise Violation(f"two worlds in round {mine.last}: {other.roster} and {mine.roster} ({label})")

    def _land(self, g: tuple[int, ...], emit: Callable[[tuple[int, ...], bool, str], None]) -> None:
        """The message in flight arrives."""
        space = self.space
        kind, what, base = space.flights[g[-1]]
        clear = (*g[:-1], 0)
        if kind == "S":
            record = space.records[what]
            lid = space.append(g[1], record, g[0])
            emit((g[0], lid, *clear[2:]), False, f"the late {record.kind.name} of {space.index[record.inc]} arrives")
        elif space.rule("nonce") or base == g[0]:
            self.step = f"the late swap arrives: {space.show(what)}"
            emit(self._swap(clear, -1, 0, what, g[-2]), False, self.step)


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
    search = _Search(config)
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
    search: _Search,
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


def _walk(
    search: _Search, g: tuple[int, ...], path: list[tuple[int, ...]]
) -> tuple[list[str], tuple[int, ...]]:
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
    search: _Search, states: list[tuple[int, ...]], parents: array[int], k: int
) -> tuple[list[str], tuple[int, ...]]:
    path = [k]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return _walk(search, search.first, [states[j] for j in path[-2::-1]])


def _circle(
    search: _Search,
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
