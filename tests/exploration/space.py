"""The pieces of global states, interned: agreed states, announcement logs, nodes and messages in flight are integers.

A global state is then a tuple of integers: agreed state, log, one number per process, what may still be spent, the
message in flight. Nonces are exact without being stored: a successful swap dooms every other pending one, which is what
a fresh nonce does; the nonce of a round is its number, because numbers only grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from arendezvous.core.state import AgreedSettings, Record, RendezvousState, invariants
from arendezvous.node import NodeDesc

from .config import LIMITED, Config

__all__ = ("Node", "Space", "Violation", "covers", "epoch", "era_of", "round_nonce")

_NONCE = b"N" * 16
_MOST_ROUNDS, _MOST_INTENTS = 8, 9


class Violation(Exception):
    """Something that must never happen has."""


class Node(NamedTuple):
    """One process.

    Attributes:
        phase: Joining, Member, Finished, Leaving; Dead, suspended (Z), Out, Released; Notifying, deleting (X).
        inc: 1 after a restart.
        seq: Of the current intent.
        last: The last round it was given.
        announced: 1 in the current generation, 2 in an earlier one (kept only where that matters).
        sent: Something of it may have reached the store.
        pending: The state it is about to write; -1 none.
        base: The state that its pending swap expects; kept only without nonces.
        read: The log it read before the state; kept only with that order.
        finished: The round that it has finished; -1 none.
        roster: The world it was given.
        acknowledged: Its withdrawal was acknowledged.
        era: Of the round that it is in or has finished: how often the store had been lost.
        woke: It was woken; always true where timers do it.
    """

    phase: str
    inc: int = 0
    seq: int = 0
    last: int = -1
    announced: int = 0
    sent: bool = False
    pending: int = -1
    base: int = -1
    read: int = -1
    finished: int = -1
    roster: tuple[int, ...] = ()
    acknowledged: bool = False
    era: int = 0
    woke: bool = True


class Space:
    """Everything that global states are made of."""

    def __init__(self, config: Config) -> None:
        self.config, self.n = config, config.nodes
        n = self.n
        self.incs = [(k + 1).to_bytes(16, "big") for k in range(2 * n)]
        self.index = {inc: k for k, inc in enumerate(self.incs)}
        self.place = [config.place(k % n, restarted=k >= n) for k in range(2 * n)]
        self.descs = [NodeDesc(f"host{self.place[k]}", 1, 0, incarnation=self.incs[k]) for k in range(2 * n)]
        # With nodes ranked as they joined, renaming the nodes of a global state gives an equivalent one.
        alike = len(set(self.place[:n])) == n and not config.misfits
        self.symmetric = alike and config.symmetry
        common = AgreedSettings(
            config.min_nodes,
            config.max_nodes,
            "stable" if alike else "address",
            last_call=30.0,
            keep_alive_interval=50.0,
            keep_alive_max_attempt=3,
        )
        self.settings = [replace(common, last_call=31.0) if i in config.misfits else common for i in range(n)] * 2
        #: Number 0 is the empty store; so are those that a loss of the store leaves, one per loss.
        self.states: list[RendezvousState | None] = [None]
        self.eras: list[int] = [0]
        self._empty: list[int] = [0]
        self._state_ids: dict[tuple[object, ...], int] = {}
        self.records: list[Record] = []
        self._record_ids: dict[Record, int] = {}
        self.logs: list[tuple[int, ...]] = [()]
        self._log_ids: dict[tuple[int, ...], int] = {(): 0}
        self.nodes: list[Node] = []
        self._node_ids: dict[Node, int] = {}
        #: Per node id: the same after a successful swap by somebody else, without and with a new generation.
        self.doomed: list[int] = []
        self.moved_on: list[int] = []
        self.woken: list[int] = []
        self.alive_bit: list[int] = []
        #: Per node id: what it is in, regardless of which node it is; likewise each node's part in states and logs.
        self.content: list[int] = []
        self._contents: dict[object, int] = {}
        self.parts: list[list[int]] = [[0] * n]
        self.log_parts: list[list[int]] = [[0] * n]
        self._renamed: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self.flights: list[tuple[str, int, int]] = []
        self._flight_ids: dict[tuple[str, int, int], int] = {}
        self.flight("", 0, 0)
        self._pruned: dict[tuple[int, int], int] = {}
        self._checked: set[tuple[int, int]] = set()
        self._by_generation = self.rule("gen_ack") and self.rule("announce_first")
        self._keep_all = not (self.rule("seq") and self.rule("tomb"))
        self.costs: list[int] = [0]
        self._cost_ids: dict[int, int] = {0: 0}
        self.decisions = 0
        self._affordable: dict[int, bool] = {}

    def rule(self, name: str) -> bool:
        """Whether a rule is in force."""
        return name not in self.config.off

    # ---- interning --------------------------------------------------------------------------------------------

    def cost(self, *kinds: str, budget: int = 1) -> int:
        """The id of a price: one of each kind, and ``budget`` of the common one."""
        price = budget
        for kind in kinds:
            price += 1 << 4 * (LIMITED.index(kind) + 1)
        if price not in self._cost_ids:
            self._cost_ids[price] = len(self.costs)
            self.costs.append(price)
        return self._cost_ids[price]

    def purse(self) -> int:
        """All that may be spent, as one number."""
        limit = self.config.limit
        value = self.config.faults
        for k, kind in enumerate(LIMITED):
            value += limit[kind] << 4 * (k + 1)
        return value

    def state_id(self, state: RendezvousState) -> int:
        """Intern a state, with its nonces made canonical."""
        key = (
            state.epoch,
            state.settings,
            state.closed,
            state.gen,
            state.round,
            state.complete,
            state.participants,
            frozenset(state.gone.items()),
            state.finished,
            state.queue,
            frozenset(state.folded.items()),
            state.failures,
            state.floor,
        )
        sid = self._state_ids.get(key)
        if sid is None:
            if state.round > _MOST_ROUNDS:
                raise Violation("livelock: rounds grow without bound")
            sid = self._state_ids[key] = len(self.states)
            era = era_of(state)
            self.eras.append(era)
            self.states.append(replace(state, nonce=_NONCE, round_nonce=round_nonce(era, state.round)))
            self.parts.append([self._content(self._part(state, i)) for i in range(self.n)])
        return sid

    def empty(self, era: int) -> int:
        """The id of the empty store after ``era`` losses."""
        while len(self._empty) <= era:
            self._empty.append(len(self.states))
            self.eras.append(len(self._empty) - 1)
            self.states.append(None)
            self.parts.append([0] * self.n)
        return self._empty[era]

    def record_id(self, record: Record) -> int:
        """Intern an announcement."""
        rid = self._record_ids.get(record)
        if rid is None:
            rid = self._record_ids[record] = len(self.records)
            self.records.append(record)
        return rid

    def log_id(self, log: tuple[int, ...]) -> int:
        """Intern an announcement log."""
        lid = self._log_ids.get(log)
        if lid is None:
            lid = self._log_ids[log] = len(self.logs)
            self.logs.append(log)
            said: list[list[object]] = [[] for _ in range(self.n)]
            for k, rid in enumerate(log):
                record = self.records[rid]
                x = self.index.get(record.inc)
                if x is not None:
                    said[x % self.n].append((k, x // self.n, record.seq, record.kind))
            self.log_parts.append([self._content(("log", *what)) for what in said])
        return lid

    def node_id(self, i: int, node: Node) -> int:
        """Intern process ``i``; the id is shared by no other process, because the phase is paired with ``i``."""
        key = node._replace(roster=(*node.roster, -1, i))
        nid = self._node_ids.get(key)
        if nid is not None:
            return nid
        if node.seq > _MOST_INTENTS:
            raise Violation("livelock: announcements grow without bound")
        nid = self._node_ids[key] = len(self.nodes)
        self.nodes.append(node)
        self.content.append(
            self._content(node._replace(pending=node.pending >= 0, base=node.base >= 0, read=node.read >= 0, roster=()))
        )
        self.alive_bit.append(1 << (i + self.n * node.inc) if node.phase in "JMFLZNX" else 0)
        self.doomed.append(nid)
        self.moved_on.append(nid)
        self.woken.append(nid)
        wakes = self.rule("notice") or self.rule("timer")
        doomed = node._replace(pending=-1, base=-1) if self.rule("nonce") else node
        doomed = doomed._replace(woke=node.woke or wakes)
        self.doomed[nid] = nid if doomed == node else self.node_id(i, doomed)
        later = 2 if node.announced and not self._by_generation else 0
        moved_on = doomed._replace(announced=later)
        self.moved_on[nid] = nid if moved_on == node else self.node_id(i, moved_on)
        woken = node._replace(woke=True)
        self.woken[nid] = nid if woken == node else self.node_id(i, woken)
        return nid

    def flight(self, kind: str, what: int, base: int) -> int:
        """Intern a message in flight, a record (S) or a swap (C); 0 is none."""
        key = (kind, what, base)
        if key not in self._flight_ids:
            self._flight_ids[key] = len(self.flights)
            self.flights.append(key)
        return self._flight_ids[key]

    # ---- renaming ---------------------------------------------------------------------------------------------

    def _content(self, what: object) -> int:
        return self._contents.setdefault(what, len(self._contents))

    def _part(self, state: RendezvousState, i: int) -> tuple[object, ...]:
        """What a state says of node ``i``, without naming it."""
        part: list[object] = []
        for inc in (self.incs[i], self.incs[i + self.n]):
            at = state.participants.index(inc) if inc in state.participants else -1
            queued = state.queue.index(inc) if inc in state.queue else -1
            part += [at, queued, state.gone.get(inc), inc in state.finished, state.sequence(inc)]
        return tuple(part)

    def canonical(self, g: tuple[int, ...]) -> tuple[int, ...]:
        """The representative of all global states that differ from ``g`` only in which node is which.

        Nodes are numbered by their parts in the state and in the log and by what they are in. Nodes that this leaves
        equal keep their order, so that a few equivalent states may remain apart, which costs time and nothing else.
        """
        n, content = self.n, self.content
        parts, said = self.parts[g[0]], self.log_parts[g[1]]
        keys = [(parts[i], said[i], content[g[2 + i]], i) for i in range(n)]
        if n == 2:
            if keys[0] < keys[1]:
                return g
            order: tuple[int, ...] = (1, 0)
        else:
            order = tuple(key[3] for key in sorted(keys))
            if order == tuple(range(n)):
                return g
        return self.rename(g, order)

    def rename(self, g: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
        """The global state in which node ``k`` is what node ``order[k]`` is in ``g``."""
        known = self._renamed
        out = []
        for kind, what in (("state", g[0]), ("log", g[1]), *((str(k), g[2 + k]) for k in order), ("", g[-1])):
            key = (kind, what, order)
            new = known.get(key)
            if new is None:
                new = known[key] = self._rename(kind, what, order)
            out.append(new)
        return (*out[:-1], g[-2], out[-1])

    def _rename(self, kind: str, what: int, order: tuple[int, ...]) -> int:
        n = self.n
        new = {old: k for k, old in enumerate(order)}
        incs = {self.incs[i + n * r]: self.incs[new[i] + n * r] for i in range(n) for r in (0, 1)}

        def inc(old: bytes) -> bytes:
            return incs.get(old, old)

        def renamed(kind: str, what: int) -> int:
            if what < 0:
                return what
            key = (kind, what, order)
            if key not in self._renamed:
                self._renamed[key] = self._rename(kind, what, order)
            return self._renamed[key]

        if kind == "state":
            state = self.states[what]
            if state is None:
                return what
            return self.state_id(
                replace(
                    state,
                    participants=tuple(map(inc, state.participants)),
                    gone={inc(x): why for x, why in state.gone.items()},
                    finished=frozenset(map(inc, state.finished)),
                    queue=tuple(map(inc, state.queue)),
                    nodes={inc(x): self.descs[self.index[inc(x)]] for x in state.nodes},
                    folded={inc(x): seq for x, seq in state.folded.items()},
                )
            )
        if kind == "record":
            record = self.records[what]
            node = None if record.node is None else self.descs[self.index[inc(record.inc)]]
            return self.record_id(replace(record, inc=inc(record.inc), node=node))
        if kind == "log":
            return self.log_id(tuple(renamed("record", rid) for rid in self.logs[what]))
        if kind == "":
            sort, about, base = self.flights[what]
            if not sort:
                return what
            return self.flight(sort, renamed("record" if sort == "S" else "state", about), renamed("state", base))
        node_ = self.nodes[what]
        return self.node_id(
            new[int(kind)],
            node_._replace(
                pending=renamed("state", node_.pending),
                base=renamed("state", node_.base),
                read=renamed("log", node_.read),
                roster=tuple(new[x % n] + x // n * n for x in node_.roster),
            ),
        )

    # ---- the log ----------------------------------------------------------------------------------------------

    def append(self, lid: int, record: Record, sid: int) -> int:
        """The log after an announcement."""
        rid, log = self.record_id(record), self.logs[lid]
        if rid in log:
            return lid
        if not self.rule("keys"):
            log = tuple(r for r in log if self.records[r].inc != record.inc)
        return self.prune(self.log_id((*log, rid)), sid)

    def delete(self, lid: int, incs: Iterable[bytes]) -> int:
        """The log after the keys of some nodes were deleted."""
        return self.log_id(tuple(r for r in self.logs[lid] if self.records[r].inc not in set(incs)))

    def prune(self, lid: int, sid: int) -> int:
        """The log without what was folded: that never counts again within its generation."""
        if lid == 0 or self._keep_all:
            return lid
        key = (lid, sid)
        got = self._pruned.get(key)
        if got is None:
            state = self.states[sid]
            assert state is not None
            log = tuple(r for r in self.logs[lid] if self.records[r].seq > state.sequence(self.records[r].inc))
            got = self._pruned[key] = self.log_id(log)
        return got

    def visible(self, sid: int, lid: int) -> int:
        """Whose beats may matter to somebody: of those listed and of those that announced, one bit each."""
        state = self.states[sid]
        incs = {self.records[r].inc for r in self.logs[lid]} | (set() if state is None else set(state.nodes))
        return sum(1 << self.index[inc] for inc in incs if inc in self.index)

    # ---- checks of single steps -------------------------------------------------------------------------------

    def propose(self, sid: int, proposal: RendezvousState) -> int:
        """Intern a proposal, once its invariants were checked against the state it replaces."""
        target = self.state_id(proposal)
        if (sid, target) not in self._checked:
            before = self.states[sid]
            wrong = invariants(proposal, before)
            if not self.rule("tomb"):
                # That is the rule which is off; what matters is what comes of it.
                wrong = [sentence for sentence in wrong if "forgotten" not in sentence]
            if era_of(proposal) != self.eras[sid]:
                wrong.append("another epoch")
            if wrong:
                raise Violation("invariant: " + "; ".join(wrong))
            self._checked.add((sid, target))
        return target

    # ---- words ------------------------------------------------------------------------------------------------

    def show(self, sid: int) -> str:
        """An agreed state in one line."""
        state = self.states[sid]
        if state is None:
            return "no state"

        def names(incs: Iterable[bytes]) -> str:
            return "[" + ",".join(str(self.index.get(inc, "?")) for inc in incs) + "]"

        text = f"round {state.round} {'complete' if state.complete else 'forming'} P={names(state.participants)}"
        if state.gone:
            text += f" gone={ {self.index[inc]: why.value for inc, why in state.gone.items()} }"
        if state.finished:
            text += f" finished={names(sorted(state.finished))}"
        if state.queue:
            text += f" Q={names(state.queue)}"
        if state.is_closed:
            text += f" {state.closed.value}"
        return text + f" gen {state.gen} folded={ {self.index.get(k, -1): v for k, v in state.folded.items()} }"


def epoch(era: int) -> bytes:
    """The epoch of whatever is created after ``era`` losses of the store: one creation wins."""
    return b"epoch" + era.to_bytes(11, "big")


def era_of(state: RendezvousState) -> int:
    """How often the store had been lost when the state's history began."""
    return int.from_bytes(state.epoch[5:], "big")


def round_nonce(era: int, number: int) -> bytes:
    """The canonical nonce of a round."""
    return b"round" + era.to_bytes(3, "big") + number.to_bytes(8, "big")


def covers(purse: int, price: int) -> bool:
    """Whether a price can be paid."""
    while price:
        if price & 15 > purse & 15:
            return False
        price, purse = price >> 4, purse >> 4
    return True
