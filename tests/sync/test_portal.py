from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from arendezvous import RendezvousError, RendezvousTimeoutError, RendezvousUsageError
from arendezvous.sync import portal as portals
from arendezvous.sync.portal import Portal, Resident, get_portal, use_event_loop
from tests.support import SLOW

from .scripts import run, started


def ask(portal: Portal, function: object, timeout: float | None = None) -> object:
    return portal.call(function, what="ask()", instead="ask", timeout=timeout)  # type: ignore[arg-type]


def test_a_call_returns_and_raises_what_the_function_does(own: Portal) -> None:
    async def good() -> int:
        await anyio.sleep(0)
        return 7

    async def bad() -> None:
        async with anyio.create_task_group():
            raise KeyError("deep")

    assert ask(own, good) == 7
    with pytest.raises(KeyError, match="deep"):  # the leaf and not a group
        ask(own, bad)
    assert ask(own, good) == 7


def test_a_timeout_ends_a_call_and_names_it(own: Portal) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"ask\(\) took longer than the 0.05 s given"):
        ask(own, anyio.sleep_forever, 0.05)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_programs_does_not_end_the_loop(own: Portal, error: type[BaseException]) -> None:
    async def bad() -> None:
        raise error("mine")

    with pytest.raises(error):
        ask(own, bad)

    async def good() -> int:
        return 7

    assert ask(own, good) == 7


def test_many_threads_call_at_once(own: Portal) -> None:
    found: list[object] = []

    def body(number: int) -> None:
        async def function() -> int:
            await anyio.sleep(0.01)
            return number

        for _ in range(5):
            found.append(ask(own, function))

    threads = [threading.Thread(target=body, args=(k,)) for k in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20 * SLOW)
    assert sorted(map(str, found)) == sorted(str(k) for k in range(20) for _ in range(5))


def test_it_is_refused_in_an_event_loop_with_the_name_to_use_there(own: Portal) -> None:
    async def inside() -> None:
        with pytest.raises(RendezvousUsageError, match="inside a running event loop.*Await ask there"):
            ask(own, anyio.sleep_forever)
        # A worker thread of the loop may block.
        await anyio.to_thread.run_sync(ask, own, lambda: anyio.sleep(0))

    asyncio.run(inside())
    anyio.run(inside, backend="trio")


def test_a_closed_portal_says_so(own: Portal) -> None:
    own.close()
    own.close()
    with pytest.raises(RendezvousUsageError, match="the event loop behind it has ended"):
        ask(own, anyio.sleep_forever)
    own.soon(lambda: None)


def test_closing_cancels_calls_in_flight(own: Portal) -> None:
    errors: list[BaseException] = []
    inside = threading.Event()

    async def long() -> None:
        inside.set()
        await anyio.sleep_forever()

    def body() -> None:
        try:
            ask(own, long)
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    assert inside.wait(20 * SLOW)
    own.close()
    thread.join(20 * SLOW)
    assert [type(error) for error in errors] == [RendezvousUsageError]


# ---- what stays entered ---------------------------------------------------------------------------------------


class Kept:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.die = anyio.Event()
        self.left = threading.Event()

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[Kept]:
        self.log.append("in")
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._background)
            try:
                yield self
            finally:
                self.log.append("out")
                self.left.set()
                tg.cancel_scope.cancel()

    async def _background(self) -> None:
        await self.die.wait()
        raise OSError("the disk")


def opened(own: Portal, kept: Kept) -> Resident[Kept]:
    resident = Resident(own, kept.manager, "the thing")
    resident.open("open()", "open")
    return resident


def test_it_is_entered_once_and_left_when_closed(own: Portal) -> None:
    kept = Kept()
    resident = opened(own, kept)
    assert resident.is_open
    assert resident.value is kept

    async def look(value: Kept) -> list[str]:
        return list(value.log)

    assert resident.call(look, what="look()", instead="look") == ["in"]
    resident.close("close()", "aclose")
    assert kept.log == ["in", "out"]
    assert not resident.is_open
    resident.close("close()", "aclose")
    with pytest.raises(RendezvousUsageError, match=r"look\(\): the thing is closed"):
        resident.call(look, what="look()", instead="look")


def test_an_error_on_entry_is_raised_by_open(own: Portal) -> None:
    @asynccontextmanager
    async def bad() -> AsyncIterator[None]:
        raise OSError("no entry")
        yield

    resident = Resident(own, bad, "it")
    with pytest.raises(OSError, match="no entry"):
        resident.open("open()", "open")
    assert not resident.is_open


def test_a_background_task_that_died_is_reported_by_the_next_call_and_by_those_in_flight(own: Portal) -> None:
    kept = Kept()
    resident = opened(own, kept)
    errors: list[BaseException] = []
    inside = threading.Event()

    async def long(value: Kept) -> None:
        inside.set()
        await anyio.sleep_forever()

    def body() -> None:
        try:
            resident.call(long, what="long()", instead="long")
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    assert inside.wait(20 * SLOW)
    own.soon(kept.die.set)
    thread.join(20 * SLOW)
    with pytest.raises(RendezvousError, match=r"next\(\): the background task of the thing has died: OSError") as got:
        resident.call(long, what="next()", instead="next")
    assert isinstance(got.value.__cause__, OSError)
    assert isinstance(errors[0], RendezvousError)
    assert isinstance(errors[0].__cause__, OSError)


