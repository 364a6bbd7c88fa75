"""All that may happen in a global state: each process's moves, what they do to the others, the checks of each step."""

from __future__ import annotations

from collections.abc import Callable

from .config import FREE, LIMITED, Config
from .player import BAD, CAS, ENTER, FLIGHT, LOCAL, LOG, NOTIFY, Move, Player
from .space import Node, Violation, covers

__all__ = ("Search",)


class Search:
    """The graph of global states of one configuration."""

    def __init__(self, config: Config) -> None:
        self.space = space = Player(config)
        self.n = config.nodes
        nobody = [space.node_id(i, Node("J", 0, 1)) for i in range(self.n)]
        self.purses: list[int] = [space.purse()]
        self._purse_ids = {self.purses[0]: 0}
        self._faults = sum(15 << 4 * (k + 1) for k, kind in enumerate(LIMITED) if kind not in FREE)
        self._pay: dict[tuple[int, int], int] = {}
        self._lossy = space.cost("loss") if config.limit["loss"] else 0
        self.step = ""
        self.first = (0, 0, *nobody, 0, 0)
        self.canonical: Callable[[tuple[int, ...]], tuple[int, ...]] = space.canonical if space.symmetric else tuple
        self._moves: dict[tuple[int, int, int], list[dict[int, tuple[Move, ...]]]] = {}
        self._visible: dict[tuple[int, int], int] = {}
        self._flags: dict[tuple[int, int], tuple[bool, bool, bool]] = {}

    def pay(self, purse: int, cost: int) -> int:
        """The id of what is left; -1 if it is too little."""
        left = self._pay.get((purse, cost))
        if left is None:
            have, price = self.purses[purse], self.space.costs[cost]
            if not covers(have, price):
                left = -1
            else:
                rest = have - price
                if rest & 15 == 0:
                    rest &= ~self._faults  # nothing is left to pay them with
                left = self._purse_ids.setdefault(rest, len(self.purses))
                if left == len(self.purses):
                    self.purses.append(rest)
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
        mask = self._visible.get((sid, lid))
        if mask is None:
            mask = self._visible[sid, lid] = space.visible(sid, lid)
        alive &= mask
        table = self._moves.get((sid, lid, alive))
        if table is None:
            table = self._moves[sid, lid, alive] = [{} for _ in range(2 * n)]
        if flight:
            self._land(g, emit)
        pay = self._pay
        if self._lossy and space.states[sid] is not None:
            poorer = self.pay(purse, self._lossy)
            if poorer >= 0:
                # What is in flight was sent to the store that is no more.
                nodes = [space.moved_on[x] for x in g[2:-2]]
                emit((space.empty(space.eras[sid] + 1), 0, *nodes, poorer, 0), False, "the store is lost")
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
                    known = pay.get((purse, cost))
                    left = self.pay(purse, cost) if known is None else known
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
                if space.settings[x] != state.settings:
                    raise Violation(f"{x} is in round {state.round} with settings that are not its own")
                if number == node.inc and node.finished >= 0:
                    raise Violation(f"{x} has finished and is in the later round {state.round}")
                if number != node.inc and incs[i + n] in state.participants and not space.config.relocate:
                    raise Violation(f"the superseded incarnation {x} is ranked with its successor")
        if finishes:
            was = before.finished if before is not None and before.round == state.round else frozenset()
            for inc in state.finished - was:
                x = space.index[inc]
                node = nodes[x % n]
                if node.inc == x // n and (node.finished, node.era) != (state.round, space.eras[target]):
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
            same = k != i and (other.last, other.era) == (mine.last, mine.era) and other.phase in "MF"
            if same and other.roster != mine.roster:
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
