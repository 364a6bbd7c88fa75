"""What one node may do next, asked of the real ``decide`` and remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from arendezvous.core.fold import Fresh, close
from arendezvous.core.liveness import Sighting, targets
from arendezvous.core.ops import Action, Decision, Me, Memory, Role, View, decide, own_record
from arendezvous.core.state import Kind, Record, RendezvousState

from .space import Node, Space, covers, epoch, round_nonce

__all__ = ("BAD", "CAS", "ENTER", "FLIGHT", "LOCAL", "LOG", "NOTIFY", "Move", "Player")

# What a move does besides replacing its node.
LOCAL, LOG, FLIGHT, CAS, ENTER, BAD, NOTIFY = range(7)

_NOW = 1000.0
_LONG_AGO = -1e9
# When an observer first looked at a node, and when a node that has died since was last seen to beat: those of the first
# start, the later ones of several twins, those of a restart. A successor is only seen once its predecessor is dead.
_FIRST_LOOK = (_NOW - 500, _NOW - 90, _NOW - 50)
_LAST_BEAT = (_NOW - 100, _NOW - 80, _NOW - 40)
_FRESH = Fresh(b"F" * 16, b"R" * 16)
_Report = Callable[..., None]
#: Phases in which a node beats and acts.
_ACTIVE = "JMFLNX"
_ROLES = {"J": Role.JOINING, "M": Role.MEMBER, "F": Role.FINISHED, "L": Role.LEAVING}


class Move(NamedTuple):
    """One possible step of one node: what it does, what it costs, whether it needs no fault and no choice."""

    effect: int
    label: str
    cost: int
    free: bool
    node: int
    extra: int = 0


class Player(Space):
    """The moves of single nodes."""

    # ---- one node ---------------------------------------------------------------------------------------------

    def me(self, i: int, node: Node, state: RendezvousState | None) -> Me:
        """What ``decide`` knows of a process itself."""
        k = i + self.n * node.inc
        finished = node.finished >= 0
        told = node.announced == 1 or (node.announced == 2 and not self.rule("announce_first"))
        return Me(
            inc=self.incs[k],
            node=self.descs[k],
            settings=self.settings[i],
            role=_ROLES[node.phase],
            seq=node.seq,
            announced=(state.epoch, state.gen) if state is not None and told else None,
            last_round=node.last,
            round_nonce=round_nonce(node.era, node.last) if node.last >= 0 else b"",
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
        era: int = 0,
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
                fresh=_FRESH,
                epoch=epoch(era),
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
        if phase not in _ACTIVE:
            return ()
        dead = Node("D", node.inc, finished=node.finished, era=node.era if node.finished >= 0 else 0)
        move("crashes", dead, cost=self.cost("crash"))
        move("is suspended, its beats go on", dead._replace(phase="Z"), cost=self.cost("suspend"))
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
            known = self._affordable[cost] = covers(self.purse(), self.costs[cost])
        return known

    def _leaving(self, node: Node) -> Node:
        old = 2 if node.announced == 2 and not self._by_generation else 0
        era = node.era if node.finished >= 0 else 0
        return Node("L", node.inc, node.seq + 1, node.last, old, sent=True, finished=node.finished, era=era)

    def _rejoining(self, node: Node) -> Node:
        return Node("J", node.inc, node.seq + 1, node.last, sent=True)

    def _out(self, node: Node, *, acknowledged: bool) -> Node:
        out = Node("O", node.inc, finished=node.finished, acknowledged=acknowledged)
        if node.finished >= 0:
            out = out._replace(era=node.era)
        return out._replace(seq=node.seq, last=node.last) if self.config.limit["again"] else out

    def _swap(self, i: int, sid: int, node: Node, dead: Node, move: _Report) -> None:
        """A node whose swap is about to be sent."""
        after = node._replace(pending=-1, base=-1, sent=True)
        flight = self.flight("C", node.pending, node.base)
        if self.rule("nonce") or node.base == sid:
            before, proposal = self.states[sid], self.states[node.pending]
            assert proposal is not None
            nxt = after
            completes = proposal.complete and (before is None or not before.complete)
            if not self.rule("notice") and node.phase == "J" and completes:
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

    def _think(
        self, i: int, sid: int, lid: int, node: Node, dead: Node, alive: int, move: _Report, faults: bool
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
                    node._replace(phase="F", seq=node.seq + 1, finished=node.last),
                    cost=self.cost("finish", budget=0),
                )
            move("re-joins on its own", self._rejoining(node), cost=self.cost("spontaneous"))
        if limit["close"] and node.phase in "JMF" and state is not None and not state.is_closed:
            closed = self.propose(sid, close(state, fresh=_FRESH))
            after = node._replace(pending=closed, base=-1 if self.rule("nonce") else sid)
            move("is about to close", after, cost=self.cost("close"))
            record = Record(b"close".ljust(16), 1, Kind.CLOSE)
            move("announces CLOSE", node, effect=LOG, extra=self.append(lid, record, sid), cost=self.cost("close"))
        if state is None:
            self._follow(
                i, sid, lid, node, dead, self.ask(None, (), me, {}, over=False, era=self.eras[sid]), (), move, free=True
            )
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
        waits = True
        told: tuple[object, ...] = ()
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

    def _follow(
        self,
        i: int,
        sid: int,
        lid: int,
        node: Node,
        dead: Node,
        decision: Decision,
        suspects: tuple[bytes, ...],
        move: _Report,
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
            after = Node("M", node.inc, node.seq, state.round, sent=True, roster=roster, era=self.eras[sid])
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
            move(f"is released: {decision.reason}", dead._replace(phase="R"), free=free)
        elif action in (Action.CLOSED, Action.GRACEFUL):
            move(f"ends: {decision.reason}", self._out(node, acknowledged=False), free=free)
        else:
            move(f"{action.value}: {decision.reason}", self._leaving(node), free=free)
