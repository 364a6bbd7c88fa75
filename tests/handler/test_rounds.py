"""``rounds()``: bodies that end with their membership, finishing, releasing and barriers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from arendezvous.core.state import Closed
from arendezvous.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    RendezvousUsageError,
)
from arendezvous.handler.info import RendezvousInfo
from arendezvous.handler.rounds import Round, Rounds
from arendezvous.params import RendezvousParameters
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import CALM, Node, params, state_of, until
from tests.support import VIRTUAL, fail_after


class Agent:
    """A node that lives in ``rounds()`` and writes down what happens to it."""

    def __init__(
        self,
        store: MemoryStore,
        settings: RendezvousParameters,
        work: Callable[[Agent, Round], Awaitable[None]] | None = None,
    ) -> None:
        self.node = Node(store, settings)
        self.work = work
        self.worlds: list[Round] = []
        self.finish = anyio.Event()
        self.ended = False
        self.error: Exception | None = None

    async def run(self) -> None:
        try:
            async with self.node as node:
                async for world in node.handler.rounds():
                    async with world:
                        self.worlds.append(world)
                        if self.work is not None:
                            await self.work(self, world)
                        else:
                            await self.finish.wait()
                            world.finish()
        except Exception as exc:
            self.error = exc
        self.ended = True

    @property
    def world(self) -> Round | None:
        return self.worlds[-1] if self.worlds else None

    def is_in(self, number: int, size: int) -> Callable[[], bool]:
        return lambda: self.world is not None and (self.world.round, self.world.world_size) == (number, size)


@VIRTUAL
async def test_when_all_have_finished_every_rounds_ends_and_the_run_is_done() -> None:
    """Finish rules: the last one closes the run id as done."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        agents = [Agent(store, params(3, 3)) for _ in range(3)]
        for agent in agents:
            tg.start_soon(agent.run)
        with fail_after(5):
            for n, agent in enumerate(agents):
                await until(lambda agent=agent: agent.worlds)
                await anyio.sleep(0.5 * n)
                agent.finish.set()
            await until(lambda: all(agent.ended for agent in agents))
        state = await state_of(store)
    assert state is not None
    assert state.closed is Closed.DONE
    assert [agent.error for agent in agents] == [None] * 3
    assert [len(agent.worlds) for agent in agents] == [1, 1, 1]
    assert all(agent.worlds[0].outcome.startswith("done") for agent in agents)
    assert all(agent.worlds[0].ended is None for agent in agents)


async def test_finishing_together_works_on_real_clocks_too() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        agents = [Agent(store, params(3, 3, base=CALM)) for _ in range(3)]
        for agent in agents:
            tg.start_soon(agent.run)
            agent.finish.set()
        with fail_after(10):
            await until(lambda: all(agent.ended for agent in agents))
    assert [agent.error for agent in agents] == [None] * 3


@VIRTUAL
async def test_a_finished_member_keeps_beating_while_it_waits_for_the_others() -> None:
    """R20, R95: the exit wait is much longer than the expiry, and nobody counts as lost."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        fast, slow = Agent(store, params(2, 2)), Agent(store, params(2, 2))
        tg.start_soon(fast.run)
        tg.start_soon(slow.run)
        fast.finish.set()
        await anyio.sleep(30)
        assert (fast.ended, slow.ended) == (False, False)
        assert slow.world is not None
        assert slow.world.ended is None
        assert await slow.node.handler.num_nodes_waiting() == 0
        assert "1 finished, still at work" in (await fast.node.handler.status()).explain()
        slow.finish.set()
        with fail_after(2):
            await until(lambda: fast.ended and slow.ended)
    assert (fast.error, slow.error) == (None, None)


@VIRTUAL
async def test_a_member_lost_before_it_finished_makes_the_unfinished_form_again_without_the_finished() -> None:
    """Finish rules: the finished are released; a false end of the job would lose the work of the lost one."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        done, lost, rest = (Agent(store, params(1, 3)) for _ in range(3))
        for agent in (done, lost, rest):
            tg.start_soon(agent.run)
        with fail_after(5):
            await until(lambda: done.worlds and lost.worlds and rest.worlds)
            done.finish.set()
            await anyio.sleep(0.2)
            lost.node.line.cut()
            await until(lambda: done.ended)
            await until(rest.is_in(1, 1))
        assert done.error is None
        assert done.worlds[0].outcome.startswith("released")
        assert rest.worlds[0].ended is not None
        assert rest.worlds[0].ended.kind == "lost"
        rest.finish.set()
        with fail_after(3):
            await until(lambda: rest.ended)
        state = await state_of(store)
        assert state is not None
        assert state.closed is Closed.DONE
        tg.cancel_scope.cancel()
    assert rest.error is None


