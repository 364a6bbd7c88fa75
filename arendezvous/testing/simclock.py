"""Time as one simulated node has it: a clock of its own origin and rate, pauses, and a network that is away at times.

Everything is laid down before the simulation starts, so that a timer knows beyond which pause it will fire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from random import Random

__all__ = ("NodeClock", "Outage", "Pause", "SeededEnvironment", "SpinError", "passes")

#: Added to every deadline: a sleeper that wakes a rounding error early would ask again at the same instant, for ever.
_PAD = 1e-7
#: So many looks at the clock at one instant mean that somebody spins without waiting.
_SPINS = 50_000


class SpinError(AssertionError):
    """A task asks for the time again and again, and time cannot pass because it never waits."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A stretch of the loop's time in which a node does nothing.

    Attributes:
        start: First instant.
        end: When it goes on.
        frozen: Its clock stands still as well (a suspended virtual machine), or goes on (SIGSTOP).
    """

    start: float
    end: float
    frozen: bool


@dataclass(frozen=True, slots=True)
class Outage:
    """A stretch in which nothing passes between a node and the store.

    Attributes:
        start: First instant.
        end: When it heals.
        reset: The store notices at once: the connection is reset, leases begin their grace.
    """

    start: float
    end: float
    reset: bool


def passes(stretches: Sequence[Pause | Outage], at: float) -> float:
    """The first instant from ``at`` on that lies in none of the stretches, which are in order."""
    for stretch in stretches:
        if stretch.start <= at < stretch.end:
            at = stretch.end
    return at


class NodeClock:
    """A monotonic clock with an origin and a rate of its own, which pauses may stop.

    Args:
        origin: What it shows at the loop's instant 0.
        rate: Its seconds per second of the loop.
        pauses: In order, not overlapping.
    """

    def __init__(self, origin: float = 0.0, rate: float = 1.0, pauses: Sequence[Pause] = ()) -> None:
        self.origin, self.rate, self.pauses = origin, rate, tuple(pauses)

    def show(self, instant: float) -> float:
        """What the clock shows at an instant of the loop."""
        stood = sum(max(0.0, min(instant, p.end) - p.start) for p in self.pauses if p.frozen)
        return self.origin + self.rate * (instant - stood)

    def instant(self, shown: float) -> float:
        """The loop's instant at which the clock shows ``shown`` and the node runs."""
        if math.isinf(shown):
            return shown
        at = (shown - self.origin) / self.rate + _PAD
        for pause in self.pauses:
            if pause.frozen and at >= pause.start:
                at += pause.end - pause.start
            elif pause.start <= at < pause.end:
                at = pause.end
        return at


class SeededEnvironment:
    """The environment of a handler whose clock and randomness a simulation decides.

    Args:
        clock: The node's clock.
        rng: The node's randomness; one process of a node each.
    """

    def __init__(self, clock: NodeClock, rng: Random) -> None:
        self.clock, self._rng = clock, rng
        self._last = (-1.0, 0)

    def now(self) -> float:
        """The node's clock.

        Raises:
            SpinError: it was asked without end at one instant.
        """
        instant = anyio.current_time()
        last, spins = self._last
        self._last = (instant, spins + 1 if instant == last else 0)
        if self._last[1] > _SPINS:
            self._last = (instant, 0)  # what ends because of this asks for the time as well
            raise SpinError(f"a node asked for the time {_SPINS} times at {instant:.6f} s without waiting")
        return self.clock.show(instant)

    def deadline(self, at: float) -> float:
        """The loop's instant at which the node's clock shows ``at``."""
        return self.clock.instant(at)

    def random(self) -> float:
        """Uniform in [0, 1), from the seed."""
        return self._rng.random()

    def token(self) -> bytes:
        """Sixteen bytes from the seed."""
        return self._rng.randbytes(16)
