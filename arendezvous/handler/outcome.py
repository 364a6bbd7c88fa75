"""What passes between a driver and those who ask something of it."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from ..core.state import RendezvousState

__all__ = ("WITHDRAW_LIMIT", "Counters", "Limits", "Waiter")

#: Seconds that a withdrawal may take before the node falls silent instead and is evicted (design.md section 3).
WITHDRAW_LIMIT = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """A node's own time-outs, in seconds."""

    join: float = 600.0
    heartbeat: float = 5.0
    withdraw: float = WITHDRAW_LIMIT


@dataclass(slots=True)
class Counters:
    """What this node asked of the store, for benchmarks and ``status``."""

    swaps: int = 0
    lost_swaps: int = 0
    reads: int = 0
    scans: int = 0
    announcements: int = 0
    evictions: int = 0


class Waiter:
    """Somebody waits for an outcome of the driver."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.state: RendezvousState | None = None
        self.error: Exception | None = None
        self.reason = ""

    def settle(self, state: RendezvousState | None = None, error: Exception | None = None, reason: str = "") -> None:
        """Set the outcome; the first one counts."""
        if not self.event.is_set():
            self.state, self.error, self.reason = state, error, reason
            self.event.set()