@VIRTUAL
async def test_a_finished_member_that_is_lost_afterwards_owes_nothing() -> None:
    """The others go on in their round, and the job is done when they finish."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b = Agent(store, params(2, 2)), Agent(store, params(2, 2))
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        a.finish.set()
        with fail_after(3):
            await until(lambda: b.worlds)
        await anyio.sleep(0.3)
        a.node.line.cut()
        await anyio.sleep(2)
        assert b.world is not None
        assert b.world.ended is None
        b.finish.set()
        with fail_after(3):
            await until(lambda: b.ended)
        assert b.error is None
        assert b.world.outcome.startswith("done")
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_spare_gets_a_graceful_end_when_the_members_finish() -> None:
    """Its ``rounds()`` ends without a world and without an error."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        member, spare = Agent(store, params(1, 1)), Agent(store, params(1, 1))
        tg.start_soon(member.run)
        with fail_after(5):
            await until(lambda: member.worlds)
            tg.start_soon(spare.run)
            await anyio.sleep(0.5)
            member.finish.set()
            await until(lambda: member.ended and spare.ended)
    assert (member.error, spare.error, spare.worlds) == (None, None, [])


@VIRTUAL
async def test_newcomers_are_not_admitted_to_a_job_that_is_ending() -> None:
    """Somebody has finished and nothing is owed: waiters are spares, and told nothing but the end."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b, late = (Agent(store, params(1, 3)) for _ in range(3))
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(3):
            await until(lambda: a.worlds and b.worlds)
            a.finish.set()
            await anyio.sleep(0.2)
        tg.start_soon(late.run)
        await anyio.sleep(10)  # beyond the newcomer's join time-out: its clock stands still
        assert b.world is not None
        assert b.world.ended is None
        assert await b.node.handler.num_nodes_waiting() == 0
        b.finish.set()
        with fail_after(3):
            await until(lambda: a.ended and b.ended and late.ended)
    assert (a.error, b.error, late.error, late.worlds) == (None, None, None, [])


@VIRTUAL
async def test_the_exit_barrier_ends_a_wait_for_members_that_never_finish() -> None:
    """design.md 3: at most ``exit_barrier``; the body's work is done all the same."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b = Agent(store, params(2, 2, exit_barrier=3)), Agent(store, params(2, 2, exit_barrier=3))
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(3):
            await until(lambda: a.worlds and b.worlds)
        a.finish.set()
        began = anyio.current_time()
        with fail_after(5):
            await until(lambda: a.ended)
        assert 3 <= anyio.current_time() - began < 3.5
        assert a.error is None
        assert "exit barrier of 3 s" in a.worlds[0].outcome
        b.finish.set()
        with fail_after(3):
            await until(lambda: b.ended)
        assert b.error is None


@VIRTUAL
async def test_a_finish_is_announced_before_the_block_ends() -> None:
    async with MemoryStore() as store:

        async def work(agent: Agent, world: Round) -> None:
            world.finish()
            world.finish()  # idempotent
            await anyio.sleep(0.5)
            state = await state_of(store)
            assert state is not None
            assert state.closed is Closed.DONE

        agent = Agent(store, params(), work)
        with fail_after(5):
            await agent.run()
    assert agent.error is None


