"""A simulated node: its processes, one after the other, each an ordinary user of a real handler."""

from __future__ import annotations

import math
import traceback
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import anyio

from ..core.ops import Action, Decision
from ..errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
)
from ..handler.dynamic import DynamicRendezvousHandler
from .simclock import SeededEnvironment
from .simplan import CALM, Crash, NodePlan
from .simstore import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from ..handler.changes import Changes
    from ..handler.executor import Executor
    from ..handler.info import RendezvousInfo
    from ..handler.rounds import Round
    from .simcheck import Checker
    from .simnet import Network, Station
    from .simplan import Plan

__all__ = ("Life", "Node")

#: A withdrawal takes at most so many of the loop's seconds (the clocks of nodes run differently), pauses apart.
_WITHDRAWAL = 1.5


class _Over(Exception):
    """This process wants nothing any more."""


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


class Life:
    """One process of a node.

    Attributes:
        name: What the log calls it.
        dead: It crashed: nothing of it reaches the store any more.
        over: It has ended in its own way and wants nothing.
        started: When it began.
        ended: When it was over, or died.
        phase: What it does.
        round: The round it was handed last.
        incs: The incarnations it has had.
        executor: Its handler's driver, while it has one.
        triple: Tells its descriptor from that of other processes of the node.
    """

    def __init__(
        self, plan: NodePlan, number: int, run: Plan, checker: Checker, network: Network, *, triple: int
    ) -> None:
        self.plan, self.run_plan = plan, run
        self.name = f"n{plan.index}.{number}"
        self.dead = self.over = False
        self.started, self.ended = anyio.current_time(), 0.0
        self.phase, self.round = "starting", -1
        self.incs: list[bytes] = []
        self.executor: Executor | None = None
        self._checker, self.triple = checker, triple
        self._rng = Random(f"{run.seed}/{self.name}/does")
        self.line = Line(self, plan.weather, plan.outages, plan.clock.pauses, Random(f"{run.seed}/{self.name}/net"))
        self.station: Station = network.station(self.line)
        self._env = SeededEnvironment(plan.clock, Random(f"{run.seed}/{self.name}/env"))
        self._stop = anyio.CancelScope()
        self._kill = anyio.CancelScope()

    # ---- what others do to it ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Cancel what it does; it leaves as a polite process does."""
        self._stop.cancel()

    async def crash(self, *, noticed: bool) -> None:
        """Kill it: it does nothing any more, and nobody is told."""
        self.dead, self.phase, self.ended = True, "dead", anyio.current_time()
        self._checker.note(f"{self.name} dies{'' if noticed else ' and its connections stay'}")
        await self.station.died(noticed=noticed)
        self._kill.cancel()

    # ---- life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until it is over."""
        try:
            with self._kill:
                await self._live()
        except Exception as exc:  # noqa: BLE001 - whatever comes out of a handler is judged here
            for leaf in _leaves(exc):
                if not isinstance(leaf, RendezvousError):
                    self._checker.violation(f"{self.name} got {leaf!r}: {_where(leaf)}")
                else:
                    self._checker.note(f"{self.name} ends with {type(leaf).__name__}")
        self.executor = None
        if not self.dead:
            self.over, self.phase, self.ended = True, "over", anyio.current_time()
            self._checker.note(f"{self.name} is over")

    async def _live(self) -> None:
        async with self.station.open() as store:
            handler = DynamicRendezvousHandler.from_store(
                store, self.run_plan.parameters(self.plan.index), env=self._env
            )
            async with handler:
                self._impersonate(handler)
                with self._stop:
                    try:
                        await (self._rounds(handler) if self.plan.style == "rounds" else self._raw(handler))
                    except _Over as exc:
                        self._checker.note(f"{self.name} stops: {exc}")
                self.phase = "ending"

    def _impersonate(self, handler: DynamicRendezvousHandler) -> None:
        """Be a process of a host of its own: every handler here has the pid of the simulation."""
        executor = handler._executor
        assert executor is not None
        executor.me = executor._fresh_me(replace(executor.me.node, pid=self.triple, local_id=0))
        self.executor = executor
        self._checker.met(self, executor.me.inc)
        perform = executor._perform

        async def watched(decision: Decision, tg: TaskGroup) -> None:
            if decision.action is Action.ACKNOWLEDGED:
                self._checker.note(f"{self.name} has withdrawn")
                self._checker.withdrew(executor.me.inc)
            await perform(decision, tg)

        executor._perform = watched  # type: ignore[method-assign]

    async def _sleep(self, seconds: float) -> None:
        await anyio.sleep_until(self._env.deadline(self._env.now() + seconds))

    @property
    def _calm(self) -> bool:
        return anyio.current_time() >= CALM

    def _within(self, seconds: float) -> float:
        """The loop's instant so many of the node's seconds ahead."""
        return self._env.deadline(self._env.now() + seconds)

    def _joining(self) -> float:
        """Begin a join; returns the loop's instant at which it is to be cancelled."""
        assert self.executor is not None
        self.phase = "joining"
        me = self.executor.me
        self._checker.wants(me.inc)
        self._checker.note(f"{self.name} joins")
        if self._rng.random() < self.plan.cancels:
            at = self._within(self._rng.choice([0.1, 1.0, 6.0]) * self._rng.random())
            return at if at < CALM else math.inf
        return math.inf

    async def _handed(self, info: RendezvousInfo) -> None:
        assert self.executor is not None
        self.phase, self.round = "member", info.round
        inc = self.executor.me.inc
        self._checker.met(self, inc)
        self._checker.given(self, info, inc)

    async def _refused(self, error: RendezvousError) -> None:
        """A join failed."""
        self.phase = "refused"
        self._checker.note(f"{self.name} is refused: {type(error).__name__}")
        if isinstance(error, (RendezvousClosedError, RendezvousGracefulExitError)):
            if self._checker.state is None or not self._checker.state.is_closed:
                self._checker.violation(f"{self.name} was told that an open run is closed: {error}")
            raise _Over("the run is closed")
        if isinstance(error, RendezvousTimeoutError):
            if self._calm:
                raise _Over("nobody came")
        elif isinstance(error, RendezvousSettingsError) and self.run_plan.options["rank_order"] == "node_rank":
            pass  # the ghost of a vanished node may still claim its successor's rank
        elif not isinstance(error, RendezvousConnectionError):
            self._checker.violation(f"{self.name} could not join: {error!r}")
            raise _Over("a surprise")
        await self._sleep(self._rng.uniform(0.1, 2.0))

    async def _cancelled(self, at: float) -> None:
        """A join was cancelled."""
        took = anyio.current_time() - at
        away = sum(max(0.0, min(anyio.current_time(), p.end) - max(at, p.start)) for p in self.plan.clock.pauses)
        self._checker.note(f"{self.name} was cancelled, {took:.6f} s")
        if took > _WITHDRAWAL + away:
            self._checker.violation(f"{self.name} took {took:.3f} s to withdraw")
        await self._apart()

    async def _apart(self) -> None:
        """Between two stays."""
        self.phase = "apart"
        if not self._calm and self._rng.random() < 0.2:
            raise _Over("it has left for good")
        await self._sleep(self._rng.choice([0.0, 0.2, 3.0]) * self._rng.random())

    # ---- two styles of use ------------------------------------------------------------------------------------

    async def _raw(self, handler: DynamicRendezvousHandler) -> None:
        """``next_rendezvous`` and ``changes``, as an agent of its own does."""
        changes = handler.changes()
        while True:
            at = self._joining()
            info: RendezvousInfo | None = None
            with anyio.CancelScope(deadline=at) as scope:
                try:
                    info = await handler.next_rendezvous()
                except RendezvousError as exc:
                    error: RendezvousError | None = exc
                else:
                    error = None
            if scope.cancelled_caught:
                await self._cancelled(at)
            elif error is not None:
                await self._refused(error)
            elif info is not None:
                await self._handed(info)
                what, when = self._choose()
                if not await self._told(handler, changes, info, when):
                    await self._do(handler, what)

    async def _told(
        self, handler: DynamicRendezvousHandler, changes: Changes, info: RendezvousInfo, until: float
    ) -> bool:
        """Wait until this member has to join again (True) or ``until`` has come (False)."""
        while True:
            with anyio.move_on_at(min(until, self._within(3.0))):
                change = await changes.__anext__()
                if change.kind == "evicted" and change.round == info.round:
                    self._checker.note(f"{self.name} is told: evicted")
                    return True
            try:
                if await handler.num_nodes_waiting() > 0:
                    self._checker.note(f"{self.name} is told to join again")
                    return True
                if await handler.is_closed():
                    raise _Over("it saw the run closed")
            except RendezvousConnectionError:
                pass
            if anyio.current_time() >= until:
                return False

    async def _rounds(self, handler: DynamicRendezvousHandler) -> None:
        """``rounds()``, as most users do."""
        while True:
            rounds = handler.rounds()
            while True:
                at = self._joining()
                world: Round | None = None
                error: RendezvousError | None = None
                with anyio.CancelScope(deadline=at) as scope:
                    try:
                        world = await anext(rounds)
                    except StopAsyncIteration:
                        raise _Over("rounds() has ended") from None
                    except RendezvousError as exc:
                        error = exc
                if scope.cancelled_caught:
                    await self._cancelled(at)
                elif error is not None:
                    await self._refused(error)
                elif world is not None:
                    try:
                        await self._body(handler, world)
                    except RendezvousConnectionError:
                        self._checker.note(f"{self.name} lost the store in round {world.round}")
                        await self._sleep(self._rng.uniform(0.1, 2.0))
                        break

    async def _body(self, handler: DynamicRendezvousHandler, world: Round) -> None:
        await self._handed(world.info)
        what, when = self._choose()
        async with world:
            while anyio.current_time() < when:
                await anyio.sleep_until(min(when, self._within(2.0)))
                try:
                    if await handler.is_closed():
                        raise _Over("it saw the run closed")
                except RendezvousConnectionError:
                    pass
            if what == "finish":
                self._checker.note(f"{self.name} finishes round {world.round}")
                world.finish()
                self.phase = "finished"
                return
        if world.ended is not None:
            self._checker.note(f"{self.name} is told: {world.ended.kind}")
        else:
            await self._do(handler, what)

    # ---- what it does of its own accord -----------------------------------------------------------------------

    def _choose(self) -> tuple[str, float]:
        """What to do as a member, and at which of the loop's instants."""
        rng = self._rng
        if self._calm and self.run_plan.all_finish:
            return "finish", self._within(rng.uniform(0.2, 3.0))
        at = self._within(rng.choice([0.05, 2.0, 8.0]) * rng.random())
        if self.plan.closes_at <= at < CALM:
            return "close", at
        if rng.random() < self.plan.restless and at < CALM:
            if rng.random() < self.plan.finishes:
                return "finish", at
            return rng.choice(["join", "fail", "leave"]), at
        if self.run_plan.all_finish:
            return "finish", max(self._within(0.0), CALM + 5 * rng.random())
        return "stay", math.inf

    async def _do(self, handler: DynamicRendezvousHandler, what: str) -> None:
        self._checker.note(f"{self.name} does: {what}")
        if what == "fail":
            handler.fail("its work failed")
        elif what == "leave":
            began = anyio.current_time()
            await handler.leave()
            await self._cancelled(began)
        elif what == "close":
            try:
                await handler.set_closed()
                self._checker.note(f"{self.name} has closed the run")
                if self._checker.state is None or not self._checker.state.is_closed:
                    self._checker.violation(f"{self.name} was told that it closed the run, which is open")
            except (RendezvousConnectionError, RendezvousTimeoutError) as exc:
                self._checker.note(f"{self.name} may not have closed the run: {type(exc).__name__}")
        elif what == "finish":
            handler.mark_finished()
            self.phase = "finished"
            self._checker.note(f"{self.name} was released: {await handler.released(handler.exit_barrier)}")
            raise _Over("it has finished")


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames))


