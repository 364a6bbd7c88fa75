"""The deterministic simulator: real handlers, in virtual time, over a store that fails in every way that a seed finds.

::

    report = simulate(42)
    report.check()          # raises SimulationError that names the command to replay it

Each node has a clock of its own; its calls are delayed, lost, or done long after it gave them up; it is cut off,
paused, killed and started anew; it joins, leaves, fails, finishes and closes. After 25 virtual seconds the faults stop,
and the nodes must come to rest. The same seed gives the same log, in any process.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ..store.base import DISCONNECT_GRACE
from .clock import virtual_backend
from .simcheck import Checker
from .simnet import MemoryNetwork, Network, TcpNetwork
from .simnode import Life, Node
from .simorder import in_order
from .simplan import CALM, Crash, make_plan

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .simplan import Plan

__all__ = ("SimulationError", "SimulationReport", "simulate")

#: Virtual seconds in which everybody must have ended after being told to stop.
_ENDING = 15.0


class SimulationError(AssertionError):
    """A simulation found a violation."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What a simulation saw.

    Attributes:
        seed: The seed.
        transport: ``memory`` or ``tcp``.
        backend: The event loop.
        nodes: How many nodes were asked for; None = drawn from the seed.
        log: What happened, one line each; the same for the same seed.
        violations: What should not have happened; empty if all is well.
        writes: How many states were written.
        rounds: How many rounds were completed.
        seconds: Virtual seconds that passed.
    """

    seed: int
    transport: str
    backend: str
    nodes: int | None
    log: tuple[str, ...]
    violations: tuple[str, ...]
    writes: int
    rounds: int
    seconds: float

    @property
    def digest(self) -> str:
        """Names the log."""
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()[:16]

    @property
    def replay(self) -> str:
        """The command that does the same again."""
        nodes = f" --nodes {self.nodes}" if self.nodes is not None else ""
        return (
            f"python -m arendezvous.testing.replay {self.seed} --transport {self.transport} "
            f"--backend {self.backend}{nodes} -v"
        )

    def check(self) -> None:
        """Raise if something was violated.

        Raises:
            SimulationError: names each violation and the command that replays the simulation.
        """
        if self.violations:
            shown = "\n  ".join(self.violations[:10])
            raise SimulationError(
                f"{len(self.violations)} violations in simulation {self.seed}:\n  {shown}\nreplay: {self.replay}"
            )


def simulate(
    seed: int,
    *,
    transport: str = "memory",
    nodes: int | None = None,
    backend: str = "trio",
    verbose: bool = False,
) -> SimulationReport:
    """Run one simulation.

    Args:
        seed: Decides everything.
        transport: ``memory``: a memory store behind a bad network; ``tcp``: the real server and the real clients over
            byte streams in memory.
        nodes: How many nodes; drawn from the seed unless given.
        backend: ``trio`` or ``asyncio``.
        verbose: What the library logs goes into the simulation's log, debugging included; otherwise it is dropped.

    Raises:
        ValueError: there is no such transport or backend.
    """
    if transport not in ("memory", "tcp"):
        raise ValueError(f"a simulation runs over 'memory' or 'tcp', not {transport!r}")
    name, options = virtual_backend(backend)
    simulation = _Simulation(make_plan(seed, nodes), transport)
    with _logged(simulation.checker if verbose else None), in_order(name, options, seed):
        seconds = anyio.run(simulation.main, backend=name, backend_options=options)
    checker = simulation.checker
    return SimulationReport(
        seed=seed,
        transport=transport,
        backend=backend,
        nodes=nodes,
        log=tuple(checker.log),
        violations=tuple(checker.violations),
        writes=checker.writes,
        rounds=checker.rounds,
        seconds=seconds,
    )


class _Handler(logging.Handler):
    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        self._checker.note(f"    {record.getMessage()}")


@contextmanager
def _logged(checker: Checker | None) -> Iterator[None]:
    """The library's log goes to ``checker`` for this block, or nowhere."""
    logger = logging.getLogger("arendezvous")
    level, propagate = logger.level, logger.propagate
    handler = logging.NullHandler() if checker is None else _Handler(checker)
    logger.addHandler(handler)
    logger.setLevel(logging.CRITICAL if checker is None else logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Simulation:
    def __init__(self, plan: Plan, transport: str) -> None:
        self._plan, self._transport = plan, transport
        self._lives: list[Life] = []
        self.checker = Checker(plan, self._lives)

    async def main(self) -> float:
        """Run it; returns the virtual seconds that passed."""
        plan, checker = self._plan, self.checker
        checker.note(
            f"seed {plan.seed}: {len(plan.nodes)} nodes, min {plan.min_nodes}, max {plan.max_nodes}, "
            + ", ".join(f"{name} {value}" for name, value in plan.options.items())
        )
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            network: Network
            if self._transport == "memory":
                network = MemoryNetwork(checker, tasks)
            else:
                network = TcpNetwork(checker, tasks)
                tasks.start_soon(network.serve, plan.store_lost, plan.store_back)
                await anyio.lowlevel.checkpoint()
            await self._run(network, tasks)
            tasks.cancel_scope.cancel()
        return anyio.current_time() - began

    async def _run(self, network: Network, tasks: TaskGroup) -> None:
        plan, checker = self._plan, self.checker
        nodes = [Node(part, plan, self._lives, checker, network, tasks) for part in plan.nodes]
        rng = Random(f"{plan.seed}/ambush")

        def ambush(lives: list[Life]) -> None:
            now = anyio.current_time()
            if lives and rng.random() < plan.ambushes and now + 1 < CALM:
                life, at = rng.choice(lives), now + rng.choice([0.0, 0.05, 0.5]) * rng.random()
                restart = min(rng.uniform(0, 2), CALM - at) if rng.random() < 0.8 else math.inf
                nodes[life.plan.index].ambush(life, Crash(at, rng.random() < 0.6, restart, rng.random() < 0.6))

        checker.ambush = ambush
        for node in nodes:
            tasks.start_soon(node.run)
        with anyio.move_on_at(CALM):
            await checker.flood.wait()
            return
        checker.note("calm")
        for life in self._lives:
            life.station.calm()
        await self._rest(network)
        await self._end(nodes, network)

    async def _rest(self, network: Network) -> None:
        """Wait until the nodes have come to rest, then watch whether they stay there."""
        plan, checker = self._plan, self.checker
        idle = 2 * plan.expiry + plan.last_call + 3.0
        end = anyio.current_time() + 2 * plan.join + plan.last_call + 6 * plan.expiry + 20.0
        since: float | None = None
        unrest: list[str] = ["never looked"]
        while anyio.current_time() < end:
            now, unrest = anyio.current_time(), checker.unrest()
            if unrest:
                since = None
            elif since is None:
                since = now
            elif now - max(since, checker.quiet_since) >= idle:
                break
            if checker.flood.is_set():
                return
            await anyio.sleep(0.5)
        else:
            for sentence in unrest or [f"something was still written at {checker.quiet_since:.6f}"]:
                checker.violation(f"no rest: {sentence}")
            return
        checker.note("at rest")
        now, table = anyio.current_time(), network.table
        table.expire(now)
        leases = len(table.leases(b"", now))
        alive = sum(not life.dead and not life.over and life.executor is not None for life in self._lives)
        if leases != alive:
            checker.violation(f"{leases} leases for {alive} nodes")

    async def _end(self, nodes: list[Node], network: Network) -> None:
        """Everybody leaves; nothing may stay behind."""
        checker = self.checker
        for life in self._lives:
            life.stop()
        end = anyio.current_time() + _ENDING
        while any(node.running for node in nodes):
            if anyio.current_time() > end:
                names = [f"{life.name} ({life.phase})" for life in self._lives if not life.over]
                checker.violation(f"still running {_ENDING:g} s after being told to stop: {', '.join(names)}")
                break
            await anyio.sleep(0.05)
        await anyio.sleep(2 * DISCONNECT_GRACE)
        if remains := checker.remains():
            checker.violation(f"everybody has left, and {', '.join(remains)} is listed")
        table = network.table
        table.expire(anyio.current_time())
        left = table.leases(b"", anyio.current_time())
        if left:
            checker.violation(f"everybody has left, and {len(left)} leases stay")
        for life in self._lives:
            await life.station.dispose()
        await anyio.sleep(0.1)
        if table.waiting:
            checker.violation(f"everybody has left, and {table.waiting} watches stay")