@VIRTUAL
async def test_a_body_that_returns_without_finishing_joins_again() -> None:
    async with MemoryStore() as store:

        async def work(agent: Agent, world: Round) -> None:
            if world.round == 2:
                world.finish()

        agent = Agent(store, params(), work)
        with fail_after(5):
            await agent.run()
    assert agent.error is None
    assert [w.round for w in agent.worlds] == [0, 1, 2]


@VIRTUAL
@pytest.mark.parametrize("kind", ["lost", "left", "waiting"])
async def test_a_body_ends_when_its_membership_does_and_knows_why(kind: str) -> None:
    """D32, D33: a death, a leave and a newcomer; statements after the block run with ``ended`` set."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b, c = (Agent(store, params(1, 3)) for _ in range(3))
        tg.start_soon(a.run)
        leave = anyio.CancelScope()

        async def other() -> None:
            with leave:
                await b.run()

        tg.start_soon(other)
        with fail_after(5):
            await until(lambda: a.worlds and b.worlds)
            if kind == "lost":
                b.node.line.cut()
            elif kind == "left":
                leave.cancel()
            else:
                tg.start_soon(c.run)
            await until(a.is_in(1, 3 if kind == "waiting" else 1))
        assert a.worlds[0].ended is not None
        assert a.worlds[0].ended.kind == kind
        who = (c if kind == "waiting" else b).node.handler
        if kind != "left":
            assert repr(who.node) in a.worlds[0].ended.reason
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_member_that_was_evicted_by_mistake_ends_its_body_and_joins_again() -> None:
    """D9, design.md 3: never a silent orphan."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b = Agent(store, params(1, 2)), Agent(store, params(1, 2))
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(5):
            await until(lambda: a.worlds and b.worlds)
            b.node.line.cut()
            await until(a.is_in(1, 1))
            assert b.world is not None
            assert b.world.ended is None  # it cannot know yet
            b.node.line.mend()
            await until(a.is_in(2, 2))
            await until(b.is_in(2, 2))
        assert b.worlds[0].ended is not None
        assert b.worlds[0].ended.kind == "evicted"
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_change_during_the_bootstrap_wait_still_ends_the_body() -> None:
    """The membership changes after the round completed and before its member has the bootstrap address."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        held = anyio.Event()
        a = Agent(store, params(1, 3, "127.0.0.2"))
        b = Agent(store, params(1, 3, "127.0.0.3"))
        c = Agent(store, params(1, 3, "127.0.0.4"))

        async def slow(name: str, args: tuple) -> None:
            if name == "watch" and args[0].endswith("bootstrap") and not held.is_set():
                await held.wait()

        b.node.line.gate = slow
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(5):
            await until(lambda: a.worlds)
            tg.start_soon(c.run)
            await anyio.sleep(0.5)
            held.set()
            await until(b.is_in(1, 3))
        assert b.worlds[0].round == 0
        assert b.worlds[0].ended is not None
        # c waits, and a re-joins because of it; either may be what b is told.
        assert b.worlds[0].ended.kind in ("waiting", "left")
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_change_in_the_bodys_shielded_cleanup_takes_effect_after_it() -> None:
    """design.md 6."""
    steps: list[str] = []
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            if world.round == 0:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(3)
                    steps.append("cleaned up")
                await anyio.sleep(1)
                steps.append("never")
            await anyio.sleep_forever()

        a, b = Agent(store, params(1, 2), work), Agent(store, params(1, 2))
        tg.start_soon(a.run)
        with fail_after(8):
            await until(lambda: a.worlds)
            tg.start_soon(b.run)
            await until(a.is_in(1, 2))
        tg.cancel_scope.cancel()
    assert steps == ["cleaned up"]


@VIRTUAL
async def test_the_bodys_own_exception_wins_and_the_others_go_on() -> None:
    """R2: a worker's failure leaves the block as it is; nothing is closed."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            await anyio.sleep(0.5)
            raise LookupError("a worker failed")

        a, b = Agent(store, params(1, 2)), Agent(store, params(1, 2), work)
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(5):
            await until(a.is_in(1, 1))
        assert isinstance(b.error, LookupError)
        assert not await a.node.handler.is_closed()
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_the_bodys_own_exception_wins_over_a_change_at_the_same_moment() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise LookupError("mine")

        a, b = Agent(store, params(1, 2), work), Agent(store, params(1, 2))
        tg.start_soon(a.run)
        with fail_after(5):
            await until(lambda: a.worlds)
            tg.start_soon(b.run)
            await until(lambda: a.ended)
        assert isinstance(a.error, LookupError)
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_closing_never_cancels_a_body_and_makes_the_next_join_raise() -> None:
    """design.md 3."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        steps: list[str] = []

        async def work(agent: Agent, world: Round) -> None:
            await agent.node.handler.set_closed()
            await anyio.sleep(2)
            steps.append("body went on")

        a = Agent(store, params(), work)
        tg.start_soon(a.run)
        with fail_after(5):
            await until(lambda: a.ended)
    assert steps == ["body went on"]
    assert isinstance(a.error, RendezvousClosedError)


@VIRTUAL
async def test_finishing_a_run_that_was_closed_ends_at_once() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            await agent.node.handler.set_closed()
            await anyio.sleep(0.5)
            world.finish()

        a = Agent(store, params(), work)
        tg.start_soon(a.run)
        with fail_after(5):
            await until(lambda: a.ended)
    assert a.error is None


@VIRTUAL
async def test_cancelling_a_member_in_its_body_makes_it_leave() -> None:
    """R1: the cancelled node is gone at once, not after its expiry."""
    calm = CALM | {"keep_alive_interval": 10, "last_call_timeout": 0.2}
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b = Agent(store, params(1, 2, base=calm)), Agent(store, params(1, 2, base=calm))
        tg.start_soon(a.run)
        scope = anyio.CancelScope()

        async def other() -> None:
            with scope:
                await b.run()

        tg.start_soon(other)
        with fail_after(5):
            await until(lambda: a.worlds and b.worlds)
            scope.cancel()
            with anyio.fail_after(1.5):
                await until(a.is_in(1, 1))
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_cancelling_a_finished_member_keeps_its_finish() -> None:
    """protocol.md P9 with the finish bit: its work counts although it leaves early."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        a, b = Agent(store, params(2, 2)), Agent(store, params(2, 2))
        scope = anyio.CancelScope()

        async def other() -> None:
            with scope:
                await b.run()

        tg.start_soon(a.run)
        tg.start_soon(other)
        with fail_after(5):
            await until(lambda: a.worlds and b.worlds)
            b.finish.set()
            scope.cancel()  # at once: perhaps before the FINISH was folded
            await anyio.sleep(1)
            assert a.world is not None
            assert a.world.ended is None
            a.finish.set()
            await until(lambda: a.ended)
        state = await state_of(store)
        assert state is not None
        assert (state.round, state.closed) == (0, Closed.DONE)


