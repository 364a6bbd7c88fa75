"""The supervisor alone, driven through its pipes as an agent drives it."""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.agent.processes import ROOT, eventually, is_running
from tests.support import SLOW

FILE = ROOT / "arendezvous" / "supervisor.py"


class Pilot:
    """An agent's side of the pipes."""

    def __init__(self, grace: float = 10.0) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        self.output, write_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-u", str(FILE), str(null), str(write_end), str(write_end), str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(null, write_end),
            start_new_session=True,
            bufsize=0,
        )
        os.close(null)
        os.close(write_end)
        self.reports: list[str] = []
        self._rest = b""

    def send(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(word.encode() + b"\0" for word in words))

    def go(self, *commands: Sequence[str], env: dict[str, str] | None = None, out: str = "=", err: str = "|") -> None:
        self.send(*order(*commands, env=env, out=out, err=err))

    def rest(self) -> bytes:
        """All that is written from now until nobody can write any more."""
        found = b""
        while data := os.read(self.output, 65536):
            found += data
        return found

    def expect(self, start: str, seconds: float = 10.0) -> str:
        """The first report that starts so."""
        until = time.monotonic() + seconds * SLOW
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while True:
            for line in self.reports:
                if line.startswith(start):
                    return line
            readable, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            data = os.read(fd, 65536) if readable else b""
            if not data:
                pytest.fail(f"no {start!r} in {self.reports}")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.reports += [line.decode() for line in lines]

    def worker(self, local_rank: int = 0) -> int:
        return int(self.expect(f"started {local_rank} ").split()[2])

    def written(self, seconds: float = 10.0) -> bytes:
        """One line that a worker wrote on its standard output."""
        until = time.monotonic() + seconds * SLOW
        found = b""
        while not found.endswith(b"\n"):
            readable, _, _ = select.select([self.output], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self.output, 1) if readable else b""
            if not data:
                pytest.fail(f"a worker wrote only {found!r}")
            found += data
        return found.strip()

    def ends(self, seconds: float = 10.0) -> int:
        return self.process.wait(seconds * SLOW)

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self.output)


def order(*commands: Sequence[str], env: dict[str, str] | None = None, out: str = "=", err: str = "|") -> list[str]:
    settings = [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
    words = ["go", str(len(commands))]
    for local_rank, argv in enumerate(commands):
        words += [str(local_rank), out, err, f"[{local_rank}]", str(len(argv)), str(len(settings)), *argv, *settings]
    return words


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.fixture
def pilot() -> Iterator[Pilot]:
    made = Pilot()
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[Pilot]:
    made = Pilot(grace=0.3)
    yield made
    made.close()


STUBBORN = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "pid = os.fork()\n"
    "if pid: print(pid, flush=True)\n"
    "time.sleep(600)\n"
)


def test_each_worker_is_started_and_its_status_reported(pilot: Pilot) -> None:
    pilot.go(python("raise SystemExit(0)"), python("raise SystemExit(7)"))
    assert pilot.expect("exit 0 ") == "exit 0 0"
    assert pilot.expect("exit 1 ") == "exit 1 7"
    assert pilot.expect("done") == "done"
    assert pilot.ends() == -signal.SIGKILL


def test_the_signal_that_killed_a_worker_is_a_negative_status(pilot: Pilot) -> None:
    pilot.go(python("import os; os.kill(os.getpid(), 11)"))
    assert pilot.expect("exit 0 ") == "exit 0 -11"


def test_a_program_that_does_not_exist_is_an_error_and_the_others_run(pilot: Pilot) -> None:
    pilot.go(["/no/such/program"], python("pass"))
    assert "No such file" in pilot.expect("error 0 ")
    assert pilot.expect("exit 1 ") == "exit 1 0"
    pilot.expect("done")


def test_arguments_and_environment_reach_the_worker_as_they_are(pilot: Pilot) -> None:
    script = "import os, sys; print(ascii([sys.argv[1:], dict(os.environ)['A'], sorted(os.environ)[:2]]), flush=True)"
    pilot.go([*python(script), "", "two\nlines", "grüße"], env={"A": "x=y\nz", "B": ""})
    assert ast.literal_eval(pilot.written().decode()) == [["", "two\nlines", "grüße"], "x=y\nz", ["A", "B"]]


def test_orders_may_arrive_byte_by_byte(pilot: Pilot) -> None:
    pilot.expect("ready")
    assert pilot.process.stdin is not None
    for byte in b"".join(word.encode() + b"\0" for word in order(python("raise SystemExit(3)"), env={"A": "1"})):
        pilot.process.stdin.write(bytes([byte]))
    assert pilot.expect("exit 0 ") == "exit 0 3"


def test_end_of_file_without_any_order_ends_it(pilot: Pilot) -> None:
    pilot.expect("ready")
    pilot.hang_up()
    assert pilot.ends() == -signal.SIGKILL


def test_end_of_file_terminates_the_workers(pilot: Pilot) -> None:
    pilot.go(python("import time; time.sleep(600)"))
    worker = pilot.worker()
    pilot.hang_up()
    pilot.ends()
    assert not is_running(worker)


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_with_its_children(hasty: Pilot) -> None:
    hasty.go(python(STUBBORN))
    worker, grandchild = hasty.worker(), int(hasty.written())
    hasty.hang_up()
    hasty.ends()
    eventually("worker and grandchild are gone", lambda: not is_running(worker) and not is_running(grandchild))


