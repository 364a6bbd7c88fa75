"""The workers of one round under their supervisor (``arendezvous/supervisor.py``), as the agent sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

from .logs import Outputs, last_lines

if TYPE_CHECKING:
    from types import TracebackType

    from .environment import WorkerSpec

__all__ = ("WorkerExit", "WorkerGroup", "WorkerGroupError", "signal_name")

_SUPERVISOR = Path(__file__).resolve().parent.parent / "supervisor.py"
#: Seconds that a supervisor has to come up; it needs 15 ms on an idle machine.
_READY_LIMIT = 30.0
#: Seconds beyond the grace after which a supervisor is taken for broken and its group is killed from here.
_MARGIN = 5.0
#: Seconds that killed processes have to be gone; where nobody reaps orphans (no init in a container) they never are.
_DYING = 1.0


class WorkerGroupError(Exception):
    """The supervisor cannot be started or died; whatever workers it had are killed."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How one worker ended.

    Attributes:
        spec: The worker.
        status: Its exit status; negative = the signal that killed it; None = it could not be started.
        pid: Its process id; None if it was not started.
        problem: Why it could not be started.
        lines: The last lines that it wrote, if it failed and they passed through the supervisor or a log file.
    """

    spec: WorkerSpec
    status: int | None
    pid: int | None = None
    problem: str = ""
    lines: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        """Whether it did its work."""
        return self.status == 0

    def __str__(self) -> str:
        who = f"worker {self.spec.local_rank} (rank {self.spec.rank}, pid {self.pid})"
        if self.status is None:
            return f"worker {self.spec.local_rank} could not be started: {self.spec.argv[0]}: {self.problem}"
        if self.status < 0:
            return f"{who} was killed by {signal_name(-self.status)}"
        return f"{who} exited with status {self.status}"


def signal_name(number: int) -> str:
    """``SIGTERM`` for 15; a number without a name as it is."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class _Known:
    """What the supervisor reported so far."""

    ready: bool = False
    pids: dict[int, int] = field(default_factory=dict)
    tails: dict[int, bytes] = field(default_factory=dict)
    exits: dict[int, WorkerExit] = field(default_factory=dict)


