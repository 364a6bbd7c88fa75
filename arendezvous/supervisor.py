"""The tiny process between an agent and its workers: whatever happens to the agent, no worker outlives it.

Run by path, ``python -I -S -u supervisor.py STDIN STDOUT STDERR GRACE``, with the standard library alone, so that it is
up in about 15 ms. It leads a session and a process group of its own, and the workers and all that they start belong to
that group. Standard input is a pipe from the agent, standard output a pipe to it; ``STDIN``, ``STDOUT`` and ``STDERR``
are copies of the agent's own standard descriptors.

The agent writes tokens, each ended by a NUL byte (which neither arguments nor environments can hold)::

    go N  then N times:  LOCAL_RANK OUT ERR PREFIX ARGC ENVC  and as many arguments and KEY=VALUE texts
    stop SIGNAL GRACE

``OUT`` and ``ERR`` say where a stream of the worker goes: ``=`` to the agent's own, untouched; ``|`` to the agent's own
through here, so that its last lines are known; ``>PATH`` to a file alone; ``+PATH`` to a file, and with ``PREFIX`` in
front of each line to the agent's own.

The supervisor writes lines::

    ready                        it can take orders
    started LOCAL_RANK PID       the worker runs
    error LOCAL_RANK TEXT        it could not be started
    tail LOCAL_RANK HEX          the end of what a failed worker wrote
    exit LOCAL_RANK STATUS       it ended; a negative status is the signal that killed it
    done                         the group is empty, or about to be killed

End of file from the agent, which is what a SIGKILL of the agent looks like, means SIGTERM to the group, a grace and
SIGKILL. So does the end of the last worker: what it left behind in the group has a grace and is then killed. (A death
signal by ``prctl`` would be shorter and wrong: it follows the *thread* that forked.) The last act is a SIGKILL to the
whole group, this process included.

Nothing here waits for whoever reads the output: a terminal that is stopped makes the workers wait for their writes, as
it would without this process, and delays no signal. Nor does the end wait for the end of the workers' pipes, which a
process that has left the group may hold open for ever.
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
#: Bytes: read at once; kept for a sink that takes nothing, before its sources have to wait; that a writable pipe takes
#: without blocking (POSIX's PIPE_BUF on Linux); of the tail; of a line that is passed on before it ends.
_CHUNK, _PENDING, _ATOMIC, _TAIL, _LINE = 65536, 65536, 4096, 3072, 65536
#: Seconds at the end for sinks that are slow.
_FLUSH = 1.0
#: Python ignores these, and an ignored signal stays ignored in the programs that it starts.
_RESTORE = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))


class Sink:
    """Somewhere of the agent's that output goes to; takes what it can without blocking and keeps some more.

    Args:
        fd: Its descriptor. It is shared with other processes, so it stays in blocking mode.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = b""

    @property
    def is_full(self) -> bool:
        """Whether those who write into it should wait."""
        return len(self.pending) >= _PENDING

    def put(self, data: bytes) -> None:
        """Take data; written when there is room."""
        if self.fd >= 0:
            self.pending += data
            self.flush()

    def flush(self) -> None:
        """Write as much as goes without blocking."""
        while self.pending and select.select([], [self.fd], [], 0)[1]:
            self.write_some()

    def write_some(self) -> None:
        """Write a piece; what cannot be written any more is dropped."""
        try:
            self.pending = self.pending[os.write(self.fd, self.pending[:_ATOMIC]) :]
        except OSError:
            self.fd, self.pending = -1, b""  # whoever read it is gone; files and tails go on


