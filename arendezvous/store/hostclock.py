"""A clock that all processes of one machine share and nobody sets, and the one that people read."""

from __future__ import annotations

import os
import time
from functools import cache

__all__ = ("host_clock", "host_time", "wall_time")


def host_time() -> float:
    """Seconds on the clock of :func:`host_clock`, in steps of about 10 ms."""
    return os.times().elapsed


@cache
def host_clock() -> bytes:
    """The name of the clock: the boot of this machine. Times of clocks with different names are not comparable."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        # Not Linux: this process trusts no clock but its own.
        return os.urandom(16)


def wall_time() -> float:
    """Seconds since 1970 by this machine's wall clock: to be shown to people, never to decide anything by."""
    return time.time()
