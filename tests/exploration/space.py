"""What one node may do next, asked of the real ``decide`` and remembered.

Everything that makes up a global state is interned: agreed states, announcement logs, nodes and messages in flight are
small integers, so that a global state is a tuple of integers and each question is put to the core once.

Nonces are exact without being stored. A successful swap dooms every other pending one, which is what a fresh nonce
does; the nonce of a round is its number, because numbers only grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from arendezvous.core.fold import Fresh, close
from arendezvous.core.liveness import Sighting, targets
from arendezvous.core.ops import Action, Decision, Me, Memory, Role, View, decide, own_record
from arendezvous.core.state import AgreedSettings, Kind, Record, RendezvousState, invariants
from arendezvous.node import NodeDesc

from .config import LIMITED, Config

__all__ = ("ACTIVE", "BAD", "CAS", "ENTER", "FLIGHT", "LOCAL", "LOG", "NOTIFY", "Move", "Node", "Space", "Violation")

# What a move does besides replacing its node.
LOCAL, LOG, FLIGHT, CAS, ENTER, BAD, NOTIFY = range(7)

#: Phases in which a node beats and acts.
ACTIVE = "JMFLNX"

_NOW = 1000.0
_LONG_AGO = -1e9
_NONCE, _FRESH_NONCE, _EPOCH = b"N" * 16, b"F" * 16, b"E" * 16
_SETTINGS_TIMES = {"last_call": 30.0, "keep_alive_interval": 50.0, "keep_alive_max_attempt": 3}
# When an observer first looked at a node, and when a node that has died since was last seen to beat: those of the first
# start, the later ones of several twins, those of a restart. A successor is only seen once its predecessor is dead.
_FIRST_LOOK = (_NOW - 500, _NOW - 90, _NOW - 50)
_LAST_BEAT = (_NOW - 100, _NOW - 80, _NOW - 40)
_ROLES = {"J": Role.JOINING, "M": Role.MEMBER, "F": Role.FINISHED, "L": Role.LEAVING}
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
    woke: bool = True


class Move(NamedTuple):
    """One possible step of one node: what it does, what it costs, whether it needs no fault and no choice."""

    effect: int
    label: str
    cost: int
    free: bool
    node: int
    extra: int = 0


class Space:
    """Interned pieces and the moves of single nodes."""

    def __init__(self, config: Config) -> None:
        self.config, self.n = config, config.nodes
        n = self.n
        self.incs = [(k + 1).to_bytes(16, "big") for k in range(2 * n)]
        self.index = {inc: k for k, inc in enumerate(self.incs)}
        self.place = [config.place(k % n) for k in range(2 * n)]
        self.descs = [
            NodeDesc(f"host{self.place[k]}", 1, 0, incarnation=self.incs[k]) for k in range(2 * n)
        ]
        # With nodes ranked as they joined, renaming the nodes of a global state gives an equivalent one.
        self.symmetric = len(set(self.place[:n])) == n
        order = "stable" if self.symmetric else "address"
        self.settings = AgreedSettings(config.min_nodes, config.max_nodes, order, **_SETTINGS_TIMES)
        self.on = {name: name not in config.off for name in config.off}
        self.states: list[RendezvousState | None] = [None]
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
            state.closed, state.gen, state.round, state.complete, state.participants, frozenset(state.gone.items()),
            state.finished, state.queue, frozenset(state.folded.items()), state.failures, state.floor,
        )
        sid = self._state_ids.get(key)
        if sid is None:
            if state.round > _MOST_ROUNDS:
                raise Violation("livelock: rounds grow without bound")
            sid = self._state_ids[key] = len(self.states)
            self.states.append(replace(state, nonce=_NONCE, round_nonce=round_nonce(state.round)))
            self.parts.append([self._content(self._part(state, i)) for i in range(self.n)])
        return sid

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
        state_key, log_key = "state", "log"

        def inc(old: bytes) -> bytes:
            return incs.get(old, old)

        def renamed(kind: str, what: int) -> int:
            if what < 0:
                return what
            key = (kind, what, order)
            if key not in self._renamed:
                self._renamed[key] = self._rename(kind, what, order)
            return self._renamed[key]

        if kind == state_key:
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
        if kind == log_key:
            return self.log_id(tuple(renamed("record", rid) for rid in self.logs[what]))
        if kind == "":
            sort, about, base = self.flights[what]
            if not sort:
                return what
            return self.flight(sort, renamed("record" if sort == "S" else state_key, about), renamed(state_key, base))
        node_ = self.nodes[what]
        return self.node_id(
            new[int(kind)],
            node_._replace(
                pending=renamed(state_key, node_.pending),
                base=renamed(state_key, node_.base),
                read=renamed(log_key, node_.read),
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
            if before is not None and proposal.epoch != before.epoch:
                wrong.append("another epoch")
            if wrong:
                raise Violation("invariant: " + "; ".join(wrong))
            self._checked.add((sid, target))
        return target

    # ---- one node ---------------------------------------------------------------------------------------------

    def me(self, i: int, node: Node, state: RendezvousState | None) -> Me:
        """What ``decide`` knows of a process itself."""
        k = i + self.n * node.inc
        finished = node.finished >= 0
        told = node.announced == 1 or (node.announced == 2 and not self.rule("announce_first"))
        return Me(
            inc=self.incs[k],
            node=self.descs[k],
            settings=self.settings,
            role=_ROLES[node.phase],
            seq=node.seq,
            announced=(state.epoch, state.gen) if state is not None and told else None,
            last_round=node.last,
            round_nonce=round_nonce(node.finished if finished else node.last) if finished or node.last >= 0 else b"",
            finished=finished,
            notify_lost=self.config.notify_lost,
        )

    def ask(
        self,
        state: RendezvousState | None,
        records: tuple[Record, ...],
        me: Me,
        sightings: dict[bytes, Sighting],
        over: bool,
        told: tuple[object, ...] = (),
    ) -> Decision:
        """Put one question to the core: every timer has fired, the last call only if ``over``."""
        self.decisions += 1
        if state is None:
            memory = Memory(join_since=_NOW)
        else:
            seen = (state.round_nonce, _LONG_AGO if over else _NOW)
            memory = Memory(_NOW, seen, (_LONG_AGO, state.nonce, True), told=told)
        return decide(
            View(
                state=state,
                records=records,
                me=me,
                fresh=Fresh(_FRESH_NONCE, b"R" * 16),
                epoch=_EPOCH,
                sightings=sightings,
                memory=memory,
                rules=self.config.rules,
                tombstone_limit=self.config.tombstone_limit,
            ),
            _NOW,
        )

    def sightings(
        self, state: RendezvousState, records: tuple[Record, ...], me: Me, alive: int, node: Node
    ) -> tuple[dict[bytes, Sighting], list[bytes], list[bytes]]:
        """What a node has seen of those it watches, and whom it may suspect: the dead ones, and the live ones."""
        dead = {inc for inc in state.ring if not self.beats(inc, alive)}
        wanted = set(targets(state, me.inc, dead))
        newcomers = {r.inc: r.node for r in records if r.node is not None and r.seq > state.sequence(r.inc)}
        if not state.listed(me.inc) and me.role is Role.JOINING:
            newcomers[me.inc] = me.node
        twins = set()
        for new, desc in newcomers.items():
            for inc, other in state.nodes.items():
                if inc != new and state.listed(inc) and desc is not None and other.triple == desc.triple:
                    twins.add(inc)
                    wanted |= {inc, new}
        if not self.rule("watch"):
            live = state.live if state.complete and me.inc in state.live and node.phase == "M" else ()
            wanted &= set(live)
        if (not self.rule("watch_unlisted") and not state.listed(me.inc)) or (
            not self.rule("finished_watch") and node.phase == "F"
        ):
            wanted = set()
        wanted.discard(me.inc)
        seen = {}
        for inc in wanted:
            k = self.index[inc]
            age = 2 if k >= self.n else int(self.place.index(self.place[k]) < k)
            since, progressed = _FIRST_LOOK[age], _NOW
            if not self.beats(inc, alive):
                progressed = _LAST_BEAT[age] if self.rule("hold_pair") else _NOW
            if k + self.n == self.index[me.inc]:
                # Its own former life ended before it first looked.
                seen[inc] = Sighting(_FIRST_LOOK[2], _FIRST_LOOK[2], b"", present_once=True)
                continue
            seen[inc] = Sighting(since, progressed, b"", moved=True, present_once=True)
        if not self.rule("hold_both"):
            for inc in newcomers:
                if inc != me.inc:
                    seen[inc] = Sighting(_FIRST_LOOK[2], _NOW, b"", moved=True, present_once=True)
        if not self.rule("wait_for_silence"):
            for inc in twins - {me.inc}:
                seen[inc] = Sighting(0.0, _LONG_AGO)
        suspects = [inc for inc in sorted(wanted) if inc in seen and not self.beats(inc, alive)]
        return seen, suspects, [inc for inc in sorted(wanted) if self.beats(inc, alive)]

    def beats(self, inc: bytes, alive: int) -> bool:
        """Whether an incarnation is alive."""
        return bool(alive >> self.index[inc] & 1)

    # ---- moves ------------------------------------------------------------------------------------------------

    def moves(self, i: int, sid: int, lid: int, nid: int, alive: int, faults: bool) -> tuple[Move, ...]:
        """Every step of process ``i`` in the agreed state ``sid`` with the announcements ``lid``.

        Args:
            i: The process.
            sid: The agreed state.
            lid: The announcements.
            nid: What the process is in.
            alive: Which incarnations beat, one bit each.
            faults: Only steps that cost some of the common budget; else only those that do not.
        """
        node = self.nodes[nid]
        limit = self.config.limit
        found: list[Move] = []

        def move(
            label: str, after: Node, *, effect: int = LOCAL, extra: int = 0, cost: int = 0, free: bool = False
        ) -> None:
            if bool(self.costs[cost] & 15) is faults and (cost == 0 or self.affordable(cost)):
                found.append(Move(effect, f"{i} {label}", cost, free and cost == 0, self.node_id(i, after), extra))

        phase = node.phase
        if phase == "D":
            if node.inc == 0 and limit["restart"]:
                move("restarts", Node("J", 1, 1), cost=self.cost("restart", budget=0))
            return tuple(found)
        if phase == "O":
            stay_out = node.finished >= 0 and self.rule("finished_stay_out")
            if limit["again"] and not stay_out:
                # The sequence was kept for this; the record of a finish is not carried on.
                move(
                    "joins again",
                    Node("J", node.inc, node.seq + 1, node.last, sent=True, finished=-1),
                    cost=self.cost("again", budget=0),
                )
            return tuple(found)
        if phase not in ACTIVE:
            return ()
        dead = Node("D", node.inc, finished=node.finished)
        move("crashes", dead, cost=self.cost("crash"))
        move("is suspended, its beats go on", Node("Z", node.inc, finished=node.finished), cost=self.cost("suspend"))
        if phase == "N":
            move("notifies", node._replace(phase="J"), effect=NOTIFY, free=True)
            return tuple(found)
        if phase == "X":
            state = self.states[sid]
            assert state is not None
            gone = [self.incs[k] for k in node.roster]
            move(
                "deletes what it folded",
                node._replace(phase="J", roster=()),
                effect=LOG,
                extra=self.delete(lid, gone),
                free=True,
            )
            return tuple(found)
        if node.pending >= 0:
            self._swap(i, sid, node, dead, move)
        else:
            self._think(i, sid, lid, node, dead, alive, move, faults)
        if phase in "JMF":
            out = self._out(node, acknowledged=True)
            if phase == "J" and not node.sent and node.pending < 0:
                move("is cancelled before it sent anything", out, cost=self.cost("cancel"))
            else:
                name = "is cancelled" if phase == "J" else "leaves"
                move(name, self._leaving(node), cost=self.cost("cancel"))
        return tuple(found)

    def affordable(self, cost: int) -> bool:
        """Whether a price can be paid by anybody at all in this configuration."""
        known = self._affordable.get(cost)
        if known is None:
            known = self._affordable[cost] = _covers(self.purse(), self.costs[cost])
        return known

    def _leaving(self, node: Node) -> Node:
        old = 2 if node.announced == 2 and not self._by_generation else 0
        return Node("L", node.inc, node.seq + 1, node.last, old, sent=True, finished=node.finished)

    def _rejoining(self, node: Node) -> Node:
        return Node("J", node.inc, node.seq + 1, node.last, sent=True)

    def _out(self, node: Node, *, acknowledged: bool) -> Node:
        if self.config.limit["again"]:
            return Node("O", node.inc, node.seq, node.last, finished=node.finished, acknowledged=acknowledged)
        return Node("O", node.inc, finished=node.finished, acknowledged=acknowledged)

    def _swap(self, i: int, sid: int, node: Node, dead: Node, move) -> None:  # type: ignore[no-untyped-def]
        """A node whose swap is about to be sent."""
        after = node._replace(pending=-1, base=-1, sent=True)
        flight = self.flight("C", node.pending, node.base)
        if self.rule("nonce") or node.base == sid:
            before, proposal = self.states[sid], self.states[node.pending]
            assert proposal is not None
            nxt = after
            if not self.rule("notice") and node.phase == "J" and proposal.complete:
                if before is None or not before.complete:
                    nxt = after._replace(phase="N")
            if not self.rule("no_deletion") and node.phase == "J":
                folded = tuple(
                    self.index[inc]
                    for inc, seq in proposal.folded.items()
                    if seq > (before.sequence(inc) if before is not None else 0) and inc in self.index
                )
                if folded:
                    nxt = after._replace(phase="X", roster=folded)
            if before is None or proposal.gen != before.gen:
                nxt = nxt._replace(announced=2 if nxt.announced and not self._by_generation else 0)
            if not self.rule("tomb") and node.phase == "L" and self.incs[i + self.n * node.inc] not in proposal.nodes:
                nxt = self._out(node, acknowledged=not proposal.is_closed)
            move(f"swaps: {self.show(node.pending)}", nxt, effect=CAS, extra=node.pending, free=True)
            move("loses touch, its swap in flight", after, effect=FLIGHT, extra=flight, cost=self.cost("flight"))
            move("crashes, its swap in flight", dead, effect=FLIGHT, extra=flight, cost=self.cost("crash", "flight"))
            if node.phase in "JMF":
                move(
                    "is cancelled, its swap in flight",
                    self._leaving(node),
                    effect=FLIGHT,
                    extra=flight,
                    cost=self.cost("cancel", "flight"),
                )
        else:
            move("loses its swap", after, free=True)

    def _think(  # type: ignore[no-untyped-def]
        self, i: int, sid: int, lid: int, node: Node, dead: Node, alive: int, move, faults: bool
    ) -> None:
        """A node that reads and decides."""
        state = self.states[sid]
        me = self.me(i, node, state)
        records = tuple(self.records[r] for r in self.logs[lid])
        limit = self.config.limit
        if node.phase == "M":
            if limit["finish"]:
                move(
                    "finishes",
                    Node("F", node.inc, node.seq + 1, node.last, sent=True, finished=node.last, roster=node.roster),
                    cost=self.cost("finish", budget=0),
                )
            move("re-joins on its own", self._rejoining(node), cost=self.cost("spontaneous"))
        if limit["close"] and node.phase in "JMF" and state is not None and not state.is_closed:
            closed = self.propose(sid, close(state, fresh=Fresh(_FRESH_NONCE, b"")))
            after = node._replace(pending=closed, base=-1 if self.rule("nonce") else sid)
            move("is about to close", after, cost=self.cost("close"))
            record = Record(b"close".ljust(16), 1, Kind.CLOSE)
            move("announces CLOSE", node, effect=LOG, extra=self.append(lid, record, sid), cost=self.cost("close"))
        if state is None:
            self._follow(i, sid, lid, node, dead, self.ask(None, (), me, {}, over=False), (), move, free=True)
            return
        if not self.rule("order") and node.phase == "J":
            if node.read < 0:
                move("reads the announcements before the state", node._replace(read=lid), free=True)
                return
            records = tuple(self.records[r] for r in self.logs[node.read])
            node = node._replace(read=-1)
        seen, silent, live = self.sightings(state, records, me, alive, node)
        asleep = not self.rule("timer") and node.phase == "J" and state.sequence(me.inc) >= node.seq and not node.woke
        first = state.ring[:1] == (me.inc,)
        mine = state.sequence(me.inc) < node.seq and not self.rule("own_memory")
        unread = bool(records) and self.rule("order") and not mine
        counts = not state.complete and len(state.participants) >= self.config.min_nodes
        choices: list[tuple[tuple[bytes, ...], int]] = []
        if faults:
            if self.affordable(self.cost("false")):
                choices += [((inc,), self.cost("false")) for inc in live]
            if state.sequence(me.inc) < node.seq and not node.announced:
                choices.append(((), 0))  # what is announced may be left in flight
        else:
            if not asleep:
                choices.append(((), 0))
            choices += [((inc,), 0) for inc in silent]
            if len(silent) > 1:
                choices.append((tuple(silent), 0))
        done: set[tuple[object, ...]] = set()
        waits, told = True, ()
        if node.phase == "M":
            decision = self.ask(state, (), me, seen, over=False)
            if decision.action is Action.CHANGED:
                # From being told until it re-joins it goes on folding for the others.
                told = decision.memory.told
                self._follow(i, sid, lid, node, dead, decision, (), move, free=True)
        for suspects, cost in choices:
            sighted = {**seen, **{inc: replace(seen[inc], progressed=_LONG_AGO) for inc in suspects}}
            for over in (False, True) if counts else (False,):
                decision = self.ask(state, records, me, sighted, over, told)
                if decision.action is Action.WAIT:
                    continue
                free = True
                if decision.action is Action.FOLD and unread and not first:
                    # Somebody with no reason of its own to fold does not read the announcements, but it may.
                    free = self.ask(state, (), me, sighted, over, told).action is Action.FOLD
                    if not (free or self.config.curious):
                        continue
                waits = False
                target = None if decision.proposal is None else self.propose(sid, decision.proposal)
                key = (decision.action, target, cost == 0, free)
                if key in done:
                    continue
                done.add(key)
                self._follow(i, sid, lid, node, dead, decision, suspects, move, free=free, cost=cost)
                if decision.action is not Action.FOLD and not faults:
                    return  # nothing that the beats show would change this answer
        if not self.rule("gen_ack") and node.phase == "L" and node.announced == 2 and not state.listed(me.inc):
            move("takes a new generation for an acknowledgement", self._out(node, acknowledged=True), free=True)
        if waits and not self.rule("timer") and node.phase == "J" and not asleep:
            move("sleeps until it is woken", node._replace(woke=False), free=True)

    def _follow(  # type: ignore[no-untyped-def]
        self,
        i: int,
        sid: int,
        lid: int,
        node: Node,
        dead: Node,
        decision: Decision,
        suspects: tuple[bytes, ...],
        move,
        *,
        free: bool,
        cost: int = 0,
    ) -> None:
        """Do what was decided, as the handler does."""
        action, state = decision.action, self.states[sid]
        if action is Action.FOLD:
            assert decision.proposal is not None
            target = self.propose(sid, decision.proposal)
            whom = f", suspecting {[self.index[s] for s in suspects]}" if suspects else ""
            after = node._replace(pending=target, base=-1 if self.rule("nonce") else sid)
            move(f"computes: {decision.reason}{' FALSELY' if cost else ''}{whom}", after, free=free, cost=cost)
        elif action is Action.ANNOUNCE:
            assert state is not None
            record = own_record(self.me(i, node, state))
            assert record is not None
            after = node._replace(announced=1, sent=True)
            extra = self.append(lid, record, sid)
            move(f"announces {record.kind.name} seq {record.seq}", after, effect=LOG, extra=extra, free=free)
            flight = self.flight("S", self.record_id(record), -1)
            if node.phase in "JF":
                move(
                    f"is cancelled, its {record.kind.name} in flight",
                    self._leaving(node),
                    effect=FLIGHT,
                    extra=flight,
                    cost=self.cost("cancel", "flight"),
                )
            move(
                f"crashes, its {record.kind.name} in flight",
                dead,
                effect=FLIGHT,
                extra=flight,
                cost=self.cost("crash", "flight"),
            )
        elif action is Action.ENTER:
            assert state is not None
            if state.round <= node.last:
                move(f"is handed round {state.round} again", node, effect=BAD, free=free)
                return
            world = state.participants if self.rule("frozen") else state.live
            roster = tuple(self.index[inc] for inc in world)
            after = Node("M", node.inc, node.seq, state.round, sent=True, roster=roster)
            move(f"enters round {state.round} with {roster}", after, effect=ENTER, extra=state.round, free=free)
        elif action in (Action.REJOIN, Action.EVICTED, Action.CHANGED):
            move(f"{action.value}: {decision.reason}; joins again", self._rejoining(node), free=free)
        elif action is Action.ACKNOWLEDGED:
            assert state is not None
            if state.listed(self.incs[i + self.n * node.inc]) and not state.is_closed:
                move("is told that it has withdrawn, and is listed", node, effect=BAD, free=free)
                return
            move("has withdrawn", self._out(node, acknowledged=not state.is_closed), free=free)
        elif action is Action.RELEASED:
            move(f"is released: {decision.reason}", Node("R", node.inc, finished=node.finished), free=free)
        elif action in (Action.CLOSED, Action.GRACEFUL):
            move(f"ends: {decision.reason}", self._out(node, acknowledged=False), free=free)
        else:
            move(f"{action.value}: {decision.reason}", self._leaving(node), free=free)

    # ---- messages in flight -----------------------------------------------------------------------------------

    def flight(self, kind: str, what: int, base: int) -> int:
        """Intern a message in flight; 0 is none."""
        key = (kind, what, base)
        if key not in self._flight_ids:
            self._flight_ids[key] = len(self.flights)
            self.flights.append(key)
        return self._flight_ids[key]

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


def round_nonce(number: int) -> bytes:
    """The canonical nonce of a round."""
    return b"round" + number.to_bytes(11, "big")


def _covers(purse: int, price: int) -> bool:
    while price:
        if price & 15 > purse & 15:
            return False
        price, purse = price >> 4, purse >> 4
    return True