class Stream:
    """One stream of one worker: a pipe that is read here, or a file that the worker has alone.

    Args:
        order: Where it goes, as the agent said.
        prefix: What goes in front of each line for people.
        own: The agent's own stream.
        own_fd: A copy of its descriptor for a worker that gets it untouched.
    """

    def __init__(self, order: str, prefix: bytes, own: Sink, own_fd: int) -> None:
        self.sink, self._prefix = own, prefix
        self.reader = self._file = -1
        self._path = ""
        self._tail = self._line = b""
        self._as_lines = order[:1] == "+"
        if order[:1] in (">", "+"):
            self._path = order[1:]
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        #: What the worker gets; to be closed here once it has it.
        self.writer = own_fd
        if order[:1] in ("|", "+"):
            self.reader, self.writer = os.pipe()
            os.set_blocking(self.reader, False)
        elif order[:1] == ">":
            self.writer = self._file

    @property
    def is_read(self) -> bool:
        """Whether there may be more to read here."""
        return self.reader >= 0

    def started(self, own_fd: int) -> None:
        """The worker has its end."""
        if self.writer not in (own_fd, self._file):
            os.close(self.writer)

    def read(self) -> bool:
        """Pass on what is there; False when there is nothing now."""
        try:
            data = os.read(self.reader, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.reader)
            self.reader = -1
            return False
        self._tail = (self._tail + data)[-_TAIL:]
        self._save(data)
        if not self._as_lines:
            self.sink.put(data)
            return True
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _LINE:
            lines, self._line = [*lines, self._line], b""
        self.sink.put(b"".join(self._prefix + line + b"\n" for line in lines))
        return True

    def _save(self, data: bytes) -> None:
        try:
            while self._file >= 0 and data:
                data = data[os.write(self._file, data) :]
        except OSError as exc:
            self.sink.put(f"arendezvous: {self._path}: {exc.strerror}; this log ends here\n".encode())
            os.close(self._file)
            self._file = -1

    def drain(self) -> None:
        """Read what a worker that has ended left in its pipe; a line that it did not end is one."""
        for _ in range(64):  # others of its group may go on writing for ever
            if not self.is_read or not self.read():
                break
        if self._line:
            self.sink.put(self._prefix + self._line + b"\n")
            self._line = b""

    def tail(self) -> bytes:
        """The last bytes that the worker wrote, as far as they are known."""
        if self._path and not self._as_lines:
            try:
                with open(self._path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                    return file.read(_TAIL)
            except OSError:
                return b""
        return self._tail


class Supervisor:
    """Starts the workers of one round and sees to their end.

    Args:
        stdin: Descriptor that becomes the workers' standard input.
        stdout: Descriptor of the agent's standard output.
        stderr: Descriptor of the agent's standard error.
        grace: Seconds between SIGTERM and SIGKILL when nobody says otherwise.
    """

    def __init__(self, stdin: int, stdout: int, stderr: int, grace: float) -> None:
        self._stdin, self._grace = stdin, grace
        self._own = ((stdout, Sink(stdout)), (stderr, Sink(stderr)))
        self._streams: dict[str, list[Stream]] = {}
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
            pipes = [s for streams in self._streams.values() for s in streams if s.is_read and not s.sink.is_full]
            slow = [sink for _, sink in self._own if sink.pending]
            wanted = [wake, *([_CONTROL] if listening else []), *(s.reader for s in pipes)]
            ready, free, _ = select.select(wanted, [sink.fd for sink in slow], [], self._patience())
            for sink in slow:
                if sink.fd in free:
                    sink.write_some()
            for stream in pipes:
                if stream.reader in ready:
                    stream.read()
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
                self._finish()
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
            if len(words) < 6 or len(words) < 6 + (size := int(words[4]) + int(words[5])):
                return False
            argc = 6 + int(words[4])
            spec, self._tokens = words[: 6 + size], words[6 + size :]
            self._missing -= 1
            orders = [os.fsdecode(order) for order in spec[1:3]]
            self._start(spec[0].decode(), orders, spec[3], spec[6:argc], spec[argc:])
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

    def _start(
        self, local_rank: str, orders: list[str], prefix: bytes, argv: list[bytes], environ: list[bytes]
    ) -> None:
        if self._kill_at is not None:
            return  # told to stop in the middle of starting
        streams: list[Stream] = []
        env = dict(text.split(b"=", 1) for text in environ)
        try:
            for order, (fd, sink) in zip(orders, self._own, strict=True):
                streams.append(Stream(order, prefix, sink, fd))
            actions = [
                (os.POSIX_SPAWN_DUP2, self._stdin, 0),
                (os.POSIX_SPAWN_DUP2, streams[0].writer, 1),
                (os.POSIX_SPAWN_DUP2, streams[1].writer, 2),
            ]
            pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsigdef=_RESTORE)
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename and len(streams) < len(orders) else ""
            self._report(f"error {local_rank} {where}{exc.strerror or exc}")
            return
        finally:
            for stream, (fd, _) in zip(streams, self._own, strict=False):
                stream.started(fd)
        self._running[pid] = local_rank
        self._streams[local_rank] = streams
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
                for stream in self._streams[local_rank]:
                    stream.drain()
                if status and self._kill_at is None:
                    out, err = (stream.tail() for stream in self._streams[local_rank])
                    # Its last words are on standard error, unless it has none.
                    self._report(f"tail {local_rank} {(err if err.strip() else out).hex()}")
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

    def _finish(self) -> None:
        """Pass on the last output; for a moment, whoever reads it may be stuck."""
        for streams in self._streams.values():
            for stream in streams:
                stream.drain()
        until = time.monotonic() + _FLUSH
        while slow := [sink for _, sink in self._own if sink.pending]:
            _, free, _ = select.select([], [sink.fd for sink in slow], [], max(0.0, until - time.monotonic()))
            if not free:
                return
            for sink in slow:
                if sink.fd in free:
                    sink.write_some()

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
    stdin, stdout, stderr, grace = int(argv[1]), int(argv[2]), int(argv[3]), float(argv[4])
    if os.getpgrp() != os.getpid():
        os.setsid()
    for fd in (_CONTROL, _REPORT, stdin, stdout, stderr):
        os.set_inheritable(fd, False)  # the workers get copies of the last three and nothing of the first
    supervisor = Supervisor(stdin, stdout, stderr, grace)
    try:
        supervisor.run()
    finally:
        supervisor._report("done")
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv)