class Node:
    """A node: one process after the other, as the plan says.

    Args:
        plan: Its part of the plan.
        run: The whole plan.
        lives: Gets every process.
        checker: Judges.
        network: The way to the store.
        tasks: Where processes run.
    """

    def __init__(
        self, plan: NodePlan, run: Plan, lives: list[Life], checker: Checker, network: Network, tasks: TaskGroup
    ) -> None:
        self._plan, self._run, self._lives = plan, run, lives
        self._checker, self._network, self._tasks = checker, network, tasks
        self.running = 0
        self._number = 0

    async def run(self) -> None:
        """Start the first process at its time, and let outages come."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._outages)
            await anyio.sleep_until(self._plan.start)
            self._begin(0, self._plan.crashes, 1000)

    def _begin(self, number: int, crashes: Sequence[Crash], triple: int) -> None:
        life = Life(self._plan, number, self._run, self._checker, self._network, triple=triple)
        self._number = number
        self._lives.append(life)
        self._tasks.start_soon(self._life, life)
        if crashes:
            self._tasks.start_soon(self._end, life, crashes, number, triple)

    async def _life(self, life: Life) -> None:
        self.running += 1
        self._checker.note(f"{life.name} starts")
        try:
            await life.run()
        finally:
            self.running -= 1

    async def _end(self, life: Life, crashes: Sequence[Crash], number: int, triple: int) -> None:
        crash = crashes[0]
        await anyio.sleep_until(crash.at)
        if life.over or life.dead:
            return
        outage = any(o.start <= crash.at < o.end and not o.reset for o in self._plan.outages)
        await life.crash(noticed=crash.noticed and not outage)
        if math.isinf(crash.restart):
            return
        await anyio.sleep_until(crash.at + crash.restart)
        self._begin(number + 1, crashes[1:], triple if crash.same else triple + 1)

    def ambush(self, life: Life, crash: Crash) -> None:
        """Let a process of this node die now, or soon; what was planned for it is void."""
        self._tasks.start_soon(self._end, life, [crash], self._number, life.triple)

    async def _outages(self) -> None:
        for outage in self._plan.outages:
            await anyio.sleep_until(outage.start)
            lives = [life for life in self._lives if life.plan is self._plan and not life.dead and not life.over]
            if lives:
                self._checker.note(f"{lives[-1].name} is cut off{' with a reset' if outage.reset else ''}")
                await lives[-1].station.outage(outage)