@VIRTUAL
async def test_a_round_is_entered_once() -> None:
    async with MemoryStore() as store, Node(store, params()) as node:
        async for world in node.handler.rounds():
            async with world:
                with pytest.raises(RendezvousUsageError, match="entered once"):
                    await world.__aenter__()
                world.finish()


@VIRTUAL
async def test_a_round_shows_the_snapshot_of_its_world() -> None:
    async with MemoryStore() as store, Node(store, params()) as node:
        async for world in node.handler.rounds():
            async with world:
                info = world.info
                assert (world.rank, world.world_size, world.round, world.failures) == (0, 1, 0, 0)
                assert world.participants == info.participants
                assert world.wait_list == ()
                assert world.store is info.store
                assert world.bootstrap_store_info == info.bootstrap_store_info
                world.release_port()
                world.finish()


def test_rounds_is_a_class_with_anext_and_no_generator() -> None:
    """design.md 6: an async generator would be finalised by the event loop, long after its task."""
    assert hasattr(Rounds, "__anext__")
    assert not hasattr(Rounds, "athrow")


@VIRTUAL
async def test_a_lost_store_ends_the_body_with_the_connection_error() -> None:
    """D34, R112: the world cannot go on unseen."""
    async with MemoryStore() as store:
        agent = Agent(store, params())
        async with anyio.create_task_group() as tg:
            tg.start_soon(agent.run)
            with fail_after(5):
                await until(lambda: agent.worlds)
                await store.aclose()
                await until(lambda: agent.ended)
    assert isinstance(agent.error, RendezvousConnectionError)
    assert agent.worlds[0].ended is not None
    assert agent.worlds[0].ended.kind == "evicted"


