"""The memory store behind a bad network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.memory import MemoryStore
from arendezvous.testing import CHECKS, Check
from arendezvous.testing.simclock import Outage, Pause
from arendezvous.testing.simplan import CALM, Weather
from arendezvous.testing.simstore import Line, SimStore
from tests.support import VIRTUAL

FAIR = Weather()


@dataclass
class Somebody:
    name: str = "n0"
    dead: bool = False


@asynccontextmanager
async def behind(
    weather: Weather = FAIR, *, outages: tuple[Outage, ...] = (), pauses: tuple[Pause, ...] = ()
) -> AsyncIterator[tuple[SimStore, MemoryStore, Somebody]]:
    inner, somebody = MemoryStore(), Somebody()
    async with anyio.create_task_group() as tasks:
        store = SimStore(inner, Line(somebody, weather, outages, pauses, Random(1)), tasks)
        yield store, inner, somebody
        tasks.cancel_scope.cancel()
    await store.dispose()


@VIRTUAL
async def test_a_call_takes_its_time_there_and_back() -> None:
    async with behind(Weather(delay=(1.0, 1.0))) as (store, inner, _):
        began = anyio.current_time()
        await store.set("key", b"value")
        assert anyio.current_time() - began == pytest.approx(2)
        assert await inner.peek("key") == b"value"


@VIRTUAL
async def test_a_lost_reply_leaves_the_caller_in_doubt() -> None:
    async with behind(Weather(lost_reply=1.0)) as (store, inner, _):
        with pytest.raises(RendezvousConnectionError):
            await store.compare_and_swap("key", b"", b"value")
        assert await inner.peek("key") == b"value"


@VIRTUAL
async def test_a_lost_request_does_nothing() -> None:
    async with behind(Weather(lost_request=1.0)) as (store, inner, _):
        with pytest.raises(RendezvousConnectionError):
            await store.add("key", 1)
        assert await inner.peek("key") is None


@VIRTUAL
async def test_what_may_be_done_twice_is_sent_again() -> None:
    async with behind(Weather(lost_request=0.7, lost_reply=0.3, patience=1000.0)) as (store, inner, _):
        for number in range(10):
            await store.set("key", b"%d" % number)
        assert store.calls > 10
        assert await inner.peek("key") == b"9"


@VIRTUAL
async def test_a_call_that_was_cancelled_on_its_way_may_land_later() -> None:
    async with behind(Weather(delay=(1.0, 1.0), late=1.0)) as (store, inner, _):
        with anyio.move_on_after(0.5):
            await store.add("key", 5)
        assert await inner.peek("key") is None
        await anyio.sleep(5)
        assert await inner.peek("key") == b"5"


@VIRTUAL
async def test_an_outage_holds_what_is_sent_until_it_heals() -> None:
    async with behind(outages=(Outage(1, 4, reset=False),)) as (store, _, _):
        await anyio.sleep_until(2)
        await store.set("key", b"")
        assert 4 <= anyio.current_time() < 4.1


@VIRTUAL
async def test_an_outage_longer_than_the_patience_is_an_error() -> None:
    async with behind(Weather(patience=2.0), outages=(Outage(1, 20, reset=False),)) as (store, _, _):
        await anyio.sleep_until(2)
        with pytest.raises(RendezvousConnectionError):
            await store.peek("key")
        assert anyio.current_time() == pytest.approx(4)


@VIRTUAL
async def test_a_paused_process_gets_no_answer_before_it_goes_on() -> None:
    async with behind(pauses=(Pause(1, 4, frozen=True),)) as (store, _, _):
        await anyio.sleep_until(0.9999)
        await store.set("key", b"value")
        assert anyio.current_time() >= 4


@VIRTUAL
async def test_the_calls_of_a_dead_process_reach_nothing_and_never_return() -> None:
    async with behind() as (store, inner, somebody):
        somebody.dead = True
        with anyio.move_on_after(100) as scope:
            await store.set("key", b"value")
        assert scope.cancelled_caught
        assert await inner.peek("key") is None


@VIRTUAL
async def test_the_lease_of_a_killed_process_ends_after_the_grace_and_that_of_a_vanished_host_after_its_time() -> None:
    for noticed, survives in ((True, False), (False, True)):
        async with behind() as (store, inner, somebody):
            async with store.lease(5.0) as lease:
                await lease.set("beat", b"1")
                somebody.dead = True
                if noticed:
                    store.drop()
                await anyio.sleep(2)
                assert (await inner.peek("beat") is not None) is survives
                await anyio.sleep(4)
                assert await inner.peek("beat") is None


@VIRTUAL
async def test_no_fault_strikes_in_the_calm() -> None:
    async with behind(Weather(lost_reply=1.0, delay=(3.0, 3.0))) as (store, _, _):
        await anyio.sleep_until(CALM)
        await store.add("key", 1)
        assert anyio.current_time() < CALM + 0.1


@VIRTUAL
@pytest.mark.parametrize("check", [check for check in CHECKS if not check.closes], ids=str)
async def test_behind_a_good_network_it_is_a_store_like_any_other(check: Check) -> None:
    inner, opened = MemoryStore(), []
    async with anyio.create_task_group() as tasks:

        @asynccontextmanager
        async def make() -> AsyncIterator[SimStore]:
            store = SimStore(inner, Line(Somebody(), Weather(delay=(0.0, 0.0)), (), (), Random(1)), tasks)
            opened.append(store)
            yield store

        await check(make)
        tasks.cancel_scope.cancel()
    for store in opened:
        await store.dispose()
