"""Beating and watching."""

from __future__ import annotations

import logging
import struct

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.handler.entropy import SystemEnvironment
from arendezvous.handler.heartbeat import Heart, Observer
from arendezvous.handler.keys import Keys
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Line, Skewed
from tests.support import VIRTUAL, fail_after

KEYS = Keys("run")
ME, YOU = b"\1" * 16, b"\2" * 16


def heart(
    *, interval: float = 1.0, timeout: float = 0.5, nonce: bytes = b"nonce678", late: list[float] | None = None
) -> Heart:
    def note() -> None:
        if late is not None:
            late.append(anyio.current_time())

    return Heart(SystemEnvironment(), KEYS, ME, interval=interval, timeout=timeout, nonce=lambda: nonce, late=note)


def count(value: bytes) -> int:
    number: int = struct.unpack(">Q8s", value)[0]
    return number


@VIRTUAL
async def test_a_beat_is_a_counter_of_constant_size_with_the_nonce_last_seen() -> None:
    """D6: no instant; O(1) bytes however large the world is."""
    async with MemoryStore() as store, store.lease(10) as lease:
        mine = heart()
        await mine.beat(lease)
        first = await store.get(KEYS.beat(ME))
        await mine.beat(lease)
        second = await store.get(KEYS.beat(ME))
    assert len(first) == len(second) == 16
    assert count(second) == count(first) + 1
    assert first[8:] == b"nonce678"


@VIRTUAL
async def test_beats_come_once_per_interval_whatever_each_one_takes() -> None:
    """D36: a cadence of its own, without drift."""
    async with MemoryStore() as store:
        line = Line(store)

        async def slow(name: str, args: tuple) -> None:
            if name == "lease_set":
                await anyio.sleep(0.3)

        line.gate = slow
        async with line.lease(10) as lease:
            with anyio.move_on_after(10.5):
                await heart().run(lease)
        assert sum(name == "lease_set" for name, _ in line.calls) == 10