class WorkerGroup:
    """Real processes under one supervisor; an async context manager.

    Entry starts the supervisor. Leaving the block in any way stops what still runs: a signal, the grace, SIGKILL to the
    whole group, grandchildren included.

    Args:
        grace: Seconds between the signal and SIGKILL.

    Concurrency:
        One task at a time, except for :meth:`kill` and the attribute ``stop_signal``.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        #: What the workers get when the block is left.
        self.stop_signal: int = signal.SIGTERM
        self._process: subprocess.Popen[bytes] | None = None
        self._control = self._reports = -1
        self._buffer = b""
        self._specs: dict[int, WorkerSpec] = {}
        self._known = _Known()
        self._reaped = False

    async def __aenter__(self) -> Self:
        try:
            self._spawn()
        except OSError as exc:
            raise WorkerGroupError(f"The workers' supervisor cannot be started: {exc.strerror or exc}.") from exc
        try:
            with anyio.move_on_after(_READY_LIMIT):
                while not self._known.ready:
                    if not await self._hear():
                        break
            if not self._known.ready:
                raise WorkerGroupError(f"The workers' supervisor {_SUPERVISOR} did not come up.")
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which is also the id of the workers' session and process group."""
        assert self._process is not None  # set on entry
        return self._process.pid

    async def start(self, specs: Sequence[WorkerSpec], outputs: Mapping[int, Outputs] | None = None) -> None:
        """Start the workers; once.

        Args:
            specs: The workers.
            outputs: Where their output goes, by local rank; by default to this process's own, untouched.

        Raises:
            WorkerGroupError: the supervisor died.

        Cancellation:
            Leave the block afterwards: some workers may run.
        """
        self._specs = {spec.local_rank: spec for spec in specs}
        words: list[bytes] = [b"go", b"%d" % len(specs)]
        for spec in specs:
            goes = Outputs() if outputs is None else outputs[spec.local_rank]
            words += [b"%d" % spec.local_rank, *map(os.fsencode, (goes.out, goes.err, goes.prefix))]
            words += [b"%d" % len(spec.argv), b"%d" % len(spec.env)]
            words += map(os.fsencode, spec.argv)
            words += [os.fsencode(f"{name}={value}") for name, value in spec.env.items()]
        await self._order(words)

    async def wait(self) -> list[WorkerExit]:
        """Return when every worker has ended, or as soon as one has failed; in order of local ranks.

        Raises:
            WorkerGroupError: the supervisor died.

        Cancellation:
            Safe.
        """
        exits = self._known.exits
        while len(exits) < len(self._specs) and all(end.is_success for end in exits.values()):
            if not await self._hear() and len(exits) < len(self._specs):
                left = len(self._specs) - len(exits)
                raise WorkerGroupError(f"The workers' supervisor (pid {self.pid}) died; its {left} workers are killed.")
        return [exits[local_rank] for local_rank in sorted(exits)]

    def kill(self) -> None:
        """Kill the whole group now, the supervisor included; idempotent, from any task."""
        if self._process is not None and not self._reaped:
            # Not reaped, so the number is still its own; the group may also outlive its leader.
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Stop what runs and return when the group is gone; idempotent.

        Cancellation:
            Shielded for the grace and a few seconds.
        """
        if self._process is None or self._reaped:
            return
        try:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self.grace + _MARGIN):
                with suppress(WorkerGroupError):
                    # Empty after a clean end; then the supervisor is about to go anyway.
                    await self._order([b"stop", b"%d" % self.stop_signal, b"%g" % self.grace])
                while await self._hear():
                    pass
        finally:
            self.kill()
            self._close()
            with anyio.move_on_after(_MARGIN, shield=True):
                while self._process.poll() is None:  # noqa: ASYNC110  killed already; there is no event to wait for
                    await anyio.sleep(0.002)
            self._reaped = True
            with anyio.move_on_after(_DYING, shield=True):
                # They are not children of this process: a killed one may hold its ports and devices for a moment more.
                while _has_members(self._process.pid):  # noqa: ASYNC110
                    await anyio.sleep(0.002)

    # ---- pipes ------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        """Start the supervisor; the workers' streams begin or end at this process's own 0, 1 and 2."""
        own = [_own(fd) for fd in (0, 1, 2)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-u", str(_SUPERVISOR), *map(str, own), f"{self.grace:g}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=own,
                start_new_session=True,
            )
        finally:
            for fd in own:
                os.close(fd)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._control, self._reports = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._control, False)
        os.set_blocking(self._reports, False)

    async def _order(self, words: Sequence[bytes]) -> None:
        data = memoryview(b"".join(word + b"\0" for word in words))
        while data:
            try:
                data = data[os.write(self._control, data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._control)
            except OSError as exc:
                raise WorkerGroupError(f"The workers' supervisor (pid {self.pid}) died.") from exc

    async def _hear(self) -> bool:
        """Read what the supervisor reports next; False at its end."""
        await anyio.wait_readable(self._reports)
        try:
            data = os.read(self._reports, 65536)
        except BlockingIOError:
            return True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._note(*line.decode(errors="replace").split(" ", 2))
        return bool(data)

    def _note(self, what: str, rank: str = "0", text: str = "") -> None:
        if what == "ready":
            self._known.ready = True
            return
        if not rank.isdecimal() or int(rank) not in self._specs:
            return
        local_rank = int(rank)
        spec, pid = self._specs[local_rank], self._known.pids.get(local_rank)
        if what == "started":
            self._known.pids[local_rank] = int(text)
        elif what == "exit":
            lines = last_lines(self._known.tails.get(local_rank, b""))
            self._known.exits[local_rank] = WorkerExit(spec, int(text), pid, lines=lines)
        elif what == "tail":
            self._known.tails[local_rank] = bytes.fromhex(text)
        elif what == "error":
            self._known.exits[local_rank] = WorkerExit(spec, None, None, text)

    def _close(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _has_members(group: int) -> bool:
    """Whether anything is left of a process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _own(fd: int) -> int:
    """A copy of one of this process's standard descriptors, or of the null device if it is closed."""
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)
