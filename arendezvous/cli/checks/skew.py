"""How far the store's wall clock is from ours. Only ever shown: nothing decides by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .finding import Finding, note, ok, seconds, warn

__all__ = ("Sample", "estimate", "judge")

#: Seconds from which logs of two hosts are hard to put together.
_NOTABLE = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer.

    Attributes:
        trip: Seconds between question and answer.
        ahead: Seconds that the store's clock is ahead, if it was read half way.
    """

    trip: float
    ahead: float


def estimate(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Seconds that the store's clock is ahead and how far off that may be; None if nothing usable was answered.

    The quickest answer is the best one: the clock was read at some moment between question and answer.
    """
    usable = [sample for sample in samples if math.isfinite(sample.ahead)]
    if not usable:
        return None
    best = min(usable, key=lambda sample: sample.trip)
    return best.ahead, best.trip / 2


def judge(samples: Sequence[Sample]) -> Finding:
    """What is to be said of the answers."""
    found = estimate(samples)
    if found is None:
        return note(
            "clock",
            "the store does not tell its wall clock",
            "nothing: it is asked for out of curiosity, no run needs it",
        )
    ahead, error = found
    place = "ahead of" if ahead > 0 else "behind"
    size = f"{abs(ahead):.3f}" if abs(ahead) < 10 else f"{abs(ahead):.0f}"
    seen = f"the store's wall clock is {size} s {place} this one (± {seconds(error)})"
    if abs(ahead) - error <= _NOTABLE:
        return ok("clock", seen)
    return warn(
        "clock",
        seen,
        "leases count on the store's clock alone and heartbeats on monotonic ones, so this harms no rendezvous, but "
        "logs of the hosts will not line up, and certificates and build tools mind: run NTP or chrony",
    )