@VIRTUAL
@pytest.mark.parametrize(
    "error", [RendezvousConnectionError("the store is away"), MemoryError("bad_alloc"), OSError(104, "reset")], ids=repr
)
async def test_a_beat_that_fails_is_logged_and_counted_and_the_next_one_is_sent(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """D48, R52, R97: also for an error that no store of ours raises."""
    async with MemoryStore() as store:
        line = Line(store)
        failing = True

        async def fail(name: str, args: tuple) -> None:
            if name == "lease_set" and failing:
                raise error

        line.gate = fail
        mine = heart()
        async with line.lease(10) as lease, anyio.create_task_group() as tg:
            with caplog.at_level(logging.WARNING):
                tg.start_soon(mine.run, lease)
                await anyio.sleep(2.5)
                failing = False
                await anyio.sleep(1)
            assert await store.peek(KEYS.beat(ME)) is not None
            tg.cancel_scope.cancel()
    assert mine.failed == 2
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert str(error) in caplog.records[1].getMessage()
    assert "2 so far" in caplog.records[1].getMessage()


@VIRTUAL
async def test_a_beat_that_hangs_is_given_up_after_its_timeout() -> None:
    """D29: the heartbeat time-out bounds it, not the store's own."""
    async with MemoryStore() as store:
        line = Line(store)
        mine = heart()
        async with line.lease(10) as lease:
            line.cut()
            began = anyio.current_time()
            with pytest.raises(RendezvousConnectionError, match=r"0\.5 s"):
                await mine.beat(lease)
            assert anyio.current_time() - began == pytest.approx(0.5)
            line.mend()


@VIRTUAL
async def test_a_pause_longer_than_an_interval_is_noticed_and_is_not_made_up_for() -> None:
    """P7: after a gap of its own an observer starts its clocks again; R94: late, not silent for good."""
    late: list[float] = []
    clock = Skewed()
    async with MemoryStore() as store, store.lease(1000) as lease, anyio.create_task_group() as tg:
        mine = Heart(
            clock, KEYS, ME, interval=1, timeout=1, nonce=lambda: b"", late=lambda: late.append(anyio.current_time())
        )
        tg.start_soon(mine.run, lease)
        await anyio.sleep(3.5)
        before = count(await store.get(KEYS.beat(ME)))
        assert not late
        clock.offset += 60  # the process was suspended for a minute
        await anyio.sleep(3)
        assert len(late) == 1
        assert count(await store.get(KEYS.beat(ME))) - before <= 4
        tg.cancel_scope.cancel()


def observer(store: MemoryStore, changes: list[float], nonces: list[bytes]) -> Observer:
    return Observer(
        SystemEnvironment(),
        store,
        KEYS,
        changed=lambda: changes.append(anyio.current_time()),
        differs=nonces.append,
    )


@VIRTUAL
async def test_watching_sees_progress_absence_and_the_neighbours_nonce() -> None:
    """R92: alive is whose value advances, on the observer's own clock."""
    nonces: list[bytes] = []
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        watcher = observer(store, [], nonces)
        watcher.follow({YOU}, tg)
        await anyio.sleep(1)
        assert watcher.sightings[YOU].absent is not None
        assert watcher.silent(1.0) == {YOU}
        await store.set(KEYS.beat(YOU), struct.pack(">Q8s", 1, b"abcdefgh"))
        await anyio.sleep(1)
        first = watcher.sightings[YOU]
        assert first.absent is None
        assert not first.moved
        await store.set(KEYS.beat(YOU), struct.pack(">Q8s", 2, b"abcdefgi"))
        await anyio.sleep(1)
        second = watcher.sightings[YOU]
        assert second.moved
        assert second.progressed > first.progressed
        assert watcher.silent(1.0) == set()
        await anyio.sleep(1)
        assert watcher.silent(1.0) == {YOU}  # missed a beat and a half
        await store.delete_key(KEYS.beat(YOU))
        await anyio.sleep(0.1)
        assert watcher.sightings[YOU].absent is not None
        tg.cancel_scope.cancel()
    assert nonces == [b"abcdefgh", b"abcdefgi"]


@VIRTUAL
async def test_following_others_forgets_who_is_no_longer_followed() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        watcher = observer(store, [], [])
        watcher.follow({ME, YOU}, tg)
        await anyio.sleep(0.1)
        assert store.waiting == 2
        watcher.follow({YOU}, tg)
        watcher.follow({YOU}, tg)
        await anyio.sleep(0.1)
        assert store.waiting == 1
        assert set(watcher.sightings) == {YOU}
        watcher.follow(set(), tg)
        with fail_after(5):
            await anyio.sleep(0.1)
        assert store.waiting == 0


@VIRTUAL
async def test_a_restarted_observer_judges_from_now_on() -> None:
    async with MemoryStore() as store, anyio.create_task_group() as tg:
        watcher = observer(store, [], [])
        await store.set(KEYS.beat(YOU), b"x")
        watcher.follow({YOU, ME}, tg)
        await anyio.sleep(30)
        watcher.restart()
        assert watcher.silent(1.0) == {ME}  # a key that is missing is missing
        assert watcher.sightings[YOU].since == watcher.sightings[YOU].progressed == anyio.current_time()
        assert watcher.sightings[ME].absent == anyio.current_time()
        tg.cancel_scope.cancel()


@VIRTUAL
async def test_asking_the_store_tells_a_dropped_connection_from_a_live_one() -> None:
    """P5.6: a hint of a death holds a completion."""
    async with MemoryStore() as store, store.lease(10) as lease:
        watcher = observer(store, [], [])
        await watcher.verify([YOU])
        assert watcher.sightings[YOU].absent is not None
        await lease.set(KEYS.beat(YOU), b"1")
        await watcher.verify([YOU])
        assert watcher.sightings[YOU].absent is None
        store.drop(lease)
        await watcher.verify([YOU])
        assert watcher.sightings[YOU].dropped
        await lease.set(KEYS.beat(YOU), b"2")
        await watcher.verify([YOU])
        assert not watcher.sightings[YOU].dropped
