"""Virtual time: an hour of waiting passes in milliseconds, and always in the same order.

The clock of a virtual loop moves only when every task waits, and then straight to the next deadline. It fits everything
that stays inside one process: tasks, memory streams, loopback sockets. It does not fit worker threads and subprocesses,
whose work takes real time that the loop would skip: for those give a ``threshold``, or use a real loop.
"""

from __future__ import annotations

import math
import selectors
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

__all__ = ("VirtualSelector", "VirtualTimeLoop", "virtual_backend", "virtual_backends")

# The resolution that asyncio's loop adds to its clock before it looks for timers that are due.
_RESOLUTION = 1e-9


class VirtualSelector(selectors.DefaultSelector):
    """A selector that lets virtual time pass instead of waiting.

    Args:
        threshold: Real seconds to wait for IO before the clock jumps.

    Attributes:
        now: The virtual time in seconds, from 0.
    """

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.now = 0.0
        self._threshold = threshold

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, move the clock on by ``timeout`` at once.

        Without a timeout no timer is armed, so only real IO or another thread can wake the loop: that wait is real.
        """
        if timeout is None:
            return super().select(None)
        ready = super().select(0 if timeout <= 0 else min(timeout, self._threshold))
        if not ready and timeout > 0:
            self.now += timeout
            if self.now + _RESOLUTION == self.now:
                # So far from 0 the loop would find its timer "not quite due" for ever.
                self.now = math.nextafter(self.now, math.inf)
        return ready


@cache
def _loop_class() -> type[asyncio.SelectorEventLoop]:
    # Inside a function, so that importing the kit does not load an event loop that the run does not use.
    import asyncio

    class VirtualTimeLoop(asyncio.SelectorEventLoop):
        """An asyncio event loop in virtual time; use it as a ``loop_factory``.

        Args:
            threshold: Real seconds to wait for IO before the clock jumps.
        """

        def __init__(self, threshold: float = 0.0) -> None:
            self._virtual = VirtualSelector(threshold)
            super().__init__(self._virtual)

        def time(self) -> float:
            return self._virtual.now

    VirtualTimeLoop.__qualname__ = "VirtualTimeLoop"
    return VirtualTimeLoop


if TYPE_CHECKING:
    VirtualTimeLoop = asyncio.SelectorEventLoop
else:

    def __getattr__(name: str) -> object:
        if name == "VirtualTimeLoop":
            return _loop_class()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def virtual_backend(name: str, threshold: float = 0.0) -> tuple[str, dict[str, Any]]:
    """Return ``(backend, options)`` for :func:`anyio.run` with a clock that starts at its origin.

    Args:
        name: ``asyncio`` or ``trio``.
        threshold: Real seconds of idleness before the clock jumps; more than 0 gives threads time to answer.

    Returns:
        Fresh options on each call: a trio clock that was used once goes on counting from where it stopped.

    Raises:
        ValueError: another backend, such as uvloop, whose clock cannot be replaced.
    """
    if name == "asyncio":
        loop_class: Any = _loop_class()
        return "asyncio", {"loop_factory": lambda: loop_class(threshold)}
    if name == "trio":
        from trio.testing import MockClock

        return "trio", {"clock": MockClock(autojump_threshold=threshold)}
    raise ValueError(f"virtual time exists on asyncio and trio, not on {name!r}")


def virtual_backends(threshold: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
    """Return :func:`virtual_backend` of every event loop that has virtual time."""
    return [virtual_backend(name, threshold) for name in ("asyncio", "trio")]