def test_a_child_of_a_shell_wrapper_has_the_grace_too(pilot: Pilot, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    script = (
        "import signal, sys, time, pathlib\n"
        "def save(*_):\n"
        f"    time.sleep(0.3); pathlib.Path({str(saved)!r}).write_text('yes'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True); time.sleep(600)\n"
    )
    # The shell dies of SIGTERM at once; its child is still saving.
    pilot.go(["sh", "-c", '"$0" -c "$1"; true', sys.executable, script])
    assert pilot.written() == b"up"
    pilot.hang_up()
    pilot.ends()
    assert saved.read_text() == "yes"


def test_what_a_worker_leaves_behind_is_ended_when_the_last_worker_has_gone(pilot: Pilot) -> None:
    pilot.go(python("import os, time\nif pid := os.fork(): print(pid, flush=True); os._exit(0)\ntime.sleep(600)"))
    left = int(pilot.written())
    assert pilot.expect("exit 0 ") == "exit 0 0"
    pilot.expect("done")
    eventually("the leftover is gone", lambda: not is_running(left))


def test_stop_sends_the_signal_that_was_asked_for(pilot: Pilot) -> None:
    script = "import time\ntry: print('up', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: raise SystemExit(5)"
    pilot.go(python(script))
    assert pilot.written() == b"up"
    pilot.send("stop", str(int(signal.SIGINT)), "10")
    assert pilot.expect("exit 0 ") == "exit 0 5"


def test_a_second_stop_can_only_shorten_the_grace(pilot: Pilot) -> None:
    pilot.go(python(STUBBORN))
    pilot.written()
    worker = pilot.worker()
    pilot.send("stop", "15", "600")
    pilot.send("stop", "15", "0")
    pilot.ends()
    eventually("the worker is gone", lambda: not is_running(worker))


def test_a_stopped_worker_is_ended_as_well(pilot: Pilot) -> None:
    pilot.go(python("print('up', flush=True); import time; time.sleep(600)"))
    assert pilot.written() == b"up"
    os.kill(pilot.worker(), signal.SIGSTOP)
    pilot.send("stop", "15", "600")
    assert pilot.expect("exit 0 ") == "exit 0 -15"


def test_the_supervisor_survives_the_signals_of_its_own_group(pilot: Pilot) -> None:
    pilot.go(python(STUBBORN))
    pilot.written()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pilot.process.pid, number)
    os.kill(pilot.worker(), signal.SIGKILL)
    assert pilot.expect("exit 0 ") == "exit 0 -9"


def test_workers_share_a_session_and_a_group_of_the_supervisor_alone(pilot: Pilot) -> None:
    pilot.go(python("import os; print(os.getsid(0), os.getpgrp(), flush=True)"))
    assert pilot.written().split() == [str(pilot.process.pid).encode()] * 2


def test_workers_get_none_of_the_pipes_to_the_agent(pilot: Pilot) -> None:
    # One more than the standard three: the directory that is being listed.
    pilot.go(python("import os; print(len(os.listdir('/proc/self/fd')), flush=True)"))
    assert pilot.written() == b"4"


def test_signals_that_python_ignores_are_not_ignored_in_workers(pilot: Pilot) -> None:
    pilot.go(["sh", "-c", "grep SigIgn /proc/self/status"])
    ignored = int(pilot.written().split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_the_last_words_of_a_worker_that_failed_are_reported_and_passed_on(pilot: Pilot) -> None:
    pilot.go(python("import sys; sys.stderr.write('x' * 9000 + '\\nlast'); sys.exit(1)"), python("pass"))
    assert pilot.expect("exit 0 ") == "exit 0 1"
    (tail,) = [line for line in pilot.reports if line.startswith("tail ")]
    assert bytes.fromhex(tail.split()[2]) == b"x" * 3067 + b"\nlast"
    assert pilot.ends() == -signal.SIGKILL
    assert pilot.rest() == b"x" * 9000 + b"\nlast"


def test_a_stream_goes_to_a_file_alone_or_to_a_file_and_with_a_prefix_here(pilot: Pilot, tmp_path: Path) -> None:
    script = "import sys; print('one\\ntwo', end='', flush=True); print('three', file=sys.stderr); sys.exit(1)"
    pilot.go(python(script), out=f"+{tmp_path}/out", err=f">{tmp_path}/err")
    assert pilot.expect("tail ") == f"tail 0 {b'three'.hex()}0a"
    assert pilot.ends() == -signal.SIGKILL
    assert pilot.rest() == b"[0]one\n[0]two\n"
    assert (tmp_path / "out").read_bytes() == b"one\ntwo"
    assert (tmp_path / "err").read_bytes() == b"three\n"


def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(pilot: Pilot, tmp_path: Path) -> None:
    pilot.go(python("pass"), out=f">{tmp_path}/no/file")
    assert f"{tmp_path}/no/file: No such file" in pilot.expect("error 0 ")


def test_a_process_that_left_the_group_with_the_pipe_holds_nothing_up(pilot: Pilot) -> None:
    script = (
        "import os, sys, time\n"
        "if os.fork():\n"
        "    print('went', flush=True); sys.exit(1)\n"
        "os.setsid(); print(os.getpid(), flush=True); time.sleep(600)\n"
    )
    pilot.go(python(script), out="|", err="|")
    words = [pilot.written(), pilot.written()]
    (pid,) = [int(word) for word in words if word.isdigit()]
    try:
        assert pilot.expect("exit 0 ") == "exit 0 1"
        assert pilot.ends() == -signal.SIGKILL
    finally:
        os.kill(pid, signal.SIGKILL)


def test_it_needs_nothing_but_a_small_part_of_the_standard_library() -> None:
    tree = ast.parse(FILE.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"os", "select", "signal", "sys", "time"}
