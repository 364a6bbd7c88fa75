"""The elastic agent: one node that joins, runs its workers for a round, and joins again when the membership changes."""

from __future__ import annotations

import enum
import os
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from ..endpoint import format_endpoint, parse_rendezvous_endpoint
from ..errors import RendezvousError
from ..handler.create import create_handler
from .display import Display, Lines
from .environment import worker_specs
from .hosting import DEFAULT_PORT, DYNAMIC_BACKENDS, embedded_store, host_store
from .logs import LogDirectory, OutputPlan, Outputs
from .obituary import Obituary, publish, read_all, shown
from .progress import Progress
from .workers import WorkerExit, WorkerGroup, WorkerGroupError, signal_name

if TYPE_CHECKING:
    from ..handler.base import RendezvousHandler
    from ..handler.rounds import Round
    from ..params import RendezvousParameters
    from .environment import WorkerSpec

__all__ = ("AgentConfig", "ElasticAgent", "ExitStatus", "run_agent")

#: After a worker failed: how long to look whether a lost peer is the cause, and to wait for the verdict on that peer.
#: A broken collective tells of a killed node at once, the rendezvous a second (``disconnect_grace``) later.
_LOOK_AROUND = 0.25
_VERDICT = 3.0
#: Seconds that leaving may take when a signal ends this node; the handler bounds it by itself.
_LEAVE_LIMIT = 3.0
#: Seconds in which a signal that has come is heard.
_HEARING = 0.1


