"""What will happen in a simulation, drawn from its seed before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from ..params import RendezvousParameters
from .simclock import NodeClock, Outage, Pause

__all__ = ("CALM", "Crash", "NodePlan", "Plan", "Weather", "make_plan")

#: The loop's instant at which the last fault is over, in virtual seconds.
CALM = 25.0


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network treats the calls of one node.

    Attributes:
        delay: Range of the seconds that one way takes.
        spike: How often a way takes much longer.
        spike_delay: Longest such way in seconds.
        lost_request: How often a request is lost and the caller is told that the connection failed.
        lost_reply: How often a request is done and its caller is told that the connection failed.
        late: How often a request that its caller gave up lands all the same, later.
        patience: Seconds after which a call without an answer fails.
    """

    delay: tuple[float, float] = (0.0005, 0.01)
    spike: float = 0.0
    spike_delay: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    patience: float = 10.0


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of one process of a node, without a word.

    Attributes:
        at: When.
        noticed: The kernel closes its connections, so that the store notices; a vanished host's stay open.
        restart: Seconds until the next process of the node starts; inf = never.
        same: The next process has the same descriptor (pid 1 in a container).
    """

    at: float
    noticed: bool
    restart: float
    same: bool


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node.

    Attributes:
        index: Its number.
        start: When its first process starts.
        clock: Its clock.
        outages: When its network is away.
        weather: How its calls fare until the calm.
        crashes: How its processes end, in order.
        style: ``rounds`` or ``raw``: which part of the interface it uses.
        restless: How often a member does something of its own accord.
        cancels: How often a join is cancelled.
        finishes: How often it finishes when it does something.
        closes_at: When it closes the run; inf = never.
    """

    index: int
    start: float
    clock: NodeClock
    outages: tuple[Outage, ...]
    weather: Weather
    crashes: tuple[Crash, ...]
    style: str
    restless: float
    cancels: float
    finishes: float
    closes_at: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the seed decides beforehand.

    Attributes:
        seed: The seed.
        min_nodes: Of the run.
        max_nodes: Of the run.
        options: The run's options, the same on all nodes.
        nodes: The nodes.
        all_finish: After the calm every member finishes.
        join: The join time-out.
        expiry: Seconds of silence that mean death.
        last_call: Seconds.
        notify_lost: Members want to be told of losses.
        store_lost: When the store restarts empty, with another epoch; inf = never. On ``tcp`` only.
        store_back: When it serves again.
        ambushes: How often a member of a round dies within a moment after the round was completed.
        twins: The first two nodes have the same descriptor: containers, each with a process 1.
    """

    seed: int
    min_nodes: int
    max_nodes: int
    options: dict[str, str | float | bool]
    nodes: tuple[NodePlan, ...]
    all_finish: bool
    join: float
    expiry: float
    last_call: float
    notify_lost: bool
    store_lost: float
    store_back: float
    ambushes: float
    twins: bool

    def parameters(self, index: int) -> RendezvousParameters:
        """What node ``index`` asks for."""
        return RendezvousParameters(
            "p10d",
            "simulated:1",
            f"simulation {self.seed}",
            self.min_nodes,
            self.max_nodes,
            f"10.0.0.{1 if self.twins and index == 1 else index + 1}",
            node_rank=index if self.options["rank_order"] == "node_rank" else None,
            bootstrap_port=29500 + index,
            config=self.options,
        )


def _stretches(rng: Random, count: int, longest: float) -> list[tuple[float, float]]:
    """Disjoint stretches before the calm, in order."""
    found: list[tuple[float, float]] = []
    at = 0.0
    for _ in range(count):
        start = at + rng.uniform(0.2, CALM / max(1, count))
        end = min(start + longest * rng.random() ** 2 + 0.01, CALM)
        if start >= CALM - 0.1:
            break
        found.append((start, end))
        at = end
    return found


def _weather(rng: Random, hostility: float) -> Weather:
    slow = rng.random() < 0.5 * hostility
    return Weather(
        delay=(0.0005, rng.choice([0.2, 0.4])) if slow else (0.0005, rng.choice([0.002, 0.02, 0.05])),
        spike=rng.choice([0.0, 0.02, 0.1]) * hostility,
        spike_delay=rng.uniform(0.5, 3.0),
        lost_request=rng.choice([0.0, 0.0, 0.01, 0.05]) * hostility,
        lost_reply=rng.choice([0.0, 0.0, 0.01, 0.05]) * hostility,
        late=rng.choice([0.0, 0.3, 0.9]),
        patience=rng.choice([2.0, 5.0, 10.0]),
    )


def _crashes(rng: Random, hostility: float, start: float) -> tuple[Crash, ...]:
    found: list[Crash] = []
    at = start
    while rng.random() < 0.45 * hostility and len(found) < 3:
        at = min(at + 0.05 + rng.uniform(0, rng.choice([3.0, CALM])), CALM)
        restart = rng.uniform(0.0, rng.choice([0.5, 4.0])) if rng.random() < 0.75 else math.inf
        if at + restart > CALM:
            restart = math.inf
        found.append(Crash(at, rng.random() < 0.6, restart, rng.random() < 0.6))
        if math.isinf(restart):
            break
        at += restart
    return tuple(found)


def _node(seed: int, index: int, hostility: float, finishing: bool, style: str) -> NodePlan:
    rng = Random(f"{seed}/plan/{index}")
    start = rng.uniform(0.0, 1.0) if rng.random() < 0.7 else rng.uniform(1.0, CALM - 3)
    pauses = [
        Pause(a, b, rng.random() < 0.5)
        for a, b in (_stretches(rng, rng.choice([1, 2, 3]), 8.0) if rng.random() < 0.3 * hostility else ())
    ]
    outages = [
        Outage(a, b, rng.random() < 0.5)
        for a, b in (_stretches(rng, rng.choice([1, 2, 4]), 8.0) if rng.random() < 0.35 * hostility else ())
    ]
    return NodePlan(
        index=index,
        start=start,
        clock=NodeClock(rng.choice([0.0, rng.uniform(0, 1e5)]), rng.uniform(0.92, 1.08), pauses),
        outages=tuple(outages),
        weather=_weather(rng, hostility),
        crashes=_crashes(rng, hostility, start),
        style=style or rng.choice(["rounds", "raw"]),
        restless=rng.choice([0.0, 0.3, 0.8, 0.8]),
        cancels=rng.choice([0.0, 0.2, 0.6]),
        finishes=rng.choice([0.2, 0.7]) if finishing else 0.0,
        closes_at=math.inf,
    )


def make_plan(seed: int, nodes: int | None = None) -> Plan:
    """Draw a plan.

    Args:
        seed: Decides everything.
        nodes: How many nodes; drawn as well unless given.
    """
    rng = Random(f"{seed}/plan")
    count = nodes if nodes is not None else rng.choice([2, 2, 3, 3, 3, 4, 4, 5, 6])
    max_nodes = rng.randint(1, count) if rng.random() < 0.5 else count
    min_nodes = rng.randint(1, max_nodes)
    interval, attempts = rng.choice([0.5, 1.0, 2.0]), rng.choice([2, 3, 4])
    last_call, join = rng.choice([0.2, 1.0, 4.0]), rng.choice([8.0, 15.0, 25.0])
    notify_lost = rng.random() < 0.85
    hostility = rng.choice([0.0, 0.5, 1.0, 1.0])
    finishing = rng.random() < 0.35
    order = "node_rank" if min_nodes == count else rng.choice(["address", "natural", "stable"])
    style = rng.choice(["rounds", "raw", ""])
    made = [_node(seed, index, hostility, finishing, style) for index in range(count)]
    if rng.random() < 0.08:
        index = rng.randrange(count)
        made[index] = NodePlan(
            **{name: getattr(made[index], name) for name in NodePlan.__slots__} | {"closes_at": rng.uniform(1, CALM)}
        )
    store_lost = rng.uniform(1, CALM - 3) if rng.random() < 0.08 * hostility else math.inf
    return Plan(
        seed=seed,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        options={
            "rank_order": order,
            "keep_alive_interval": interval,
            "keep_alive_max_attempt": str(attempts),
            "last_call_timeout": last_call,
            "join_timeout": join,
            "close_timeout": 20.0,
            "heartbeat_timeout": rng.choice([1.0, 5.0]),
            "exit_barrier": rng.choice([5.0, 300.0]),
            "notify_lost_nodes": notify_lost,
        },
        nodes=tuple(made),
        all_finish=finishing and rng.random() < 0.6,
        join=join,
        expiry=interval * attempts,
        last_call=last_call,
        notify_lost=notify_lost,
        store_lost=store_lost,
        store_back=store_lost + rng.uniform(0.0, 2.0),
        ambushes=rng.choice([0.0, 0.0, 0.4]) * hostility,
        twins=count > 1 and rng.random() < 0.1,
    )
