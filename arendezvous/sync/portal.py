"""The one event loop behind every blocking call: a thread of its own, started when it is first needed."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from ..errors import RendezvousError, RendezvousTimeoutError, RendezvousUsageError
from ..handler.endings import leaf

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ("Portal", "Resident", "get_portal", "use_event_loop")

T = TypeVar("T")
R = TypeVar("R")

_LOOPS = ("asyncio", "uvloop", "trio")
#: Seconds that a call which Ctrl-C ended has to withdraw; a join withdraws within a few.
_WITHDRAW = 10.0
#: Seconds that everything still open has to close when the interpreter ends.
_FAREWELL = 5.0


class _Job(Generic[T]):
    """One coroutine, and what became of it."""

    def __init__(self, function: Callable[[], Awaitable[T]], timeout: float | None, what: str) -> None:
        self._function = function
        self._timeout = timeout
        self._what = what
        self._value: list[T] = []
        self._error: BaseException | None = None
        self.ended = threading.Event()

    async def run(self) -> None:
        """Never raises: what escapes here would end the loop for everybody."""
        cancelled = anyio.get_cancelled_exc_class()
        try:
            with anyio.move_on_after(math.inf if self._timeout is None else self._timeout) as scope:
                self._value.append(await self._function())
            if scope.cancelled_caught:
                self._error = RendezvousTimeoutError(f"{self._what} took longer than the {self._timeout:g} s given.")
        except cancelled:
            self._error = RendezvousUsageError(f"{self._what} was cancelled: its event loop is ending.")
            raise
        except BaseException as exc:  # noqa: BLE001  raised again in the calling thread
            self._error = leaf(exc)
        finally:
            self.ended.set()

    def result(self) -> T:
        """What it returned.

        Raises:
            BaseException: what it raised.
        """
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # or error, traceback and this frame would keep each other alive
        return self._value[0]


class Portal:
    """An event loop in a thread, for calls from other threads.

    Args:
        loop: ``asyncio``, ``uvloop`` or ``trio``.

    Raises:
        ValueError: no such loop.
        RendezvousUsageError: it is not installed.

    Concurrency:
        Any number of threads.
    """

    def __init__(self, loop: str) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self._residents: set[Resident[Any]] = set()
        self._closed = False
        # Not anyio's context manager: that is a generator, and collecting it in a forked child would wait for ever for
        # a thread that is not there.
        ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=_run, args=(*_options(loop), ready), name="arendezvous", daemon=True)
        self._thread.start()
        self._portal = ready.result()

    def check(self, what: str, instead: str) -> None:
        """Refuse a blocking call where it would hang or block others.

        Args:
            what: The call, as its caller knows it.
            instead: Its asynchronous twin.

        Raises:
            RendezvousUsageError: in a forked child, inside an event loop, or after the end.
        """
        if os.getpid() != self.pid:
            raise RendezvousUsageError(
                f"{what}: this object was made in process {self.pid}, before the fork of this process {os.getpid()}, "
                "and the threads that serve it stayed there. Make a new one here."
            )
        if _in_event_loop():
            raise RendezvousUsageError(
                f"{what} blocks, and was called inside a running event loop, which it would stop. Await {instead} "
                "there, or call it in a worker thread."
            )
        if self._closed:
            raise RendezvousUsageError(f"{what}: the event loop behind it has ended, as the interpreter is ending.")

    def call(self, function: Callable[[], Awaitable[T]], *, what: str, instead: str, timeout: float | None = None) -> T:
        """Run an asynchronous function to its end.

        Args:
            function: Is called in the event loop.
            what: The call, as its caller knows it.
            instead: Its asynchronous twin, for who is inside an event loop.
            timeout: Seconds that it may take; None = no limit.

        Returns:
            What the function returned.

        Raises:
            KeyboardInterrupt: Ctrl-C; the function was cancelled and has ended, unless that took longer than
                a few seconds.
            RendezvousTimeoutError: the timeout ended.
            RendezvousUsageError: see :meth:`check`.
        """
        self.check(what, instead)
        job = _Job(function, timeout, what)
        future = self._portal.start_task_soon(job.run)
        try:
            job.ended.wait()
        except BaseException:
            future.cancel()
            job.ended.wait(_WITHDRAW)
            raise
        return job.result()

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function in the loop without waiting for it, from any thread; nothing happens after the end."""
        if os.getpid() != self.pid or self._closed:
            return
        if threading.get_ident() == self._thread.ident:
            function()
            return
        with suppress(RuntimeError):  # it ends at this moment
            self._portal.start_task_soon(function)

    def close(self) -> None:
        """Close what is still open, within a few seconds, and end the loop; idempotent."""
        if os.getpid() != self.pid or self._closed:
            return
        self._closed = True
        with suppress(RuntimeError):  # the loop has crashed
            for resident in list(self._residents):
                self._portal.start_task_soon(resident._stop_now)
            for resident in list(self._residents):
                resident._ended.wait(_FAREWELL)
            self._portal.start_task_soon(self._portal.stop, True)
        self._thread.join(_FAREWELL)


def _run(backend: str, options: dict[str, Any], ready: Future[BlockingPortal]) -> None:
    """The thread."""

    async def serve() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve, backend=backend, backend_options=options)
    except BaseException as exc:
        if ready.done():
            raise
        ready.set_exception(exc)


