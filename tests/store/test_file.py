"""A store in a file, used by several processes, some of which die."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, ClassVar

import anyio
import anyio.to_thread
import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousStateError, RendezvousUsageError, StoreTimeoutError
from arendezvous.store.base import Capabilities, Store
from arendezvous.store.file import FileStore
from tests.support import SLOW, fail_after

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRELUDE = """
import anyio, os, sys
from arendezvous.store.file import FileStore
path = sys.argv[1]

def say(*words):
    print(*words, flush=True)

"""
HEAR = """
async def main():
    async with FileStore(path) as store:
        {}

anyio.run(main, backend="asyncio")
"""


class Child:
    """A process that uses the store; ``body`` is the inside of ``async with FileStore(path) as store``."""

    all: ClassVar[list[Child]] = []

    def __init__(self, path: Path, body: str) -> None:
        indented = body.strip().replace("\n", "\n        ")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + HEAR.format(indented), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.all.append(self)

    def line(self) -> str:
        """The next line that it says; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    async def hear(self) -> str:
        return await anyio.to_thread.run_sync(self.line)

    def kill(self) -> str:
        """Kill it and return the rest of what it said."""
        self.process.kill()
        rest, _ = self.process.communicate()
        return rest

    def wait(self) -> int:
        with self.process:
            return self.process.wait(30 * SLOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def no_leaks(tmp_path: Path) -> Iterator[None]:
    """Every test leaves no file open and no process running."""
    yield
    while Child.all:
        child = Child.all.pop()
        with child.process:
            child.process.kill()
    gc.collect()
    assert fds(tmp_path) == []


def fds(under: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(str(under)):
                found.append(target.removesuffix(" (deleted)"))
    return found


async def test_it_is_a_store_and_needs_no_entering(path: Path) -> None:
    store: Store = FileStore(path)
    assert store.capabilities == Capabilities()
    assert store.endpoint == str(path)
    await store.set("key", b"value")
    assert await store.get("key") == b"value"
    await store.aclose()


async def test_a_relative_path_means_the_directory_of_its_making(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    store = FileStore("store")
    monkeypatch.chdir("/")
    async with store:
        assert store.endpoint == str(path)
        assert path.exists()


async def test_data_outlive_the_stores(path: Path) -> None:
    async with FileStore(path) as store:
        await store.set("a", b"1")
    async with FileStore(path) as store:
        assert await store.get("a") == b"1"


async def test_a_counter_that_two_stores_share(path: Path) -> None:
    """defects.md R82."""
    async with FileStore(path) as a, FileStore(path) as b:
        await a.add("n", 1)
        await b.add("n", 1)
        assert await a.get("n") == b"2"


async def test_a_counter_keeps_to_64_bits(path: Path) -> None:
    async with FileStore(path) as store:
        await store.set("n", b"%d" % (2**63 - 1))
        with pytest.raises(ValueError, match="64 bits"):
            await store.add("n", 1)
        with pytest.raises(ValueError, match="64 bits"):
            await store.add("n", 2**63)
        await store.set("n", b"1" * 40)
        with pytest.raises(ValueError, match="not a decimal number"):
            await store.add("n", 1)


async def test_processes_count_together_and_lose_nothing(path: Path) -> None:
    body = """
for _ in range(200):
    await store.add("n", 1)
    await store.append("log", b"x")
say("done")
"""
    children = [Child(path, body) for _ in range(3)]
    async with FileStore(path) as store:
        for _ in range(200):
            await store.add("n", 1)
        for child in children:
            assert await child.hear() == "done"
            assert child.wait() == 0
        assert await store.get("n") == b"800"
        assert await store.get("log") == b"x" * 600


async def test_another_process_wakes_whoever_waits(path: Path) -> None:
    with fail_after(30):
        async with FileStore(path) as store:
            child = Child(
                path,
                """
for index in range(20):
    held = await store.watch("ping", None if index == 0 else b"%d" % (index - 1))
    await store.set("pong", held)
""",
            )
            held: bytes | None = None
            for index in range(20):
                await store.set("ping", b"%d" % index)
                held = await store.watch("pong", held)
                assert held == b"%d" % index
            await anyio.to_thread.run_sync(child.wait)


async def test_a_killed_processs_lease_is_gone_within_the_grace(path: Path) -> None:
    with fail_after(30):
        async with FileStore(path) as store, FileStore(path) as reader:
            child = Child(
                path,
                """
async with store.lease(600) as lease:
    await lease.set("beat", b"1")
    say("beating")
    await anyio.sleep_forever()
""",
            )
            assert await child.hear() == "beating"
            assert [info.key for info in await reader.leases("")] == ["beat"]
            began = anyio.current_time()
            child.kill()
            assert await store.watch("beat", b"1") is None
            assert anyio.current_time() - began < 1.0 * SLOW
            # And for a store that did not watch.
            assert await reader.peek("beat") is None
        assert not path.with_name("store.leases").exists()


async def test_a_stopped_processs_lease_runs_out_and_is_opened_anew_when_it_goes_on(path: Path) -> None:
    with fail_after(30):
        async with FileStore(path) as store:
            child = Child(
                path,
                """
async with store.lease(1.0) as lease:
    while True:
        await lease.set("beat", b"1")
        say("beating")
        await anyio.sleep(0.05)
""",
            )
            assert await child.hear() == "beating"
            child.process.send_signal(signal.SIGSTOP)
            assert await store.watch("beat", b"1") is None
            child.process.send_signal(signal.SIGCONT)
            assert await store.watch("beat", None) == b"1"
            child.kill()
            assert await store.watch("beat", b"1") is None


async def test_a_process_killed_at_any_time_loses_nothing_it_was_told_is_written(path: Path) -> None:
    """The child writes large values, so that most kills hit the middle of a write."""
    rng = random.Random(11)
    body = """
n = int(await store.peek("n") or b"0")
while True:
    n += 1
    await store.multi_set(["n", "big"], [b"%d" % n, (b"%d," % n) * 100_000])
    say(n)
"""
    confirmed = 0
    for round_ in range(6):
        child = Child(path, body)
        confirmed = int(await child.hear())
        await anyio.sleep(rng.random() * 0.05)
        words = child.kill().split("\n")
        # The last word may itself be cut short.
        confirmed = max([confirmed, *(int(word) for word in words[:-1] if word)])
        async with FileStore(path) as store:
            now, big = await store.multi_get(["n", "big"])
            assert confirmed <= int(now) <= confirmed + 1
            assert big == (now + b",") * 100_000
            await store.set("after", b"%d" % round_)
            async with FileStore(path) as other:
                assert await other.get("after") == b"%d" % round_
                assert await other.get("n") == now


async def test_a_process_killed_in_its_compactions_loses_nothing(path: Path) -> None:
    rng = random.Random(12)
    body = """
n = int(await store.peek("n") or b"0")
await store.set("kept", b"k" * 30_000)
while True:
    n += 1
    await store.set("n", b"%d" % n)
    await store.set("fill", b"f" * 30_000)
    say(n)
"""
    for _ in range(5):
        child = Child(path, body)
        confirmed = int(await child.hear())
        await anyio.sleep(rng.random() * 0.1)
        words = child.kill().split("\n")
        confirmed = max([confirmed, *(int(word) for word in words[:-1] if word)])
        async with FileStore(path) as store:
            assert confirmed <= int(await store.get("n")) <= confirmed + 1
            assert await store.get("kept") == b"k" * 30_000
            assert path.stat().st_size < 400_000


async def test_a_new_run_does_not_see_the_keys_of_a_killed_one(path: Path) -> None:
    """defects.md R77: keys are under a prefix of the run."""
    from arendezvous.store.prefix import PrefixStore

    child = Child(path, 'await store.set("run1/:a", b"1")\nsay("set")\nawait anyio.sleep_forever()')
    assert await child.hear() == "set"
    child.kill()
    async with FileStore(path) as store:
        assert await PrefixStore("run1", store).check(["a"])
        assert not await PrefixStore("run2", store).check(["a"])


async def test_paths_that_cannot_be_are_refused_on_entering(path: Path) -> None:
    """defects.md R85."""
    with fail_after(1):
        for wrong in (path.parent, path / "below"):
            with pytest.raises(RendezvousConnectionError, match=str(wrong)):
                async with FileStore(wrong):
                    raise AssertionError
        path.write_bytes(b"hello")
        with pytest.raises(RendezvousStateError, match=str(path)):
            async with FileStore(path):
                raise AssertionError


async def test_a_deleted_file_ends_every_call_at_once(path: Path) -> None:
    """defects.md R79."""
    errors: list[str] = []

    async def waits(store: FileStore, key: str) -> None:
        with pytest.raises(RendezvousConnectionError, match=f"{path} was deleted"):
            await store.get(key)
        errors.append(key)

    with fail_after(5):
        async with FileStore(path) as store:
            async with anyio.create_task_group() as group:
                for key in "abc":
                    group.start_soon(waits, store, key)
                await anyio.sleep(0.05)
                path.unlink()
            assert sorted(errors) == ["a", "b", "c"]
            with pytest.raises(RendezvousConnectionError, match=f"{path} was deleted"):
                await store.check(["k"])


async def test_closing_when_the_directory_is_gone_is_no_error(path: Path) -> None:
    """defects.md R80."""
    directory = path.parent / "gone"
    directory.mkdir()
    with fail_after(2):
        async with FileStore(directory / "store") as store, store.lease(60) as lease:
            await lease.set("beat", b"1")
            shutil.rmtree(directory)


async def test_without_locks_the_caller_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """defects.md R86."""

    def refuse(fd: int, kind: int) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(RendezvousConnectionError, match="does not support locks"):
            async with FileStore(path):
                raise AssertionError


async def test_a_process_that_is_stopped_with_the_lock_holds_nobody_for_ever(path: Path) -> None:
    async with FileStore(path, timeout=0.2) as store:
        await store.set("k", b"v")
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with fail_after(5):
                for call in (store.set("k", b"w"), store.get("k"), store.peek("k"), store.wait(["x"])):
                    with pytest.raises(StoreTimeoutError, match=f"lock of the file store {path}"):
                        await call
                with anyio.move_on_after(0.1) as scope:
                    await store.watch("k", b"v")
                assert scope.cancelled_caught
        finally:
            os.close(fd)
        assert await store.get("k") == b"v"


async def test_whoever_polls_hands_over_when_it_leaves(path: Path) -> None:
    with fail_after(10):
        async with FileStore(path) as store, FileStore(path) as other, anyio.create_task_group() as group:
            scopes = []
            found: list[str] = []

            async def waits(key: str, scope: anyio.CancelScope) -> None:
                with scope:
                    await store.get(key)
                    found.append(key)

            for key in "abcdef":
                scopes.append(anyio.CancelScope())
                group.start_soon(waits, key, scopes[-1])
            await anyio.sleep(0.05)
            assert store.waiting == 6
            scopes[0].cancel()
            await other.set("b", b"")
            await other.set("f", b"")
            while len(found) < 2:
                await anyio.sleep(0.01)
            for scope in scopes[2:4]:
                scope.cancel()
            await other.set("e", b"")
            while len(found) < 3:
                await anyio.sleep(0.01)
            assert sorted(found) == ["b", "e", "f"]
        assert store.waiting == 0
        assert not store._waiting


async def test_a_cancelled_waiter_is_forgotten(path: Path) -> None:
    """defects.md R116: the key comes and the waiter is cancelled in one tick; the other waiter wakes every time."""
    with fail_after(60):
        async with FileStore(path) as store:
            for index in range(60):
                key, woken = f"key{index}", []

                async def waits(scope: anyio.CancelScope, key: str = key, woken: list[bytes] = woken) -> None:
                    with scope:
                        woken.append(await store.get(key))

                async with anyio.create_task_group() as group:
                    scopes = [anyio.CancelScope() for _ in range(3)]
                    for scope in scopes:
                        group.start_soon(waits, scope)
                    await anyio.sleep(0.003)
                    await store.set(key, b"v")
                    scopes[index % 3].cancel()
                assert len(woken) >= 2
            assert store.waiting == 0


async def test_a_lease_that_is_over_writes_nothing(path: Path) -> None:
    async with FileStore(path) as store:
        async with store.lease(60) as lease:
            await lease.set("beat", b"1")
        with pytest.raises(RendezvousUsageError, match="ended"):
            await lease.set("beat", b"2")
        assert await store.peek("beat") is None
        async with store.lease(60):
            assert await store.leases("") == []


async def test_closing_with_an_open_lease_frees_it(path: Path) -> None:
    with fail_after(10):
        async with FileStore(path) as store, FileStore(path) as other, store.lease(60) as lease:
            await lease.set("beat", b"1")
            await store.aclose()
            assert await other.watch("beat", b"1") is None


async def test_one_file_is_open_per_store_and_one_per_lease(path: Path) -> None:
    """defects.md D40."""
    async with FileStore(path) as store:
        for index in range(300):
            await store.set("k", b"%d" % index * 500)
            await store.get("k")
        assert fds(path.parent) == [str(path)]
        async with store.lease(60) as one, store.lease(60) as two:
            for index in range(50):
                await one.set("one", b"%d" % index)
                await two.set("two", b"%d" % index)
            assert len(fds(path.parent)) == 3
        assert fds(path.parent) == [str(path)]
        assert os.listdir(path.parent) == ["store"]
        assert path.stat().st_size < 100_000


async def test_waiting_keeps_no_file_open(path: Path) -> None:
    async with FileStore(path) as store:
        with anyio.move_on_after(0.2):
            await store.watch("never", None)
        assert fds(path.parent) == [str(path)]


async def test_busy_shared_threads_do_not_hold_up_the_store(path: Path) -> None:
    release = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    try:
        with fail_after(10):
            async with FileStore(path) as store, anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, release.wait)
                await anyio.sleep(0.01)
                await store.set("k", b"v")
                assert await store.get("k") == b"v"
                release.set()
    finally:
        release.set()
        limiter.total_tokens = 40


async def test_the_pauses_come_from_the_generator(path: Path) -> None:
    drawn = 0

    def jitter() -> float:
        nonlocal drawn
        drawn += 1
        return 0.5

    async with FileStore(path, jitter=jitter) as store:
        with anyio.move_on_after(0.1):
            await store.watch("never", None)
    assert drawn > 2


async def test_keys_and_values_are_checked_before_anything_is_written(path: Path) -> None:
    async with FileStore(path) as store:
        size = path.stat().st_size
        with pytest.raises(TypeError):
            await store.set("k", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="list of str"):
            await store.wait("key")
        with pytest.raises(ValueError, match="ttl"):
            store.lease(0)
        assert path.stat().st_size == size
    with pytest.raises(ValueError, match="timeout"):
        FileStore(path, timeout=-1)


async def test_a_closed_store_is_closed(path: Path) -> None:
    store = FileStore(path)
    await store.aclose()
    await store.aclose()
    with pytest.raises(RendezvousConnectionError, match=f"{path} is closed"):
        await store.peek("k")
    assert not path.exists()


async def test_closing_while_a_call_is_at_work_waits_for_it(path: Path) -> None:
    with fail_after(10):
        store = FileStore(path)
        async with anyio.create_task_group() as group:

            async def writes() -> None:
                with contextlib.suppress(RendezvousConnectionError):
                    for index in range(10**6):
                        await store.set("k", b"%d" % index * 1000)

            group.start_soon(writes)
            await anyio.sleep(0.02)
            await store.aclose()
            assert fds(path.parent) == []
