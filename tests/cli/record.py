"""Records what the commands show at real terminals: ``python -m tests.cli.record > tests/cli/recording.md``."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pexpect
import pyte

__all__ = ("Terminal", "main")

COLUMNS, ROWS = 110, 40
WORKER = """
import os, time
print('worker', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)
time.sleep(600)
"""


class Terminal:
    """A command at a terminal of its own.

    Args:
        name: What the recording calls it.
        args: The arguments of ``arendezvous``.
    """

    def __init__(self, name: str, *args: str) -> None:
        self.name = name
        shown = ("job.py" if arg == WORKER else arg for arg in args if arg not in ("--no-python", sys.executable, "-c"))
        self.line = f"$ arendezvous {shlex.join(shown)}"
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
        self._stream = pyte.Stream(self.screen)
        self._child: Any = pexpect.spawn(
            sys.executable,
            ["-m", "arendezvous", *args],
            env={**os.environ, "TERM": "xterm"},
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
            timeout=30,
        )

    @property
    def pid(self) -> int:
        """The process."""
        pid: int = self._child.pid
        return pid

    @property
    def text(self) -> str:
        """What it shows, and what has scrolled away."""
        rows = [self._row(row) for row in self.screen.history.top] + [row.rstrip() for row in self.screen.display]
        return "\n".join(rows).rstrip()

    def _row(self, row: Any) -> str:
        return "".join(row[column].data for column in range(COLUMNS)).rstrip()

    def until(self, condition: Callable[[str], bool], seconds: float = 30) -> None:
        """Read on until the text fulfils a condition."""
        give_up = time.monotonic() + seconds
        while not condition(self.text):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self.name} shows only:\n{self.text}")
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=0.2))
            except pexpect.TIMEOUT:
                pass

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._child.sendintr()

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Read to the end; the exit status, or 128 and the signal."""
        self._child.expect(pexpect.EOF)
        self._stream.feed(self._child.before)
        self._child.close()
        status = self._child.exitstatus
        return 128 + self._child.signalstatus if status is None else status

    def show(self, what: str) -> None:
        """Write down what it shows."""
        print(f"\n{what}\n\n```\n{self.line}\n{self.text}\n```")

    def close(self) -> None:
        """End it."""
        self._child.close(force=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main() -> None:
    """Write the recording to standard output."""
    endpoint = f"127.0.0.1:{_free_port()}"
    terminals: list[Terminal] = []

    def start(name: str, *args: str) -> Terminal:
        terminals.append(Terminal(name, *args))
        return terminals[-1]

    def agent(name: str) -> Terminal:
        options = ("--nnodes", "2:3", "--rdzv-endpoint", endpoint, "--rdzv-id", "job7", "--rdzv-conf")
        command = ("--no-python", "--", sys.executable, "-c", WORKER)
        return start(name, "run", *options, "last_call_timeout=3", *command)

    print("# What the commands show\n\nWritten by `python -m tests.cli.record`: real processes, 110 columns.")
    try:
        _tell(start, agent, endpoint)
    finally:
        for terminal in terminals:
            terminal.close()


def _tell(start: Callable[..., Terminal], agent: Callable[[str], Terminal], endpoint: str) -> None:
    print("\n## Two terminals, the live line, a kill, a Ctrl-C")
    one = agent("one")
    one.until(lambda text: "1 joined" in text and "gives up in 598" in text)
    one.show("Terminal 1 waits; this line changes twice a second and goes when the round has formed:")
    watch = start("watch", "status", endpoint, "--rdzv-id", "job7", "--watch")
    watch.until(lambda text: "joining" in text)
    two = agent("two")
    two.until(lambda text: "last call 2 s" in text)
    two.show("Terminal 2 starts; the minimum is reached and the last call runs:")
    for terminal in (one, two):
        terminal.until(lambda text: "\nworker " in text)
    one.show("The round has formed. Terminal 1:")
    two.show("Terminal 2:")
    time.sleep(1.5)
    two.kill()
    two.end()
    one.until(lambda text: "missing: " in text)
    one.show("`kill -9` of the agent in terminal 2; its worker ends with it. Terminal 1 names who is missing:")
    three = agent("three")
    three.until(lambda text: "\nworker " in text)
    one.until(lambda text: text.count("\nworker ") == 2)
    three.show("A newcomer starts in terminal 3:")
    one.show("Terminal 1:")
    three.interrupt()
    status = three.end()
    three.show(f"Ctrl-C in terminal 3, which ends with status {status}:")
    one.until(lambda text: text.count("joining again") == 2)
    one.show("Terminal 1 goes on:")
    time.sleep(1.5)
    watch.until(lambda text: text.count("left") > 0)
    watch.interrupt()
    print("\n## `status --watch`")
    status = watch.end()
    watch.show(f"It has run since before terminal 2 started; Ctrl-C ends it with status {status}:")
    print("\n## `doctor`")
    good = start("doctor", "doctor", endpoint)
    status = good.end()
    good.show(f"A good endpoint; status {status}:")
    one.interrupt()
    one.end()
    bad = start("doctor", "doctor", f"127.0.0.1:{_free_port()}")
    status = bad.end()
    bad.show(f"An endpoint that nobody serves; status {status}:")
    bad = start("doctor", "doctor", "no-such-host.invalid:29400")
    status = bad.end()
    bad.show(f"A name that does not resolve; status {status}:")
    print("\n## `demo`")
    demo = start("demo", "demo")
    status = demo.end()
    demo.show(f"Status {status}:")


if __name__ == "__main__":
    main()