class Resident(Generic[T]):
    """An asynchronous context manager that stays entered in a task of the portal, for calls from any thread.

    Args:
        portal: Where.
        make: Returns the manager; is called in the event loop.
        what: What it is, for messages.
    """

    def __init__(self, portal: Portal, make: Callable[[], AbstractAsyncContextManager[T]], what: str) -> None:
        self._portal = portal
        self._make = make
        self._what = what
        self._value: list[T] = []
        self._stop = anyio.Event()
        self._scopes: set[anyio.CancelScope] = set()
        self._failure: BaseException | None = None
        self._closing = False
        self._ended = threading.Event()
        self._settled = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether it is entered now."""
        return bool(self._value) and not self._ended.is_set()

    @property
    def value(self) -> T:
        """What was entered; only what may be read from any thread may be read here."""
        return self._value[0]

    def open(self, what: str, instead: str) -> None:
        """Enter the manager.

        Raises:
            Exception: what entering raised.
            KeyboardInterrupt: Ctrl-C; it was left again.
        """
        self._portal.check(what, instead)
        future = self._portal._portal.start_task_soon(self._live)
        try:
            self._settled.wait()
        except BaseException:
            future.cancel()
            self._ended.wait(_WITHDRAW)
            raise
        if not self._value:
            failure, self._failure = self._failure, None
            raise failure or RendezvousUsageError(f"{self._what}: the event loop behind it is ending.")

    def call(
        self, function: Callable[[T], Awaitable[R]], *, what: str, instead: str, timeout: float | None = None
    ) -> R:
        """Run a function of what was entered; see :meth:`Portal.call`.

        Raises:
            RendezvousUsageError: it was closed.
            RendezvousError: its background task has died; the cause says of what.
        """

        async def run() -> R:
            scope = anyio.CancelScope()
            self._scopes.add(scope)
            try:
                with scope:
                    self._check_alive(what)
                    return await function(self._value[0])
            finally:
                self._scopes.discard(scope)
            self._check_alive(what)
            raise RendezvousUsageError(f"{what}: {self._what} was closed meanwhile.")

        return self._portal.call(run, what=what, instead=instead, timeout=timeout)

    def close(self, what: str, instead: str) -> None:
        """Leave the manager and wait until it is left; idempotent.

        Raises:
            Exception: what leaving raised.
        """
        if not self.is_open:
            return
        self._portal.check(what, instead)
        self.close_soon()
        self._ended.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close_soon(self) -> None:
        """Leave it without waiting, from any thread and also while garbage is collected."""
        self._portal.soon(self._stop_now)

    def _stop_now(self) -> None:
        self._closing = True
        self._stop.set()

    def _check_alive(self, what: str) -> None:
        if self._failure is not None and not self._closing:
            raise RendezvousError(
                f"{what}: the background task of {self._what} has died: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        if self._closing or self._ended.is_set():
            raise RendezvousUsageError(f"{what}: {self._what} is closed.")

    async def _live(self) -> None:
        """Never raises, like every task of the portal."""
        cancelled = anyio.get_cancelled_exc_class()
        self._portal._residents.add(self)
        try:
            async with self._make() as value:
                self._value.append(value)
                self._settled.set()
                await self._stop.wait()
                self._cancel_calls()
        except cancelled:
            self._closing = True
            raise
        except BaseException as exc:  # noqa: BLE001  raised again by whoever calls next
            self._failure = leaf(exc)
        finally:
            self._portal._residents.discard(self)
            self._ended.set()
            self._settled.set()
            self._cancel_calls()

    def _cancel_calls(self) -> None:
        for scope in self._scopes:
            scope.cancel()


_lock = threading.Lock()
_shared: Portal | None = None


def get_portal() -> Portal:
    """The portal of this process; started on first use, on the loop that ``ARENDEZVOUS_EVENT_LOOP`` names.

    Raises:
        ValueError: it names no known loop.
        RendezvousUsageError: that loop is not installed.
    """
    return _get(None)


def use_event_loop(loop: str) -> None:
    """Start the event loop of this process's blocking calls now.

    Args:
        loop: ``asyncio``, ``uvloop`` or ``trio``.

    Raises:
        ValueError: no such loop.
        RendezvousUsageError: it is not installed, or another one runs already.
    """
    running = _get(loop)
    if running.loop != loop:
        raise RendezvousUsageError(
            f"The blocking calls of this process run on {running.loop} already; choose {loop} before the first of them."
        )


def _get(loop: str | None) -> Portal:
    global _shared
    if _shared is not None:
        return _shared
    with _lock:
        if _shared is None:
            name = loop if loop is not None else os.environ.get("ARENDEZVOUS_EVENT_LOOP", "") or "asyncio"
            _shared = Portal(name)
            # Registered after the thread's own machinery, so it runs before: the loop must still be there to leave by.
            atexit.register(_shared.close)
        return _shared


def _forget() -> None:
    """In a forked child: the threads are not there, and a lock may be held for ever."""
    global _shared, _lock
    _shared, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _options(loop: str) -> tuple[str, dict[str, Any]]:
    """What anyio calls a loop."""
    from importlib.util import find_spec

    if loop not in _LOOPS:
        raise ValueError(f"no event loop is called {loop!r}; there are {', '.join(_LOOPS)}")
    if loop != "asyncio" and find_spec(loop) is None:
        raise RendezvousUsageError(
            f"The event loop {loop!r} is not installed; install it with: pip install 'arendezvous[{loop}]'"
        )
    return ("trio", {}) if loop == "trio" else ("asyncio", {"use_uvloop": loop == "uvloop"})


def _in_event_loop() -> bool:
    """Whether the calling thread runs an event loop, of whichever library."""
    if (asyncio := sys.modules.get("asyncio")) is not None and asyncio._get_running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
