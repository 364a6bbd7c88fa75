"""Where a handler's clock and randomness come from: one place, so that a simulation can put its own."""

from __future__ import annotations

import random
import secrets
from typing import Protocol

import anyio

__all__ = ("Environment", "SystemEnvironment")


class Environment(Protocol):
    """What a node needs from the world besides a store."""

    def now(self) -> float:
        """This node's monotonic clock, in seconds from an origin of its own."""
        ...

    def deadline(self, at: float) -> float:
        """The event loop's instant at which this node's clock shows ``at``; ``inf`` stays ``inf``."""
        ...

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def token(self) -> bytes:
        """Sixteen random bytes."""
        ...


class SystemEnvironment:
    """The real world: the event loop's clock and the operating system's randomness."""

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(64))

    def now(self) -> float:
        """The event loop's monotonic clock."""
        return anyio.current_time()

    def deadline(self, at: float) -> float:
        """The clock is the event loop's own."""
        return at

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def token(self) -> bytes:
        """Sixteen unpredictable bytes."""
        return secrets.token_bytes(16)
