"""The one task of a handler that reads the state, asks ``decide`` and performs the answer.

All mutable knowledge of a node lives here and has one owner (defects.md D10): requests only set an intent and wake the
driver. The driver is shielded, because withdrawing is its work too: it ends by itself, within a bounded time, once it
is told to stop. A caller that is cancelled therefore never holds the withdrawal in its own task, where a second native
cancellation would pierce a shield.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ..backend.base import RendezvousBackend, Token
from ..core.codec import decode_state, encode_state
from ..core.fold import Fresh
from ..core.liveness import targets
from ..core.ops import Action, Decision, Me, Memory, Role, View, decide, own_record
from ..core.state import AgreedSettings, Record, RendezvousState
from ..errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
)
from ..node import NodeDesc
from ..store.base import DISCONNECT_GRACE, Lease, Store
from .announcements import Announcements
from .changes import MembershipChange, Publisher, difference
from .endings import Ending, leaf
from .entropy import Environment
from .heartbeat import Heart, Observer
from .keys import Keys
from .outcome import Counters, Limits, Waiter

__all__ = ("Executor",)

logger = logging.getLogger(__name__)


class Executor:
    """One node's driver.

    Args:
        env: Clock and randomness.
        backend: Where the state is.
        store: Where announcements and heartbeats are.
        keys: The run's keys.
        node: This node; its incarnation is replaced after it finished a job.
        settings: The settings this node asks for.
        limits: Its own time-outs.
        notify_lost: It wants to be told of lost members.
        publisher: Gets every change.
        on_round_over: Called when this node's round ended under it, with the change.
    """

    def __init__(
        self,
        env: Environment,
        backend: RendezvousBackend,
        store: Store,
        keys: Keys,
        node: NodeDesc,
        settings: AgreedSettings,
        limits: Limits,
        *,
        notify_lost: bool,
        publisher: Publisher,
        on_round_over: Callable[[MembershipChange, RendezvousError | None], None],
    ) -> None:
        self._env, self._backend, self._store, self.keys = env, backend, store, keys
        self._settings, self._limits, self._notify_lost = settings, limits, notify_lost
        self._publisher, self._on_round_over = publisher, on_round_over
        self._announcements = Announcements(store, keys)
        self.counters = Counters()
        self.me = self._fresh_me(node)
        self.role: Role | None = None
        self.memory = Memory()
        self.reason = "this node has not joined"
        self.wake_at = math.inf
        self.state: RendezvousState | None = None
        self.token: Token | None = None
        self._known = False
        self._corrupt: RendezvousStateError | None = None
        self._records: tuple[Record, ...] = ()
        self._records_fresh = False
        self._join_waiter: Waiter | None = None
        self._release_waiter: Waiter | None = None
        self._withdrawn: Waiter | None = None
        self._pending_error: Exception | None = None
        self._sent = False
        self._withdraw_by = math.inf
        self._not_before = -math.inf
        self._back_off = 0.0
        self._jitter = env.random()
        self._heal_at = math.inf
        self._kick = anyio.Event()
        self._news = anyio.Event()
        self._first = anyio.Event()
        self._interruptible: anyio.CancelScope | None = None
        self._stopping = False
        self._observer: Observer | None = None
        self.heart: Heart | None = None

    # ---- requests: set an intent, wake the driver -------------------------------------------------------------

    def join(self, *, failed: bool = False) -> Waiter:
        """Want in, or in again; returns what to wait for."""
        if self.me.finished:
            self.me = self._fresh_me(self.me.node)  # an incarnation that finished is never admitted again
        if self._withdrawn is not None:
            # A withdrawal that nobody waits for any more is overtaken; left unsettled, the next one would be mistaken
            # for it and never begin.
            self._withdrawn.settle(self.state, reason="this node joins again")
        self._pending_error = None
        self.me = replace(
            self.me, role=Role.JOINING, seq=self.me.seq + 1, announced=None, failed=failed, finished=False
        )
        self.role = Role.JOINING
        self.memory = Memory(join_since=self._env.now())
        self._join_waiter = Waiter()
        self.wake()
        return self._join_waiter

    def finish(self) -> Waiter:
        """This member's work is done; the waiter ends when it owes nothing any more."""
        if self._release_waiter is None:
            self._release_waiter = Waiter()
            if self.role is Role.MEMBER:
                self.me = replace(self.me, role=Role.FINISHED, seq=self.me.seq + 1, announced=None, finished=True)
                self.role = Role.FINISHED
                self.wake()
            else:
                self._release_waiter.settle(reason="the round was over before this node finished it")
        return self._release_waiter

    def withdraw(self, error: Exception | None = None) -> Waiter:
        """Leave, whatever this node wanted; settled within the withdraw limit.

        Args:
            error: What a pending join raises once the withdrawal is over.
        """
        if self._withdrawn is not None and not self._withdrawn.event.is_set():
            return self._withdrawn
        self._withdrawn = Waiter()
        self._pending_error = error
        if self._interruptible is not None:
            # Also when nothing was sent: on a store that hangs, the driver must be free to end or to join again.
            self._interruptible.cancel()
        if self.role is None or not self._sent:
            self._disengage(error)
            self._withdrawn.settle(reason="nothing had been sent")
            self.wake()
            return self._withdrawn
        self.me = replace(self.me, role=Role.LEAVING, seq=self.me.seq + 1, announced=None)
        self.role = Role.LEAVING
        self._withdraw_by = self._env.now() + self._limits.withdraw
        self.wake()
        return self._withdrawn

    def stop(self) -> None:
        """Withdraw and end the driver."""
        self._stopping = True
        self.withdraw()
        self.wake()

    def wake(self) -> None:
        """Ask ``decide`` again."""
        self._kick.set()

    def limits_left(self, now: float) -> tuple[float | None, float | None]:
        """Seconds until this node gives up, and until its last call is over; None for what does not run."""
        join = call = None
        if self.role is Role.JOINING and not self.memory.redundant:
            join = max(0.0, self.memory.join_since + self._limits.join - now)
        seen, state = self.memory.min_seen, self.state
        if seen is not None and state is not None and not state.complete and seen[0] == state.round_nonce:
            call = max(0.0, seen[1] + state.settings.last_call - now)
        return join, call

    async def news(self) -> None:
        """Wait until the agreed state was read anew."""
        await self._news.wait()

    async def read(self) -> RendezvousState | None:
        """Read the agreed state now, for a reader; changes nothing here.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored cannot be read.
        """
        got = await self._backend.get_state()
        if got is None:
            return None
        if got[1] == self.token and self.state is not None and self._corrupt is None:
            return self.state
        return decode_state(got[0])

    # ---- the driver -------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Drive until :meth:`stop`."""
        with anyio.CancelScope(shield=True):
            task_status.started()
            while True:
                if self.role is not None:
                    await self._engage()
                elif self._stopping:
                    return
                else:
                    await self._kick.wait()
                    self._kick = anyio.Event()

    async def _engage(self) -> None:
        """From wanting something until wanting nothing: hold the lease, beat, watch, decide."""
        stack = AsyncExitStack()
        try:
            settings = self._settings
            self._known, self._corrupt, self._records_fresh = False, None, False
            self._heal_at = self._env.now() + settings.expiry
            self._observer = Observer(
                self._env, self._store, self.keys, changed=self.wake, differs=self._neighbour_differs
            )
            self.heart = Heart(
                self._env,
                self.keys,
                self.me.inc,
                interval=settings.keep_alive_interval,
                timeout=self._limits.heartbeat,
                nonce=lambda: self.state.nonce if self.state is not None else b"",
                late=self._observer.restart,
            )
            lease: Lease | None = None

            async def prepare() -> None:
                nonlocal lease
                assert self.heart is not None
                lease = await stack.enter_async_context(self._store.lease(settings.expiry))
                await self.heart.beat(lease)  # beat first, then announce (P1)
                await self._read()

            while not await self._interruptibly(prepare):
                if self.role is None or self._env.now() >= self._withdraw_by:
                    self._disengage(self._pending_error)
                    return
            assert lease is not None
            async with anyio.create_task_group() as tg:
                tg.start_soon(self.heart.run, lease)
                tg.start_soon(self._watch_state)
                tg.start_soon(self._watch_bell)
                await self._loop(tg, self.me.inc)
                tg.cancel_scope.cancel()
        except* RendezvousError as group:
            error = leaf(group)
            assert isinstance(error, RendezvousError)  # nothing else is in this group
            self._fail(error)
        finally:
            self._observer = self.heart = None
            with anyio.move_on_after(self._limits.withdraw, shield=True):
                await stack.aclose()

    async def _loop(self, tg: TaskGroup, inc: bytes) -> None:
        looked = False  # between two looks that only heal something is done, however slow the store is
        while self.role is not None and self.me.inc == inc:
            self._kick = anyio.Event()
            now = self._env.now()
            if self.role is Role.LEAVING and now >= self._withdraw_by:
                # Unknown: falling silent is what is left, the watchers evict (P9).
                self._disengage(self._pending_error)
                return
            if not self._known or (now >= self._heal_at and not looked):
                if now >= self._heal_at:
                    self._records_fresh = False
                self._heal_at = math.inf
                await self._interruptibly(self._read)
                self._heal_at = min(self._heal_at, self._env.now() + self._settings.expiry)
                looked = True
                continue
            self._follow(tg)
            decision = self._decide()
            if self._corrupt is not None and decision.action not in (Action.TIMEOUT, Action.ACKNOWLEDGED):
                # What is stored cannot be read: whoever waits goes on waiting, a repaired key heals it (D39).
                patience = self.memory.join_since + self._limits.join if self.role is Role.JOINING else math.inf
                await self._sleep(min(decision.wake_at, patience))
                looked = False
                continue
            if not self._records_fresh and (
                (decision.action is Action.FOLD and self.state is not None)
                or (self._is_first() and decision.action is Action.WAIT and self.memory.work is None)
            ):
                await self._interruptibly(self._scan)
                continue
            looked = False
            await self._perform(decision, tg)

    def _decide(self) -> Decision:
        view = View(
            state=self.state,
            records=self._records,
            me=self.me,
            fresh=Fresh(self._env.token(), self._env.token()),
            epoch=self._env.token(),
            sightings=self._observer.sightings if self._observer is not None else {},
            memory=self.memory,
            join=self._limits.join,
            grace=DISCONNECT_GRACE,
            jitter=self._jitter,
        )
        decision = decide(view, self._env.now())
        if decision.memory.work is None or self.memory.work is None:
            self._jitter = self._env.random()  # drawn once per piece of work, or no turn would ever come
        self.memory, self.wake_at = decision.memory, decision.wake_at
        if decision.reason != self.reason:
            self.reason = decision.reason
            logger.debug("%s: %s: %s", self.keys.run_id, self.me.node, self.reason)
        return decision

    async def _perform(self, decision: Decision, tg: TaskGroup) -> None:
        action, state = decision.action, self.state
        if action is Action.WAIT:
            await self._sleep(decision.wake_at)
        elif action is Action.FOLD:
            if self._env.now() < self._not_before and self.role is not Role.LEAVING:
                await self._sleep(self._not_before)
            else:
                proposal = decision.proposal
                assert proposal is not None
                await self._interruptibly(lambda: self._swap(proposal, tg))
        elif action is Action.ANNOUNCE:
            assert state is not None
            # Before the request: from here on the record may be there.
            self.me = replace(self.me, announced=(state.epoch, state.gen))
            self._sent = True
            record = own_record(self.me)
            assert record is not None
            self.counters.announcements += 1
            await self._interruptibly(lambda: self._announcements.append(state.epoch, state.gen, record))
        elif action is Action.ENTER:
            assert state is not None
            self.me = replace(
                self.me,
                role=Role.MEMBER,
                last_round=state.round,
                round_nonce=state.round_nonce,
                failed=False,
                finished=False,
            )
            self.role, self.memory, self._release_waiter = Role.MEMBER, Memory(), None
            if self._join_waiter is not None:
                self._join_waiter.settle(state, reason=decision.reason)
        elif action is Action.REJOIN:
            self._evicted(decision)
            self.me = replace(self.me, seq=self.me.seq + 1, announced=None)
        elif action is Action.CHANGED:
            assert state is not None
            self._on_round_over(self._round_change(state, decision.reason), None)
        elif action is Action.EVICTED:
            self._evicted(decision)
            self._disengage(None)
        elif action is Action.RELEASED:
            if self._release_waiter is not None:
                self._release_waiter.settle(state, reason=decision.reason)
            self._disengage(None)
        elif action is Action.ACKNOWLEDGED:
            self._disengage(self._pending_error)
        elif action in (Action.CLOSED, Action.GRACEFUL):
            self._disengage(self._ending(action, decision))
        else:  # TIMEOUT, MISMATCH: leave first, then raise
            self.withdraw(self._ending(action, decision))

    def _ending(self, action: Action, decision: Decision) -> RendezvousError:
        if action is Action.TIMEOUT and self._corrupt is not None:
            return self._corrupt
        return Ending(
            run_id=self.keys.run_id,
            endpoint=self._store.endpoint,
            node=self.me.node,
            settings=self._settings,
            join=self._limits.join,
            waited=self._env.now() - self.memory.join_since,
            reason=decision.reason,
            state=self.state,
        ).error(action)

    # ---- IO: each piece may be cancelled by a withdrawal ------------------------------------------------------

    async def _interruptibly(self, operation: Callable[[], Awaitable[None]]) -> bool:
        """Run one piece of IO that a withdrawal may cut short; False when it was."""
        by = self._withdraw_by if self.role is Role.LEAVING else math.inf
        with anyio.CancelScope(deadline=self._env.deadline(by)) as scope:
            self._interruptible = scope
            try:
                await operation()
                return True
            finally:
                self._interruptible = None
        self._known = False  # whatever was under way may or may not have happened: read before anything else
        return False

    async def _sleep(self, until: float) -> None:
        until = min(until, self._heal_at, self._withdraw_by if self.role is Role.LEAVING else math.inf)
        with anyio.move_on_at(self._env.deadline(until)):
            await self._kick.wait()

    async def _read(self) -> None:
        self.counters.reads += 1
        try:
            self._adopt(await self._backend.get_state())
        except RendezvousStateError as exc:
            self._corrupted(exc)
        if self._corrupt is not None and self.state is None and self.role is Role.JOINING and not self._sent:
            raise self._corrupt  # the first look of a join: tell its caller at once
        self._known = True

    async def _scan(self) -> None:
        state = self.state
        if state is None:
            return
        self.counters.scans += 1
        self._records_fresh = True  # a bell that rings from here on makes them stale again
        records = await self._announcements.read(state.epoch, state.gen)
        if self.state is not None and (self.state.epoch, self.state.gen) == (state.epoch, state.gen):
            self._records = records

    async def _swap(self, proposal: RendezvousState, tg: TaskGroup) -> None:
        """Write a proposal over exactly the state it was computed from."""
        before, token = self.state, self.token
        if before is not None and self._observer is not None:
            # Two answers hang on connections: who is dead, and whether all that complete a round are still there. A
            # node that stood still, or was cut off, saw nobody beat meanwhile: the store knows who did.
            silent = self._env.now() - before.settings.expiry
            doubtful = {
                inc
                for inc, s in self._observer.sightings.items()
                if s.dropped or (s.absent is None and s.progressed <= silent)
            }
            if proposal.complete and not (before.complete and proposal.round_nonce == before.round_nonce):
                doubtful.update(proposal.participants)
            doubtful.discard(self.me.inc)
            if doubtful:
                await self._observer.verify(doubtful)
                decision = self._decide()
                if decision.action is not Action.FOLD or self.token != token:
                    return
                assert decision.proposal is not None
                proposal = decision.proposal
        self._sent = True
        self.counters.swaps += 1
        try:
            got = await self._backend.set_state(encode_state(proposal), token)
        except RendezvousConnectionError as exc:
            logger.debug("a swap has an unknown outcome: %s", exc)
            self._known = False
            return
        except RendezvousStateError as exc:
            self._corrupted(exc)
            return
        self._adopt(None if got is None else got[:2])
        if got is not None and got[2]:
            self._back_off = 0.0
            if before is not None and proposal.gen != before.gen:
                tg.start_soon(self._announcements.forget, before.epoch, before.gen - 1)
        else:
            self.counters.lost_swaps += 1
            self._back_off = min(0.3, max(0.01, self._back_off * 2))
            self._not_before = self._env.now() + self._back_off * self._env.random()

    async def _watch_state(self) -> None:
        while True:
            try:
                self._adopt(await self._backend.changed(self.token))
            except RendezvousStateError as exc:
                self._corrupted(exc)
                await anyio.sleep(0.25 + 0.25 * self._env.random())

    async def _watch_bell(self) -> None:
        held: bytes | None = None
        while True:
            await self._first.wait()
            rung = await self._announcements.rung(held)
            if rung != held:
                held = rung
                self._records_fresh = False
                self.wake()

    # ---- knowledge --------------------------------------------------------------------------------------------

    def _adopt(self, got: tuple[bytes, Token] | None) -> None:
        """Take over what was read; nothing awaits in here, so state and token are one value (D10)."""
        if got is None:
            if self.state is not None or self._corrupt is not None:
                self._set_state(None, None)
            return
        data, token = got
        if self.token is not None and token >> 64 == self.token >> 64 and token <= self.token:
            return  # an older notice that overtook a swap
        try:
            state = decode_state(data)
        except RendezvousStateError as exc:
            self._corrupted(exc)
            self.token = token
            return
        self._set_state(state, token)

    def _set_state(self, state: RendezvousState | None, token: Token | None) -> None:
        before, self.state, self.token, self._corrupt = self.state, state, token, None
        if state is None or before is None or (before.epoch, before.gen) != (state.epoch, state.gen):
            self._records = ()
        self._records_fresh = False
        if state is not None:
            self._publisher.publish(difference(before, state))
        if self._is_first():
            self._first.set()
        elif self._first.is_set():
            self._first = anyio.Event()
        self._news.set()
        self._news = anyio.Event()
        self.wake()

    def _corrupted(self, error: RendezvousStateError) -> None:
        if self._corrupt is None:
            logger.warning("%s: %s", self.keys.run_id, error)
        self._corrupt = error
        self._heal_at = min(self._heal_at, self._env.now() + 1.0)
        self.wake()

    def _is_first(self) -> bool:
        ring = self.state.ring if self.state is not None else ()
        return bool(ring) and ring[0] == self.me.inc

    def _follow(self, tg: TaskGroup) -> None:
        observer, state = self._observer, self.state
        if observer is None or state is None:
            return
        wanted = set(targets(state, self.me.inc, observer.silent(state.settings.keep_alive_interval)))
        # A held newcomer and its twin are admitted, or told apart, only by who has seen both of them beat (P5.3).
        newcomers = {r.inc: r.node for r in self._records if r.node is not None and r.seq > state.sequence(r.inc)}
        if not state.listed(self.me.inc):
            newcomers[self.me.inc] = self.me.node
        triples = {node.triple: inc for inc, node in newcomers.items()}
        for inc, node in state.nodes.items() if triples else ():
            other = triples.get(node.triple)
            if other is not None and other != inc and state.listed(inc):
                wanted.update((inc, other))
        wanted.update(inc for inc, s in observer.sightings.items() if s.absent is not None and state.listed(inc))
        wanted.discard(self.me.inc)
        observer.follow(wanted, tg)

    def _neighbour_differs(self, nonce: bytes) -> None:
        """A neighbour reports another state: perhaps a notice was lost. At most one extra read per beat."""
        if self.state is not None and nonce.strip(b"\0") and nonce != self.state.nonce[:8]:
            soon = self._env.now() + self._settings.keep_alive_interval / 2
            if soon < self._heal_at:
                self._heal_at = soon
                self.wake()

    # ---- endings ----------------------------------------------------------------------------------------------

    def _fresh_me(self, node: NodeDesc) -> Me:
        inc = self._env.token()
        return Me(
            inc=inc,
            node=replace(node, incarnation=inc),
            settings=self._settings,
            role=Role.JOINING,
            notify_lost=self._notify_lost,
        )

    def _round_change(self, state: RendezvousState, reason: str) -> MembershipChange:
        if state.owed:
            kind = "lost" if any(state.gone[inc].value == "lost" for inc in state.owed) else "left"
            return MembershipChange(kind, reason, state.round, tuple(state.nodes[inc] for inc in state.owed))
        return MembershipChange("waiting", reason, state.round, tuple(state.nodes[inc] for inc in state.wait_list))

    def _evicted(self, decision: Decision) -> None:
        self.counters.evictions += 1
        change = MembershipChange("evicted", decision.reason, self.me.last_round, (self.me.node,))
        self._publisher.publish([change])
        if self.role is Role.MEMBER:
            self._on_round_over(change, None)

    def _disengage(self, error: Exception | None) -> None:
        """Want nothing any more; whoever waits is told."""
        self.role, self._sent, self._withdraw_by, self._pending_error = None, False, math.inf, None
        if self._withdrawn is not None:
            self._withdrawn.settle(self.state)
        if self._release_waiter is not None:
            self._release_waiter.settle(self.state, reason="this node left the round")
        if self._join_waiter is not None:
            left = RendezvousError(f"This node left the rendezvous {self.keys.run_id!r} while it was joining.")
            self._join_waiter.settle(error=error or left)
        self._news.set()  # who waits for news of the round has to know that none will come
        self._news = anyio.Event()

    def _fail(self, error: RendezvousError) -> None:
        """The store is lost, or holds something unreadable: nothing can be agreed any more."""
        was_member = self.role in (Role.MEMBER, Role.FINISHED)
        logger.warning("%s: %s", self.keys.run_id, error)
        self._disengage(error)
        if was_member:
            change = MembershipChange("evicted", f"the store was lost: {error}", self.me.last_round, (self.me.node,))
            self._publisher.publish([change])
            self._on_round_over(change, error)
