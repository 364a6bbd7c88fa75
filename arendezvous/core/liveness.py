"""The failure detector: counters judged on the observer's own monotonic clock, and who watches whom (protocol.md P7).

A node is dead when its value has not changed for the expiry since this observer first looked, or when a lease that was
there is gone: the store has then already waited its disconnect grace.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from .fold import Evidence
from .state import RendezvousState

__all__ = ("Judgement", "Sighting", "absent", "judge", "seen", "targets")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one observer saw of one incarnation's heartbeat; instants of the observer's monotonic clock.

    Attributes:
        since: When it first looked.
        progressed: When it last saw the value change; ``since`` until then.
        value: The value last seen; None when there was none yet.
        moved: The value was seen to change after the first look.
        absent: Since when the key is missing or its owner's connection is gone; None while it is there.
        present_once: The key was there at some look.
        dropped: The store says that the owner's connection is gone, though the lease still runs.
    """

    since: float
    progressed: float
    value: bytes | None = None
    moved: bool = False
    absent: float | None = None
    present_once: bool = False
    dropped: bool = False


def seen(before: Sighting | None, value: bytes, now: float, *, attached: bool = True) -> Sighting:
    """A look that found the key.

    Args:
        before: The sighting so far, None at the first look.
        value: What the key holds.
        now: This look's instant.
        attached: False when the store reports that the owner's connection dropped.
    """
    if before is None:
        before = Sighting(since=now, progressed=now, value=value, present_once=True)
    changed = value != before.value
    gone_since = None if attached or changed else (now if before.absent is None else before.absent)
    return replace(
        before,
        value=value,
        progressed=now if changed else before.progressed,
        moved=before.moved or (changed and before.present_once),
        absent=gone_since,
        present_once=True,
        dropped=gone_since is not None,
    )


def absent(before: Sighting | None, now: float) -> Sighting:
    """A look that did not find the key."""
    if before is None:
        return Sighting(since=now, progressed=now, absent=now)
    if before.absent is not None and not before.dropped:
        return before
    return replace(before, absent=now if before.absent is None else before.absent, dropped=False)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The observer's verdicts, and when they may change without news (``inf`` = only news can)."""

    evidence: Evidence
    wake_at: float


def judge(sightings: Mapping[bytes, Sighting], now: float, *, expiry: float, grace: float) -> Judgement:
    """Turn sightings into evidence.

    Args:
        sightings: Per incarnation.
        now: The observer's clock.
        expiry: Seconds without progress that mean death.
        grace: Seconds that a key which was never seen, or a dropped connection, is given.

    Returns:
        Judgement: suspects, proven and shaky incarnations, and the next instant at which one may become a suspect.
    """
    suspects, proven, shaky = set(), set(), set()
    wake_at = math.inf
    for inc, s in sightings.items():
        dead_at = s.progressed + expiry
        if s.absent is not None:
            # Gone after it had been there: the store's grace is over. Otherwise the observer grants the grace itself.
            dead_at = min(dead_at, s.absent if s.present_once and not s.dropped else s.absent + grace)
        if now >= dead_at:
            suspects.add(inc)
            continue
        wake_at = min(wake_at, dead_at)
        if s.absent is not None:
            shaky.add(inc)
        elif s.moved:
            proven.add(inc)
    return Judgement(Evidence(frozenset(suspects), frozenset(proven), frozenset(shaky)), wake_at)


def targets(state: RendezvousState, me: bytes, silent: Collection[bytes] = ()) -> tuple[bytes, ...]:
    """Whom to watch: the next two of the ring, doubling past silent ones (protocol.md P7).

    One ring over all listed nodes, the live in rank or join order and then the queue, so that waiters bury dead
    members and members bury dead waiters. A node that is not listed watches from the ring's start on.

    Args:
        state: The agreed state.
        me: The observer.
        silent: Incarnations that are silent so far; watching goes on past them and stops at the first that beats.
    """
    ring = list(state.ring)
    if me in ring:
        at = ring.index(me)
        ring = ring[at + 1 :] + ring[:at]
    width = 2
    while width < len(ring) and all(inc in silent for inc in ring[:width]):
        width *= 2
    return tuple(ring[:width])