# ---- barriers -----------------------------------------------------------------------------------------------------


@VIRTUAL
async def test_a_barrier_opens_when_every_member_has_come_as_often_as_needed() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        passed: list[tuple[int, int]] = []

        async def work(agent: Agent, world: Round) -> None:
            for turn in range(3):
                await anyio.sleep(0.1 * world.rank)
                await world.barrier("step", timeout=5)
                passed.append((turn, world.rank))
            world.finish()

        agents = [Agent(store, params(3, 3), work) for _ in range(3)]
        for agent in agents:
            tg.start_soon(agent.run)
        with fail_after(10):
            await until(lambda: all(agent.ended for agent in agents))
    assert [agent.error for agent in agents] == [None] * 3
    assert [turn for turn, _ in passed] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@VIRTUAL
async def test_a_barrier_that_ends_names_who_is_missing() -> None:
    """R113: three members, two present, half a second."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        errors: list[Exception] = []

        async def work(agent: Agent, world: Round) -> None:
            if world.rank == 1:
                await anyio.sleep_forever()
            with pytest.raises(RendezvousTimeoutError) as caught:
                await world.barrier("save", timeout=0.5)
            assert f"rank 1 ({world.participants[1]!r})" in str(caught.value)
            errors.append(caught.value)
            await anyio.sleep_forever()

        agents = [Agent(store, params(3, 3), work) for _ in range(3)]
        for agent in agents:
            tg.start_soon(agent.run)
        with fail_after(5):
            await until(lambda: len(errors) == 2)
        tg.cancel_scope.cancel()
    for error in errors:
        for part in ("'save'", "2 of 3", "0.5 s", "missing"):
            assert part in str(error)
        assert "rank 0 (" not in str(error)


@VIRTUAL
async def test_a_barriers_names_are_the_callers_and_independent() -> None:
    """R113: ids that the caller gives do not diverge by local counters; odd names are names."""
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            names = ["a", "a/in", "1/a", "b"]
            for name in names if world.rank else reversed(names):
                tg.start_soon(world.barrier, name)
            await anyio.sleep(1)
            await world.barrier("end", timeout=1)
            world.finish()

        agents = [Agent(store, params(2, 2), work) for _ in range(2)]
        for agent in agents:
            tg.start_soon(agent.run)
        with fail_after(5):
            await until(lambda: all(agent.ended for agent in agents))
        assert store.waiting == 0
    assert [agent.error for agent in agents] == [None, None]


@VIRTUAL
@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
async def test_a_barrier_refuses_an_impossible_timeout(timeout: float) -> None:
    async with MemoryStore() as store, Node(store, params()) as node:
        world = await anext(node.handler.rounds())
        with pytest.raises(ValueError, match="timeout must be positive"):
            await world.barrier("x", timeout)


@VIRTUAL
async def test_a_member_that_dies_in_a_barrier_ends_the_wait_of_the_others() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:

        async def work(agent: Agent, world: Round) -> None:
            if world.world_size == 2:
                await (anyio.sleep_forever() if agent is b else world.barrier("x"))
            await anyio.sleep_forever()

        a, b = Agent(store, params(1, 2), work), Agent(store, params(1, 2), work)
        tg.start_soon(a.run)
        tg.start_soon(b.run)
        with fail_after(5):
            await until(lambda: a.worlds and b.worlds)
            b.node.line.cut()
            await until(a.is_in(1, 1))
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_round_without_a_keeper_waits_for_nobody() -> None:
    """The static backend's rounds: nothing elastic to wait for."""
    async with MemoryStore() as store:
        world = Round(RendezvousInfo(store, 0, 1), None, exit_barrier=1)
        async with world:
            world.finish()
    assert world.is_finished
    assert world.outcome == ""
