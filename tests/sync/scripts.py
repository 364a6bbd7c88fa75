"""Programs that the tests of the blocking API run as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.agent.processes import ROOT
from tests.support import SLOW

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("run", "started")


def run(script: str, loop: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    with started(script, loop, *args) as process:
        out, err = process.communicate(timeout=30 * SLOW)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def started(script: str, loop: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs; killed at the end of the block if it still does."""
    import os

    process = subprocess.Popen(
        [sys.executable, "-u", "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "ARENDEZVOUS_EVENT_LOOP": loop},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
