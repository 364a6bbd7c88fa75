from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest

from arendezvous.agent.environment import WorkerSpec
from arendezvous.agent.workers import WorkerExit, WorkerGroup, WorkerGroupError, signal_name
from tests.support import fail_after

from .processes import eventually, is_running


def spec(script: str, local_rank: int = 0, **env: str) -> WorkerSpec:
    return WorkerSpec(local_rank, 10 + local_rank, (sys.executable, "-c", script), {**os.environ, **env})


async def test_wait_returns_when_all_workers_have_succeeded() -> None:
    with fail_after(20):
        async with WorkerGroup(5) as group:
            await group.start([spec("pass", 0), spec("pass", 1)])
            exits = await group.wait()
    assert [(end.spec.local_rank, end.status) for end in exits] == [(0, 0), (1, 0)]


async def test_wait_returns_at_the_first_failure_and_leaving_stops_the_rest() -> None:
    with fail_after(20):
        async with WorkerGroup(5) as group:
            await group.start([spec("import time; time.sleep(600)", 0), spec("raise SystemExit(9)", 1)])
            (end,) = await group.wait()
        assert not is_running(group.pid)
    assert str(end) == f"worker 1 (rank 11, pid {end.pid}) exited with status 9"


async def test_a_cancelled_wait_stops_the_workers_and_is_over_within_the_grace(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(os.getpid())); os.rename({str(tmp_path / 'new')!r}, "
        f"{str(pid)!r}); time.sleep(600)"
    )
    with fail_after(20):
        async with anyio.create_task_group() as tg:

            async def work() -> None:
                async with WorkerGroup(0.2) as group:
                    await group.start([spec(script)])
                    await group.wait()

            tg.start_soon(work)
            while not pid.exists():
                await anyio.sleep(0.01)
            tg.cancel_scope.cancel()
    assert not is_running(int(pid.read_text()))


async def test_kill_ends_a_stubborn_group_at_once() -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with fail_after(20):
        async with WorkerGroup(600) as group:
            await group.start([spec(script)])
            group.kill()
        group.kill()


async def test_a_supervisor_that_is_killed_takes_its_workers_along() -> None:
    with fail_after(20):
        async with WorkerGroup(5) as group:
            await group.start([spec("import time; time.sleep(600)")])
            while not (pids := group._known.pids):
                await group._hear()
            os.kill(group.pid, signal.SIGKILL)
            with pytest.raises(WorkerGroupError, match=rf"supervisor \(pid {group.pid}\) died; its 1 workers"):
                await group.wait()
    eventually("the worker is gone", lambda: not is_running(pids[0]))


async def test_a_command_that_cannot_be_started_is_a_failure_with_its_reason() -> None:
    with fail_after(20):
        async with WorkerGroup(5) as group:
            await group.start([WorkerSpec(0, 0, ("/no/such/program",), {})])
            (end,) = await group.wait()
    assert str(end) == "worker 0 could not be started: /no/such/program: No such file or directory"
    assert not end.is_success


async def test_an_environment_larger_than_a_pipe_reaches_many_workers() -> None:
    big = {f"BIG{k}": "x" * 30_000 for k in range(5)}
    script = "import os, sys; sys.exit(sum(len(v) for k, v in os.environ.items() if k.startswith('BIG')) != 150_000)"
    with fail_after(30):
        async with WorkerGroup(5) as group:
            await group.start([spec(script, k, **big) for k in range(6)])
            assert [end.status for end in await group.wait()] == [0] * 6


def test_an_exit_says_how_it_came_about() -> None:
    some = spec("pass", 2)
    assert str(WorkerExit(some, -11, 77)) == "worker 2 (rank 12, pid 77) was killed by SIGSEGV"
    assert signal_name(200) == "signal 200"
