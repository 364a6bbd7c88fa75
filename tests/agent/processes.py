"""Real commands as subprocesses: bounded waits for what they say, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import SLOW

__all__ = ("Command", "Stage", "eventually", "free_port", "is_running", "marked", "open_stage")

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "ARENDEZVOUS_TEST_MARK"


def eventually(what: str, condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait until a condition holds; fail with ``what`` after a bounded time."""
    until = time.monotonic() + seconds * SLOW
    while not condition():
        if time.monotonic() > until:
            pytest.fail(f"waited {seconds * SLOW:g} s for: {what}")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")


def marked(mark: str) -> dict[int, str]:
    """Running processes that carry a mark in their environment, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or not is_running(int(entry.name)):
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Command:
    """A process whose output is collected line by line."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> None:
        self.lines: list[str] = []
        self._from = 0
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def forget(self) -> None:
        """What was said until now counts no more for :meth:`expect`."""
        self._from = len(self.lines)

    def expect(self, pattern: str, seconds: float = 20.0) -> re.Match[str]:
        """Wait until a line has the pattern."""
        until = time.monotonic() + seconds * SLOW
        with self._news:
            while True:
                for line in self.lines[self._from :]:
                    if match := re.search(pattern, line):
                        return match
                left = until - time.monotonic()
                if left <= 0:
                    pytest.fail(f"no {pattern!r} within {seconds * SLOW:g} s in:\n{self.output}")
                self._news.wait(left)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        """The exit status; also waits for the rest of the output."""
        try:
            status = self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            pytest.fail(f"pid {self.pid} did not end within {seconds * SLOW:g} s:\n{self.output}")
        self._reader.join(2)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(2)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()


class Stage:
    """What one test starts; leaving it kills all of that, by the mark in the environment."""

    def __init__(self, loop: str, where: Path) -> None:
        self.loop, self.where = loop, where
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self._commands: list[Command] = []

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "ARENDEZVOUS_EVENT", "TORCHELASTIC_"))
        }
        return {**kept, MARK: self.mark, "PYTHONPATH": str(ROOT), "ARENDEZVOUS_EVENT_LOOP": self.loop}

    def command(self, *argv: str, **env: str) -> Command:
        command = Command(argv, {**self.env, **env}, self.where)
        self._commands.append(command)
        return command

    def cli(self, *args: str, **env: str) -> Command:
        return self.command(sys.executable, "-m", "arendezvous", *args, **env)

    def agent(
        self, script: str, *options: str, nnodes: str = "1:2", conf: str = "", run_id: str = "job", **env: str
    ) -> Command:
        """``arendezvous run`` of a Python text as the worker."""
        conf = ",".join(filter(None, ["last_call_timeout=0.3", conf]))
        return self.cli(
            *("run", "--nnodes", nnodes, "--rdzv-endpoint", self.endpoint, "--rdzv-id", run_id),
            *("--rdzv-conf", conf, *options, "--", sys.executable, "-c", script),
            **env,
        )

    def others_than_the_store(self) -> dict[int, str]:
        return {pid: line for pid, line in marked(self.mark).items() if "arendezvous serve" not in line}

    def expect_no_orphans(self) -> None:
        """Every agent, supervisor, worker and grandchild of this test is gone."""
        eventually(f"no orphan among {self.others_than_the_store()}", lambda: not self.others_than_the_store())

    def close(self) -> None:
        for _ in range(50):
            left = marked(self.mark)
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        for command in self._commands:
            command.close()


@contextlib.contextmanager
def open_stage(loop: str, where: Path) -> Iterator[Stage]:
    stage = Stage(loop, where)
    try:
        yield stage
    finally:
        stage.close()
