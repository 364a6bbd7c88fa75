"""The processes of the story: started on a leash, heard line by line, and gone at the end of a block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import Process, TaskGroup

from ...text import printable
from .leash import READY

__all__ = ("LIMIT", "Actor", "Cast", "Unmet", "open_cast")

#: Seconds that anything waited for has to happen; it takes a tenth of that.
LIMIT = 15.0
_LOOK = 0.01
#: Seconds that agents have to stop their workers and to leave before they are killed; then the store's.
_AGENTS_GRACE, _STORE_GRACE = 1.2, 0.5
#: Seconds that killed processes have to be gone; one in an uninterruptible wait may never be.
_DYING = 2.0
#: Lines of a process that are kept for the case that something goes wrong, and how wide they are shown.
_KEPT, _WIDTH = 8, 300
#: The directory that holds this package, which need not be installed.
_ROOT = str(Path(__file__).resolve().parents[3])


class Unmet(Exception):
    """Something that belongs to the story did not happen; the message says what."""


class Actor:
    """One process of the story.

    Args:
        name: What the audience knows it by.
        process: The process.
        leash: The writing end of its leash; owned.
    """

    def __init__(self, name: str, process: Process, leash: int) -> None:
        self.name, self.process = name, process
        self.is_expected_to_run = True
        self._leash = leash
        self._heard: list[Callable[[str], None]] = []
        self.last_lines: deque[str] = deque(maxlen=_KEPT)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.returncode is not None

    def on_line(self, listener: Callable[[str], None]) -> None:
        """Have ``listener`` called with each line that the process writes from now on."""
        self._heard.append(listener)

    def begin(self) -> None:
        """Give it the sign to begin."""
        with suppress(OSError):  # it has died; whoever waits for it will say so
            os.write(self._leash, b"!")

    def kill(self) -> None:
        """SIGKILL, and nothing else; that it ends is part of the story."""
        self.is_expected_to_run = False
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def let_go(self) -> None:
        """Let go of the leash, so that the process ends; idempotent."""
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1

    async def listen(self) -> None:
        """Take its lines until it says no more.

        Cancellation:
            Safe.
        """
        assert self.process.stdout is not None  # asked for
        rest = b""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for chunk in self.process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    text = printable(line.decode(errors="replace"))[:_WIDTH]
                    self.last_lines.append(text)
                    for listener in self._heard:
                        listener(text)


class Cast:
    """All processes of the story; see :func:`open_cast`.

    Args:
        tasks: Where their output is read.
        loop: The event loop that they run on.
    """

    def __init__(self, tasks: TaskGroup, loop: str) -> None:
        self._tasks, self._loop = tasks, loop
        self.store: Actor | None = None
        self.agents: list[Actor] = []
        self._workers_stdin, self._work = os.pipe()

    @property
    def everybody(self) -> list[Actor]:
        """The agents and the store."""
        return [*self.agents, *([] if self.store is None else [self.store])]

    async def start_store(self, *args: str) -> Actor:
        """Start ``arendezvous serve``; it waits for the sign to begin.

        Args:
            *args: Its arguments.

        Raises:
            Unmet: it cannot be started.

        Cancellation:
            Safe: the process is on the leash or does not exist.
        """
        self.store = await self._start("store", "serve", "--event-loop", self._loop, *args)
        return self.store

    async def start_agent(self, name: str, *args: str) -> Actor:
        """Start ``arendezvous run``; it waits for the sign to begin.

        Args:
            name: What the audience knows it by.
            *args: Its arguments.

        Raises:
            Unmet: it cannot be started.

        Cancellation:
            Safe: the process is on the leash or does not exist.
        """
        agent = await self._start(name, "run", "--event-loop", self._loop, *args)
        self.agents.append(agent)
        return agent

    def end_work(self) -> None:
        """End of file on the standard input of every worker, which takes it for the end of its work; idempotent."""
        if self._work >= 0:
            os.close(self._work)
            self._work = -1

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that the lines or the end of a process bring about.

        Args:
            what: What is waited for.
            condition: Looked at every few milliseconds.

        Raises:
            Unmet: it did not happen in time, or a process died that has a part in it.

        Cancellation:
            Safe.
        """
        with anyio.move_on_after(LIMIT):
            while not condition():
                self.check(what)
                await anyio.sleep(_LOOK)
            return
        raise Unmet(f"waited {LIMIT:g} s for {what}")

    async def until_ready(self, actors: Iterable[Actor]) -> None:
        """Wait until processes have loaded what they need.

        Args:
            actors: Those that were started last.

        Raises:
            Unmet: one is not ready in time.

        Cancellation:
            Safe.
        """
        late = list(actors)

        def all_ready() -> bool:
            late[:] = [actor for actor in late if READY not in actor.last_lines]
            return not late

        await self.until(" and ".join(f"the process of {actor.name}" for actor in late) + " to be ready", all_ready)

    def check(self, what: str) -> None:
        """Refuse to wait for ``what`` any longer when a process is gone that has a part in it.

        Raises:
            Unmet: one is gone.
        """
        for actor in self.everybody:
            if actor.is_expected_to_run and actor.has_ended:
                raise Unmet(f"{actor.name} ended with status {actor.process.returncode} while waiting for {what}")

    async def _start(self, name: str, *argv: str) -> Actor:
        leash, mine = os.pipe()
        command = [sys.executable, "-m", f"{__package__}.leash", str(leash), *argv]
        try:
            process = await anyio.open_process(
                command,
                stdin=self._workers_stdin,
                stderr=subprocess.STDOUT,
                env=_environment(),
                # Ctrl-C of the terminal is for the demo alone, which ends its processes itself.
                start_new_session=True,
                pass_fds=(leash,),
            )
        except BaseException as exc:
            os.close(mine)
            if isinstance(exc, OSError):
                raise Unmet(f"{sys.executable} cannot be started: {exc.strerror or exc}") from exc
            raise
        finally:
            os.close(leash)
        actor = Actor(name, process, mine)
        self._tasks.start_soon(actor.listen)
        return actor

    async def end(self) -> None:
        """End every process that is left.

        Cancellation:
            Shielded; takes as long as the graces, and a little longer for what has to be killed.
        """
        self.end_work()
        try:
            # The agents leave while there is a store to tell.
            await _end(self.agents, _AGENTS_GRACE)
            await _end([] if self.store is None else [self.store], _STORE_GRACE)
        finally:
            os.close(self._workers_stdin)


@asynccontextmanager
async def open_cast(loop: str) -> AsyncIterator[Cast]:
    """The stage for the processes of a story; none is left when the block ends, in whatever way.

    Args:
        loop: The event loop that they run on.

    Yields:
        The cast, empty.

    Cancellation:
        Ends the processes, in less than two seconds.
    """
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        cast = Cast(tasks, loop)
        try:
            yield cast
        except Exception as exc:  # noqa: BLE001  raised again below, and not in a group
            error = exc
        finally:
            await cast.end()
            tasks.cancel_scope.cancel()
    if error is not None:
        raise error


async def _end(actors: Iterable[Actor], grace: float) -> None:
    actors = list(actors)
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + grace + _DYING):
        for actor in actors:
            actor.is_expected_to_run = False
            actor.let_go()
        with anyio.move_on_after(grace):
            for actor in actors:
                await actor.process.wait()
        for actor in actors:
            actor.kill()
        for actor in actors:
            await actor.process.wait()
            await actor.process.aclose()


def _environment() -> dict[str, str]:
    """This process's own, without what would change the options of the commands."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ARENDEZVOUS_EVENT_LOOP"))}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, env.get("PYTHONPATH")]))
    return env
