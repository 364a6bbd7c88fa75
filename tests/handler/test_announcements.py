"""The announcement area."""

from __future__ import annotations

import logging

import anyio
import pytest

from arendezvous.core.state import AgreedSettings, Kind, Record
from arendezvous.errors import RendezvousConnectionError
from arendezvous.handler.announcements import Announcements
from arendezvous.handler.keys import Keys
from arendezvous.node import NodeDesc
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Line
from tests.support import fail_after

EPOCH = b"\7" * 16
KEYS = Keys("run")


def join(n: int, seq: int = 1) -> Record:
    inc = bytes([n]) * 16
    return Record(inc, seq, Kind.JOIN, NodeDesc(f"host{n}", n, 0, inc), AgreedSettings(1, 2))


async def test_records_come_back_in_the_order_in_which_they_were_written() -> None:
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        records = [join(3), join(1), join(2), Record(b"\3" * 16, 2, Kind.LEAVE)]
        for record in records:
            await area.append(EPOCH, 0, record)
        assert list(await area.read(EPOCH, 0)) == records
        assert list(await Announcements(store, KEYS).read(EPOCH, 0)) == records


async def test_repeating_an_announcement_changes_nothing_and_a_later_intent_stands_beside_it() -> None:
    """protocol.md F4: a LEAVE cannot be overwritten by a JOIN that arrives late."""
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        leave = Record(b"\1" * 16, 2, Kind.LEAVE)
        await area.append(EPOCH, 0, leave)
        await area.append(EPOCH, 0, join(1, seq=1))
        await area.append(EPOCH, 0, join(1, seq=1))
        assert list(await area.read(EPOCH, 0)) == [leave, join(1, seq=1)]


async def test_generations_and_histories_are_apart() -> None:
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        await area.append(EPOCH, 1, join(1))
        await area.append(EPOCH, 10, join(2))
        await area.append(b"\x08" * 16, 1, join(3))
        assert list(await area.read(EPOCH, 1)) == [join(1)]
        assert list(await area.read(EPOCH, 10)) == [join(2)]
        assert list(await area.read(EPOCH, 2)) == []


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"GET / HTTP/1.0"])
async def test_a_damaged_record_is_reported_once_and_skipped(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """One bad writer stops nobody."""
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        await store.set(KEYS.record(EPOCH, 0, b"\x09" * 16, 1), garbage)
        await area.append(EPOCH, 0, join(1))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert list(await area.read(EPOCH, 0)) == [join(1)]
    assert len([r for r in caplog.records if "skipping" in r.getMessage()]) == 1


async def test_the_bell_rings_with_each_announcement_and_wakes_who_waits() -> None:
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        assert await area.bell() is None
        heard = []

        async def listen() -> None:
            heard.append(await area.rung(None))
            heard.append(await area.rung(heard[0]))

        with fail_after(5):
            async with anyio.create_task_group() as tg:
                tg.start_soon(listen)
                await anyio.wait_all_tasks_blocked()
                await area.append(EPOCH, 0, join(1))
                await anyio.wait_all_tasks_blocked()
                await area.append(EPOCH, 0, join(2))
        assert heard == [b"1", b"2"]
        assert await area.bell() == b"2"


async def test_a_bell_that_did_not_ring_costs_no_announcement() -> None:
    async with MemoryStore() as store:
        line = Line(store)

        async def silent(name: str, args: tuple) -> None:
            if name == "add":
                raise RendezvousConnectionError("lost")

        line.gate = silent
        await Announcements(line, KEYS).append(EPOCH, 0, join(1))  # type: ignore[arg-type]
        assert list(await Announcements(store, KEYS).read(EPOCH, 0)) == [join(1)]


async def test_an_old_generation_is_forgotten_and_nothing_else() -> None:
    """protocol.md P10."""
    async with MemoryStore() as store:
        area = Announcements(store, KEYS)
        for gen in (0, 1):
            await area.append(EPOCH, gen, join(1))
        await area.forget(EPOCH, 0)
        assert list(await area.read(EPOCH, 0)) == []
        assert list(await area.read(EPOCH, 1)) == [join(1)]
        await area.forget(EPOCH, -1)
        assert len(await store.scan(KEYS.prefix)) == 2  # a record and the bell


async def test_forgetting_is_best_effort() -> None:
    async with MemoryStore() as store:
        line = Line(store)
        await Announcements(store, KEYS).append(EPOCH, 0, join(1))

        async def fail(name: str, args: tuple) -> None:
            raise RendezvousConnectionError("down")

        line.gate = fail
        await Announcements(line, KEYS).forget(EPOCH, 0)  # type: ignore[arg-type]
