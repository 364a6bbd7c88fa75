"""The story: a job forms, loses an agent, goes on without it, grows again and ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

import anyio

from ...errors import RendezvousError
from ...handler.inspect import inspect
from ...handler.status import RendezvousStatus
from ...params import RendezvousParameters
from .cast import LIMIT, Actor, Cast, Unmet
from .timeline import Timeline

__all__ = ("Story",)

_RUN_ID = "demo"
_MIN, _MAX = 2, 3
#: The story is told by an observer that connects this often, in seconds.
_LOOK = 0.02
#: Seconds that the workers work before the next thing happens, so that people can follow.
_PAUSE = 0.3
_SERVING = re.compile(r"serving on (\S+)$")
_WORKER = re.compile(r"worker rank (\d+) of (\d+) runs$")
#: A worker says who it is and works until its standard input ends.
_WORK = (
    "import os, sys; print('worker rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'runs', flush=True); "
    "sys.stdin.buffer.read()"
)


class Story:
    """Five acts.

    Args:
        cast: Starts the processes.
        timeline: Takes what happens.
    """

    def __init__(self, cast: Cast, timeline: Timeline) -> None:
        self._cast, self._timeline = cast, timeline
        self._params = RendezvousParameters("p10d", "", _RUN_ID)
        #: Rank and world size, as the worker of each agent has said them last.
        self._places: dict[Actor, tuple[int, int]] = {}
        self._told = -1  # the last round that the audience knows

    async def play(self) -> None:
        """All of it.

        Raises:
            Unmet: something did not happen.

        Cancellation:
            Leaves the processes to the cast.
        """
        agents = await self._form()
        victim, killed = await self._kill(agents)
        agents.remove(victim)
        noticed = await self._notice(victim, agents, killed)
        await self._reform(agents, noticed)
        await self._grow(agents)
        await self._finish(agents)

    # ---- acts -------------------------------------------------------------------------------------------------

    async def _form(self) -> list[Actor]:
        self._timeline.act = 1
        await self._open_store()
        since = self._timeline.now
        agents = [await self._start(name) for name in ("agent A", "agent B", "agent C")]
        await self._cast.until_ready(agents)
        names, pids = _list(agents), [agent.pid for agent in agents]
        begun = self._timeline.add(
            "started",
            f"agents {names} (pids {', '.join(map(str, pids))}), loaded in {{took}}",
            since,
            pids=pids,
        )
        for agent in agents:
            agent.begin()
        await self._expect_round(agents, begun, "after they began")
        return agents

    async def _kill(self, agents: Sequence[Actor]) -> tuple[Actor, float]:
        self._timeline.act = 2
        await anyio.sleep(_PAUSE)
        self._cast.check("the next act")
        victim = agents[1]
        victim.kill()
        return victim, self._timeline.add(
            "killed", f"{victim.name} (pid {victim.pid}) by SIGKILL: it cannot say goodbye", pids=[victim.pid]
        )

    async def _notice(self, victim: Actor, survivors: Sequence[Actor], killed: float) -> float:
        def is_noticed(status: RendezvousStatus) -> bool:
            """The agents have agreed that it is lost, or have done the next thing already."""
            members = {node.node.pid: node.condition for node in status.participants}
            return (status.round or 0) > self._told or members.get(victim.pid) == "lost"

        await self._look(f"the survivors to notice the death of {victim.name}", is_noticed)
        return self._timeline.add("noticed", f"agents {_list(survivors)} noticed the death after {{took}}", killed)

    async def _reform(self, survivors: Sequence[Actor], noticed: float) -> None:
        self._timeline.act = 3
        await self._expect_round(survivors, noticed, "later")

    async def _grow(self, agents: list[Actor]) -> None:
        self._timeline.act = 4
        await anyio.sleep(_PAUSE)
        since = self._timeline.now
        newcomer = await self._start("agent D")
        await self._cast.until_ready([newcomer])
        begun = self._timeline.add(
            "started",
            f"the newcomer {newcomer.name} (pid {newcomer.pid}), loaded in {{took}}",
            since,
            pids=[newcomer.pid],
        )
        newcomer.begin()
        agents.append(newcomer)
        await self._expect_round(agents, begun, "after it began")

    async def _finish(self, agents: Sequence[Actor]) -> None:
        self._timeline.act = 5
        await anyio.sleep(_PAUSE)
        self._cast.check("the next act")
        for agent in agents:
            agent.is_expected_to_run = False
        since = self._timeline.add("finish", "the workers are told that their work is done")
        self._cast.end_work()
        await self._look("the job to be over", lambda status: status.closed == "done")
        over = self._timeline.add("done", "all members have finished, the job is over after {took}", since)
        await self._cast.until("the agents to end", lambda: all(agent.has_ended for agent in agents))
        for agent in agents:
            if agent.process.returncode != 0:
                raise Unmet(f"{agent.name} ended with status {agent.process.returncode} instead of 0")
        self._timeline.add("ended", f"all {len(agents)} agents with status 0, {{took}} later", over)

    # ---- what acts are made of --------------------------------------------------------------------------------

    async def _open_store(self) -> None:
        since = self._timeline.now
        store = await self._cast.start_store("127.0.0.1:0")
        endpoints: list[str] = []

        def listen(line: str) -> None:
            endpoints.extend(_SERVING.findall(line))

        store.on_line(listen)
        store.begin()
        await self._cast.until("the store to serve", lambda: bool(endpoints))
        self._params = RendezvousParameters("p10d", endpoints[0], _RUN_ID, config={"read_timeout": 5})
        self._timeline.add(
            "store",
            f"serves at {endpoints[0]} (pid {store.pid}), up in {{took}}",
            since,
            pids=[store.pid],
        )

    async def _start(self, name: str) -> Actor:
        agent = await self._cast.start_agent(
            name,
            *("--nnodes", f"{_MIN}:{_MAX}", "--rdzv-endpoint", self._params.endpoint, "--rdzv-id", _RUN_ID),
            # Never a host: a store that an agent started would outlive the demo.
            *("--rdzv-conf", "last_call_timeout=0.3,is_host=false,read_timeout=5", "--shutdown-timeout", "1"),
            *("--", sys.executable, "-I", "-S", "-u", "-c", _WORK),
        )

        def listen(line: str) -> None:
            if found := _WORKER.search(line):
                self._places[agent] = int(found[1]), int(found[2])

        agent.on_line(listen)
        return agent

    async def _expect_round(self, agents: Sequence[Actor], since: float, since_what: str) -> None:
        """Wait for the round of just these agents, and for the word of their workers."""
        pids, size = {agent.pid for agent in agents}, len(agents)

        def is_formed(status: RendezvousStatus) -> bool:
            if not status.complete or status.round is None or status.round <= self._told:
                return False
            self._told = status.round
            if {node.node.pid for node in status.participants} == pids:
                return True
            # On a busy machine one of them may be late; the next round has it.
            self._timeline.add(
                "interim",
                f"round {status.round} with {len(status.participants)} nodes, {{took}} {since_what}; not all yet",
                since,
                round=status.round,
                nodes=len(status.participants),
            )
            return False

        await self._look(f"a round with {size} nodes", is_formed)
        formed = self._timeline.add(
            "formed",
            f"round {self._told} with {size} nodes, {{took}} {since_what}",
            since,
            round=self._told,
            nodes=size,
        )

        def all_work() -> bool:
            places = [self._places.get(agent, (-1, 0)) for agent in agents]
            return sorted(places) == [(rank, size) for rank in range(size)]

        await self._cast.until(f"the workers of round {self._told}", all_work)
        ranks = ", ".join(f"{agent.name[-1]} = {self._places[agent][0]}" for agent in agents)
        self._timeline.add("working", f"the workers run, {{took}} later; ranks: {ranks}", formed)

    async def _look(self, what: str, condition: Callable[[RendezvousStatus], bool]) -> None:
        """Look at the run from outside until a condition holds."""
        with anyio.move_on_after(LIMIT):
            while True:
                self._cast.check(what)
                try:
                    if condition(await inspect(self._params)):
                        return
                except RendezvousError as exc:
                    raise Unmet(f"{exc} (while waiting for {what})") from exc
                await anyio.sleep(_LOOK)
        raise Unmet(f"waited {LIMIT:g} s for {what}")


def _list(agents: Sequence[Actor]) -> str:
    """``A, B and C``."""
    *most, last = (agent.name[-1] for agent in agents)
    return f"{', '.join(most)} and {last}"
