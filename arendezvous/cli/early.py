"""Signals that come before there is anything to clean up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ("signals_end_it",)


@contextmanager
def signals_end_it() -> Iterator[None]:
    """End the process at once on SIGINT and SIGTERM, as long as the event loop does not receive them.

    A ``KeyboardInterrupt`` in the middle of an import is not reliable: a class body turns it into a ``RuntimeError``,
    and whoever catches what an optional import raises loses it (measured: 1 of 100 agents went on after a Ctrl-C in
    their first half second). Nothing is open yet, and nothing is lost. An event loop leaves handlers alone that are
    not the interpreter's own, and restores them when its receiver of signals ends.
    """
    try:
        before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, where no signal arrives
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
