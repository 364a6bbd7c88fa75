"""The tiny process between an agent and its workers: whatever happens to the agent, no worker outlives it.

Run by path, ``python -I -S -u supervisor.py STDIN STDOUT GRACE``, with the standard library alone, so that it is up in
about 15 ms. It leads a session and a process group of its own, and the workers and all that they start belong to that
group. Standard input is a pipe from the agent, standard output a pipe to it; ``STDIN`` and ``STDOUT`` are the
descriptors that become the workers' own.

The agent writes tokens, each ended by a NUL byte (which neither arguments nor environments can hold)::

    go N  then N times:  LOCAL_RANK ARGC ENVC  and as many arguments and KEY=VALUE texts
    stop SIGNAL GRACE

The supervisor writes lines::

    ready                        it can take orders
    started LOCAL_RANK PID       the worker runs
    error LOCAL_RANK TEXT        it could not be started
    exit LOCAL_RANK STATUS       it ended; a negative status is the signal that killed it
    done                         the group is empty, or about to be killed

End of file from the agent, which is what a SIGKILL of the agent looks like, means SIGTERM to the group, a grace and
SIGKILL. So does the end of the last worker: what it left behind in the group has a grace and is then killed. (A death
signal by ``prctl`` would be shorter and wrong: it follows the *thread* that forked.) The last act is a SIGKILL to the
whole group, this process included.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

__all__ = ("Supervisor", "main")

_CONTROL, _REPORT = 0, 1
#: How often the group is looked at once its workers are gone; the look costs about a millisecond.
_LOOK = 0.03
#: Python ignores these, and an ignored signal stays ignored in the programs that it starts.
_RESTORE = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))


class Supervisor:
    """Starts the workers of one round and sees to their end.

    Args:
        stdin: Descriptor that becomes the workers' standard input.
        stdout: Descriptor that becomes the workers' standard output.
        grace: Seconds between SIGTERM and SIGKILL when nobody says otherwise.
    """

    def __init__(self, stdin: int, stdout: int, grace: float) -> None:
        self._stdin, self._stdout, self._grace = stdin, stdout, grace
        self._tokens: list[bytes] = []
        self._rest = b""
        self._missing = -1  # workers of the order that are still to be started; -1 before the order
        self._running: dict[int, str] = {}
        self._kill_at: float | None = None

    def run(self) -> None:
        """Serve the agent until the group is empty or its grace is over; does not return while workers run."""
        wake, wakened = os.pipe()
        os.set_blocking(wakened, False)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        # The signals that go to the group come back here: they wake the loop and do nothing else. One that is ignored
        # already (nohup) stays so, for the workers too.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _wake_up)
        self._report("ready")
        listening = True
        while True:
            ready, _, _ = select.select([wake, _CONTROL] if listening else [wake], [], [], self._patience())
            if wake in ready:
                os.read(wake, 65536)
            if _CONTROL in ready:
                data = os.read(_CONTROL, 65536)
                listening = bool(data)
                if listening:
                    self._take(data)
                else:
                    self._stop(signal.SIGTERM, self._grace)
            self._reap()
            if self._is_over():
                return

    def _patience(self) -> float | None:
        if self._kill_at is None:
            return None
        left = max(0.0, self._kill_at - time.monotonic())
        # Nobody reports the end of a grandchild: look for it.
        return left if self._running else min(left, _LOOK)

    def _take(self, data: bytes) -> None:
        *tokens, self._rest = (self._rest + data).split(b"\0")
        self._tokens += tokens
        while self._step():
            pass

    def _step(self) -> bool:
        """Obey one complete order or part of one; False when more tokens are needed."""
        words = self._tokens
        if not words:
            return False
        if self._missing > 0:
            if len(words) < 3 or len(words) < 3 + (size := int(words[1]) + int(words[2])):
                return False
            argc = 3 + int(words[1])
            spec, self._tokens = words[: 3 + size], words[3 + size :]
            self._missing -= 1
            self._start(spec[0].decode(), spec[3:argc], spec[argc:])
            return True
        need = {b"go": 2, b"stop": 3}[words[0]]
        if len(words) < need:
            return False
        self._tokens = words[need:]
        if words[0] == b"go":
            self._missing = int(words[1])
        else:
            self._stop(int(words[1]), float(words[2]))
        return True

    def _start(self, local_rank: str, argv: list[bytes], environ: list[bytes]) -> None:
        if self._kill_at is not None:
            return  # told to stop in the middle of starting
        actions = [(os.POSIX_SPAWN_DUP2, self._stdin, 0), (os.POSIX_SPAWN_DUP2, self._stdout, 1)]
        env = dict(text.split(b"=", 1) for text in environ)
        try:
            pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsigdef=_RESTORE)
        except OSError as exc:
            self._report(f"error {local_rank} {exc.strerror or exc}")
            return
        self._running[pid] = local_rank
        self._report(f"started {local_rank} {pid}")

    def _stop(self, number: int, grace: float) -> None:
        at = time.monotonic() + grace
        if self._kill_at is None or at < self._kill_at:
            self._kill_at = at
        if grace > 0:
            self._signal(number)
            self._signal(signal.SIGCONT)  # a stopped process cannot even die

    def _signal(self, number: int) -> None:
        try:
            os.killpg(os.getpgrp(), number)
        except OSError:
            pass  # part of the group belongs to another user; the rest has it

    def _reap(self) -> None:
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            local_rank = self._running.pop(pid, None)
            if local_rank is not None:
                self._report(f"exit {local_rank} {os.waitstatus_to_exitcode(status)}")

    def _is_over(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        if self._running:
            return False
        if self._kill_at is None:
            if self._missing != 0:
                return False  # not told yet what to start
            if _others_in_group():
                self._stop(signal.SIGTERM, self._grace)
                return False
            return True
        return not _others_in_group()

    def _report(self, line: str) -> None:
        try:
            os.write(_REPORT, line.replace("\n", " ").encode() + b"\n")
        except OSError:
            pass  # the agent is gone; end of file on the other pipe says so too


def _wake_up(_number: int, _frame: object) -> None:
    """Being delivered is all that a signal has to do here."""


def _others_in_group() -> bool:
    """Whether this process group has a living member besides this process; False where there is no ``/proc``."""
    mine, group = os.getpid(), str(os.getpgrp()).encode()
    try:
        names = os.listdir("/proc")
    except OSError:
        return False
    for name in names:
        if not name.isdecimal() or int(name) == mine:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The program's name in parentheses may hold anything; state, parent and group follow it.
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if its_group == group and state not in (b"Z", b"X"):
            return True
    return False


def main(argv: list[str]) -> None:
    """Supervise until there is nothing left to supervise, then kill what is left of the group."""
    stdin, stdout, grace = int(argv[1]), int(argv[2]), float(argv[3])
    if os.getpgrp() != os.getpid():
        os.setsid()
    for fd in (_CONTROL, _REPORT, stdin, stdout):
        os.set_inheritable(fd, False)  # the workers get copies of the last two and nothing of the first
    supervisor = Supervisor(stdin, stdout, grace)
    try:
        supervisor.run()
    finally:
        supervisor._report("done")
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv)