class ExitStatus(enum.IntEnum):
    """How ``arendezvous run`` ends."""

    DONE = 0  # every member finished, or this node was a spare that nobody needed
    FAILED = 1  # workers failed
    USAGE = 2
    RENDEZVOUS = 3  # the rendezvous failed, was closed or timed out
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What an agent is to do.

    Attributes:
        params: The rendezvous; ``local_world_size`` is the number of workers of this node.
        argv: The workers' command line (see :func:`~arendezvous.agent.environment.worker_argv`).
        max_restarts: How many rounds of the run a failure of workers may open.
        grace: Seconds between the signal that stops workers and SIGKILL.
        output: Where the output of workers goes.
        embedded: This node is alone: keep the store in this process, on a free port.
        serve: The command that serves a store; endpoint and options are added to it.
        env: What the workers' environment is built on; this process's own by default.
        display: Takes what the operator is to know.
    """

    params: RendezvousParameters
    argv: tuple[str, ...]
    max_restarts: int = 0
    grace: float = 30.0
    output: OutputPlan = field(default_factory=OutputPlan)
    embedded: bool = False
    serve: tuple[str, ...] = (sys.executable, "-m", "arendezvous", "serve")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    display: Display = field(default_factory=Lines)


class ElasticAgent:
    """One node of an elastic job.

    Each round starts the workers anew; a change of the membership stops them (SIGTERM, grace, SIGKILL to the group) and
    joins the next round at no cost. A worker that fails stops the group too, and the round that follows counts as a
    failure: the count is part of the agreed state, so every node reads the same one. With ``max_restarts`` failures on
    the count, the node whose worker fails next exits with status 1 and *leaves*: nothing is closed. The others go on
    without it while at least ``min_nodes`` remain; when fewer do, they exit with status 1 as well instead of waiting
    for a replacement.

    Raises:
        ValueError: backend, options or endpoint are not valid.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        # Read late, by whom they concern; a mistake in them is to be known now.
        config.params.get_as_bool("is_host")
        config.params.get_as_int("bootstrap_port")
        # A library handler would host in its own task group and take the store along when it dies.
        self._params = (
            config.params.replace(is_host=False) if config.params.backend in DYNAMIC_BACKENDS else config.params
        )
        self._handler = create_handler(self._params)
        self._progress = Progress(config.display)
        self._group: WorkerGroup | None = None
        self._signal: signal.Signals | None = None
        self._open = False
        self._files: LogDirectory | None = None

    async def run(self) -> ExitStatus:
        """Take part until the job is done, and return the exit status.

        Cancellation:
            Stops the workers and leaves, within the grace and a few seconds.
        """
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            status = ExitStatus.DONE
            async with anyio.create_task_group() as tg:
                scope = anyio.CancelScope()
                tg.start_soon(self._obey_signals, signals, scope)
                try:
                    with scope:
                        status = await self._take_part()
                except Exception as exc:  # outside the scope: inside, a cancellation may be part of the group
                    error = _leaf(exc)
                    if not isinstance(error, (WorkerGroupError, RendezvousError)):
                        raise
                    status = await self._ended_by(error)
                tg.cancel_scope.cancel()
        if self._signal is None:
            return status
        return ExitStatus.INTERRUPTED if self._signal == signal.SIGINT else ExitStatus.TERMINATED

    async def _obey_signals(self, signals: AsyncIterable[signal.Signals], scope: anyio.CancelScope) -> None:
        async for number in signals:
            if self._signal is None:
                self._signal = number
                self._say(
                    f"{signal_name(number)}: stopping the workers and leaving, the other nodes go on"
                    f" (up to {self._config.grace:g} s; once more to stop at once)"
                )
                self._progress.joined()  # whatever it waits for, it does so no longer
                if self._group is not None:
                    self._group.stop_signal = number
                scope.cancel()
                # At once and not after the workers: the others learn of it before their collectives break.
                with anyio.move_on_after(_LEAVE_LIMIT), suppress(RendezvousError):
                    if self._open:
                        await self._handler.leave()
            elif self._group is not None:
                self._say(f"{signal_name(number)} again: killing the workers")
                self._group.kill()

    async def _take_part(self) -> ExitStatus:
        try:
            if self._config.output.has_files:
                # In a thread: the directory may be on a file system of the network, and others wait for our heartbeats.
                self._files = await anyio.to_thread.run_sync(
                    LogDirectory, self._config.output.directory, self._params.run_id
                )
                self._news(f"logs of the workers: {self._files.path}")
        except OSError as exc:
            self._say(f"the log directory cannot be made: {exc.filename or ''}: {exc.strerror or exc}; see --log-dir")
            return ExitStatus.USAGE
        async with self._progress.tell(), self._reached() as handler, self._progress.watch(handler):
            return await self._rounds(handler)

    async def _ended_by(self, error: WorkerGroupError | RendezvousError) -> ExitStatus:
        if isinstance(error, RendezvousError):
            self._say(" ".join([str(error), *getattr(error, "__notes__", ())]))
            return ExitStatus.RENDEZVOUS
        # A Ctrl-C that kills the supervisor before it has a session of its own comes to this process as well.
        await anyio.sleep(_HEARING)
        if self._signal is None:
            self._say(str(error))
        return ExitStatus.FAILED

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[RendezvousHandler]:
        """The handler, connected to a store that somebody else hosts or that this agent has started."""
        if self._config.embedded:
            async with embedded_store() as endpoint:
                self._move(endpoint)
                async with self._entered() as handler:
                    yield handler
            return
        self._progress.connecting(self._params.endpoint)
        store = await host_store(self._config.params, self._config.serve)
        if store is not None:
            self._news(f"started the store at {store.endpoint} (pid {store.pid})")
            host, port = parse_rendezvous_endpoint(self._params.endpoint, DEFAULT_PORT)
            if port == 0:
                _, port = parse_rendezvous_endpoint(store.endpoint, DEFAULT_PORT)
                self._move(format_endpoint(host, port))
        async with self._entered() as handler:
            yield handler

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[RendezvousHandler]:
        async with self._handler as handler:
            self._open = True
            try:
                yield handler
            finally:
                self._open = False

    def _move(self, endpoint: str) -> None:
        """The endpoint turned out to be another one."""
        self._params = self._params.replace(endpoint=endpoint)
        self._handler = create_handler(self._params)

    # ---- rounds -----------------------------------------------------------------------------------------------

    async def _rounds(self, handler: RendezvousHandler) -> ExitStatus:
        finished = False
        self._progress.joining(handler, self._params.endpoint)
        async for world in handler.rounds():
            self._progress.joined()
            failure: WorkerExit | None = None
            async with world:
                failure = await self._work(world)
                if failure is None:
                    self._progress.finished(world, handler, self._params.endpoint)
                else:
                    await self._look_around(handler, world)
                    # Before it is decided what the failure means: between that and saying so nothing may happen.
                    await self._publish(world, failure)
            self._progress.joined()
            if world.is_finished:
                finished = True
                self._news(f"round {world.round}: done{f' ({world.outcome})' if world.outcome else ''}")
            elif failure is not None and (world.ended is None or world.ended.kind == "waiting"):
                if world.failures >= self._config.max_restarts:
                    return await self._give_up(world, failure)
                handler.fail(str(failure))
                await self._read_deaths(world)
                count = f"failure {world.failures + 1} of at most {self._config.max_restarts}"
                self._news(f"round {world.round}: joining again after {count}")
            else:
                reason = world.ended.reason if world.ended is not None else "the workers were stopped"
                self._news(f"{reason}; the workers were stopped, joining again")
                deaths = await self._read_deaths(world)
                if gone := await self._fallen(handler, world, deaths):
                    self._say(f"{gone}; fewer than {self._params.min_nodes} nodes remain, giving up")
                    return ExitStatus.FAILED
            self._progress.joining(handler, self._params.endpoint)
        if not finished:
            self._news(
                f"the job {self._params.run_id!r} is over and did not need this node; a new job needs a new --rdzv-id"
            )
        return ExitStatus.DONE

    async def _work(self, world: Round) -> WorkerExit | None:
        """Run the workers of a round; None when all have done their work, which is then announced."""
        group = WorkerGroup(self._config.grace)
        if self._signal is not None:
            group.stop_signal = self._signal
        self._group = group
        try:
            async with group:
                specs = worker_specs(
                    world,
                    self._config.argv,
                    self._config.env,
                    run_id=self._params.run_id,
                    max_restarts=self._config.max_restarts,
                )
                outputs: dict[int, Outputs] | None = None
                if self._files is not None:
                    outputs = await anyio.to_thread.run_sync(self._outputs, self._files, world.round, specs)
                self._progress.started(world, specs)
                # Rank 0's worker is to listen on this port, so it is free from here on and not before.
                world.release_port()
                await group.start(specs, outputs)
                exits = await group.wait()
                failure = next((end for end in exits if not end.is_success), None)
                if failure is None:
                    world.finish()
                else:
                    self._say(f"{failure}; stopping the other workers of this node" if len(specs) > 1 else str(failure))
                return failure
        finally:
            self._group = None

    def _outputs(self, files: LogDirectory, number: int, specs: Sequence[WorkerSpec]) -> dict[int, Outputs]:
        try:
            return {
                spec.local_rank: self._config.output.outputs(files, number, spec.local_rank, spec.env["ROLE_NAME"])
                for spec in specs
            }
        except OSError as exc:
            raise WorkerGroupError(
                f"A log directory cannot be made: {exc.filename or ''}: {exc.strerror or exc}; see --log-dir."
            ) from exc

    async def _look_around(self, handler: RendezvousHandler, world: Round) -> None:
        """A worker failed. If a peer that is gone is the cause, the round ends under us here, and no failure counts."""
        if world.world_size == 1:
            return
        with suppress(RendezvousError):
            await anyio.sleep(_LOOK_AROUND)
            status = await handler.status()
            if any(node.condition == "live" and not node.attached for node in status.participants):
                await anyio.sleep(_VERDICT)

    async def _publish(self, world: Round, failure: WorkerExit, *, final: bool = False) -> None:
        """Show the last lines of a worker here and leave them for the other nodes to read later."""
        obituary = Obituary.of(failure, final=final)
        if not final:  # and has been shown otherwise
            for line in obituary.tell(f"round {world.round}, this node"):
                self._say(line)
        with suppress(RendezvousError):
            with anyio.move_on_after(_LEAVE_LIMIT):
                await publish(world, obituary)

    async def _read_deaths(self, world: Round) -> dict[int, Obituary]:
        """What the nodes of an ended round say of their workers' ends; that of the others is shown."""
        with suppress(RendezvousError):
            with anyio.move_on_after(_LEAVE_LIMIT):
                found = await read_all(world)
                for rank, told in shown(found, world.rank):
                    for line in told.tell(f"round {world.round}, {world.participants[rank]!r}"):
                        self._say(line)
                return found
        return {}

    async def _give_up(self, world: Round, failure: WorkerExit) -> ExitStatus:
        limit = self._config.max_restarts
        how = f"and --max-restarts {limit} is used up" if limit else "and --max-restarts is 0"
        self._say(f"round {world.round}: {failure}, {how}; leaving, nothing is closed")
        # For those whose own minimum this breaks.
        await self._publish(world, failure, final=True)
        return ExitStatus.FAILED

    async def _fallen(self, handler: RendezvousHandler, world: Round, deaths: Mapping[int, Obituary]) -> str:
        """Who of an ended round failed for good, if too few nodes are left by that; empty otherwise."""
        fallen = {rank: told for rank, told in deaths.items() if told.final}
        if not fallen:
            return ""
        with suppress(RendezvousError):
            with anyio.move_on_after(_LEAVE_LIMIT):
                status = await handler.status()
                here = {node.node.incarnation for node in status.nodes if node.condition not in ("lost", "left")}
                here -= {world.participants[rank].incarnation for rank in fallen}
                here.add(world.participants[world.rank].incarnation)
                if len(here) < self._params.min_nodes:
                    return "; ".join(f"{world.participants[rank]!r}: {told.who}" for rank, told in fallen.items())
        return ""

    def _say(self, text: str) -> None:
        self._config.display.say(text)

    def _news(self, text: str) -> None:
        self._config.display.news(text)


async def run_agent(config: AgentConfig) -> ExitStatus:
    """Run an elastic agent to its end; see :class:`ElasticAgent`.

    Raises:
        ValueError: backend, options or endpoint are not valid.

    Cancellation:
        Stops the workers and leaves.
    """
    return await ElasticAgent(config).run()


def _leaf(error: BaseException) -> BaseException:
    """The first real error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
