"""The clock of a machine."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import TYPE_CHECKING

from arendezvous.store.hostclock import host_clock, host_time, wall_time
from tests.faults.clock_skew import skewed

if TYPE_CHECKING:
    import pytest


def test_it_is_one_for_all_processes() -> None:
    code = "from arendezvous.store.hostclock import *; print(host_time(), host_clock().hex())"
    before = host_time()
    time, clock = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert before <= float(time) <= host_time()
    assert clock == host_clock().hex()


def test_without_a_boot_to_name_it_by_each_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **more: object) -> None:
        raise FileNotFoundError

    known = host_clock()
    try:
        host_clock.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", missing)
            own = host_clock()
        assert len(own) == 16
        assert own != known
        assert host_clock() == own
    finally:
        host_clock.cache_clear()
    assert host_clock() == known


def test_the_wall_clock_is_the_one_that_is_set() -> None:
    code = "from arendezvous.store.hostclock import *; print(host_time(), wall_time())"
    before = host_time(), wall_time()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=skewed(3600)).stdout
    shared, wall = map(float, out.split())
    assert before[0] <= shared <= host_time()
    assert before[1] + 3600 <= wall <= wall_time() + 3600