def test_closing_ends_calls_in_flight(own: Portal) -> None:
    resident = opened(own, Kept())
    errors: list[BaseException] = []
    inside = threading.Event()

    async def long(value: Kept) -> None:
        inside.set()
        await anyio.sleep_forever()

    def body() -> None:
        try:
            resident.call(long, what="long()", instead="long")
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    assert inside.wait(20 * SLOW)
    resident.close("close()", "aclose")
    thread.join(20 * SLOW)
    assert [type(error) for error in errors] == [RendezvousUsageError]


def test_closing_soon_works_inside_the_loop_as_well(own: Portal) -> None:
    kept = Kept()
    resident = opened(own, kept)

    async def collect(value: Kept) -> None:
        resident.close_soon()  # as a finalizer does that runs in the loop's thread

    with pytest.raises(RendezvousUsageError):
        for _ in range(1000):
            resident.call(collect, what="collect()", instead="collect")
            time.sleep(0.01)
    assert kept.left.wait(20 * SLOW)


def test_the_end_of_the_portal_leaves_what_is_open(own: Portal) -> None:
    kept = Kept()
    opened(own, kept)
    own.close()
    assert kept.log == ["in", "out"]


# ---- one per process ------------------------------------------------------------------------------------------


def test_there_is_one_per_process_on_the_loop_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    monkeypatch.setattr(portals, "_shared", None)
    monkeypatch.setenv("ARENDEZVOUS_EVENT_LOOP", loop)
    made: list[Portal] = []
    threads = [threading.Thread(target=lambda: made.append(get_portal())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20 * SLOW)
    assert len(set(map(id, made))) == 1
    assert made[0].loop == loop
    use_event_loop(loop)
    with pytest.raises(RendezvousUsageError, match=f"run on {loop} already"):
        use_event_loop("trio" if loop != "trio" else "asyncio")
    made[0].close()


def test_a_loop_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portals, "_shared", None)
    with pytest.raises(ValueError, match="no event loop is called 'curio'; there are asyncio, uvloop, trio"):
        use_event_loop("curio")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RendezvousUsageError, match=r"pip install 'arendezvous\[trio\]'"):
        use_event_loop("trio")


# ---- processes ------------------------------------------------------------------------------------------------

INTERRUPTED = """
import anyio, sys
from arendezvous.sync.portal import get_portal

async def join():
    try:
        print("joined", flush=True)
        await anyio.sleep_forever()
    finally:
        with anyio.move_on_after(5, shield=True):
            await anyio.sleep(0.2)
        print("withdrawn", flush=True)

async def good():
    return 7

try:
    get_portal().call(join, what="join()", instead="join")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(get_portal().call(good, what="good()", instead="good"))
"""


def test_ctrl_c_in_a_call_cancels_it_first_and_then_raises(loop: str) -> None:
    with started(INTERRUPTED, loop) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20 * SLOW)
    assert out.split() == ["withdrawn", "interrupted", "7"], err
    assert process.returncode == 0


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
from arendezvous.sync.portal import get_portal
from arendezvous import RendezvousUsageError

async def good():
    return 7

before = get_portal()
assert before.call(good, what="good()", instead="good") == 7
pid = os.fork()
if pid == 0:
    try:
        before.call(good, what="good()", instead="good")
    except RendezvousUsageError as exc:
        print(exc, flush=True)
    before.soon(lambda: None)
    before.close()
    print("fresh", get_portal().call(good, what="good()", instead="good"), flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("parent", before.call(good, what="good()", instead="good"))
"""


def test_after_a_fork_the_child_is_refused_at_once_and_can_start_afresh(loop: str) -> None:
    done = run(FORKED, loop)
    lines = done.stdout.splitlines()
    assert "before the fork of this process" in lines[0], done.stderr
    assert "Make a new one here" in lines[0]
    assert lines[1:] == ["fresh 7", "parent 7"]
    assert done.returncode == 0, done.stderr


EXITING = """
import anyio, sys
from contextlib import asynccontextmanager
from arendezvous.sync.portal import Resident, get_portal

@asynccontextmanager
async def thing():
    try:
        yield 1
    finally:
        with anyio.move_on_after(5, shield=True):
            await anyio.sleep(0.1)
        print("left", flush=True)

Resident(get_portal(), thing, "it").open("open()", "open")
if sys.argv[1] == "raise":
    raise ValueError("mine")
"""


@pytest.mark.parametrize("how", ["end", "raise"])
def test_the_end_of_the_interpreter_leaves_what_is_open(loop: str, how: str) -> None:
    done = run(EXITING, loop, how)
    assert done.stdout == "left\n"
    assert done.returncode == (1 if how == "raise" else 0)
    assert ("mine" in done.stderr) == (how == "raise")
    assert "portal" not in done.stderr.replace("portal.py", "")


def test_nothing_is_left_running(own: Portal) -> None:
    before = threading.active_count()
    other = Portal("asyncio")
    assert threading.active_count() == before + 1
    other.close()
    gc.collect()
    assert threading.active_count() == before
    assert os.getpid() == own.pid
