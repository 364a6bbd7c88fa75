"""The real server and client over streams that a simulation disturbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.client import TCPStore
from arendezvous.testing.simcheck import Checker
from arendezvous.testing.simclock import Outage
from arendezvous.testing.simnet import MemoryNetwork, Station, TcpNetwork
from arendezvous.testing.simplan import Weather, make_plan
from arendezvous.testing.simstore import Line
from tests.support import VIRTUAL


@dataclass
class Somebody:
    name: str
    dead: bool = False


@asynccontextmanager
async def network(lost: float = 1e9, back: float = 1e9) -> AsyncIterator[TcpNetwork]:
    async with anyio.create_task_group() as tasks:
        made = TcpNetwork(Checker(make_plan(0), []), tasks)
        tasks.start_soon(made.serve, lost, back)
        await anyio.wait_all_tasks_blocked()
        yield made
        tasks.cancel_scope.cancel()


def station(
    made: TcpNetwork | MemoryNetwork, somebody: Somebody, outages: tuple[Outage, ...] = (), **weather: float
) -> Station:
    return made.station(Line(somebody, Weather(delay=(0.01, 0.01), **weather), outages, (), Random(1)))  # type: ignore[arg-type]


@VIRTUAL
async def test_real_clients_meet_at_a_real_server() -> None:
    async with network() as made:
        one, two = station(made, Somebody("n0")), station(made, Somebody("n1"))
        async with one.open() as a, two.open() as b:
            assert isinstance(a, TCPStore)
            await a.set("key", b"value")
            assert await b.get("key") == b"value"


@VIRTUAL
async def test_a_call_takes_its_time() -> None:
    async with network() as made, station(made, Somebody("n0")).open() as store:
        began = anyio.current_time()
        await store.set("key", b"value")
        assert anyio.current_time() - began == pytest.approx(0.02)


@VIRTUAL
async def test_an_outage_holds_what_is_sent_until_it_heals() -> None:
    async with network() as made, station(made, Somebody("n0"), (Outage(1, 3, reset=False),)).open() as store:
        await anyio.sleep_until(2)
        await store.set("key", b"value")
        assert 3 <= anyio.current_time() < 3.1


@VIRTUAL
@pytest.mark.parametrize("noticed", [True, False])
async def test_a_lease_ends_sooner_when_the_server_notices_the_death_of_its_owner(noticed: bool) -> None:
    async with network() as made:
        somebody = Somebody("n0")
        mine, other = station(made, somebody), station(made, Somebody("n1"))
        async with other.open() as watcher, anyio.create_task_group() as tg:

            async def live() -> None:
                async with mine.open() as store, store.lease(5) as lease:
                    await lease.set("beat", b"1")
                    await anyio.sleep_forever()

            tg.start_soon(live)
            await watcher.get("beat")
            somebody.dead = True
            await mine.died(noticed=noticed)
            tg.cancel_scope.cancel()
        async with station(made, Somebody("n2")).open() as watcher:
            began = anyio.current_time()
            assert await watcher.watch("beat", b"1") is None
            assert (anyio.current_time() - began < 1.5) is noticed
        await mine.dispose()


@VIRTUAL
async def test_a_store_that_is_lost_comes_back_empty_with_another_epoch() -> None:
    async with network(1, 2) as made, station(made, Somebody("n0")).open() as store:
        assert isinstance(store, TCPStore)
        await store.set("key", b"value")
        await anyio.sleep_until(2.5)
        assert await store.peek("key") is None
        assert store.epoch_changes == 1


@VIRTUAL
async def test_a_reply_that_is_dropped_leaves_its_caller_in_doubt() -> None:
    async with network() as made, station(made, Somebody("n0"), lost_reply=0.5).open() as store:
        failures = 0
        for _ in range(20):
            try:
                await store.add("counter", 1)
            except RendezvousConnectionError:
                failures += 1
        assert failures
        assert 20 - failures <= int(await store.get("counter")) <= 20


@VIRTUAL
async def test_over_memory_a_reset_starts_the_grace_of_the_leases_and_its_end_stops_it() -> None:
    async with anyio.create_task_group() as tasks:
        made = MemoryNetwork(Checker(make_plan(0), []), tasks)
        mine = station(made, Somebody("n0"))
        async with mine.open() as store, store.lease(5) as lease:
            await lease.set("beat", b"1")
            tasks.start_soon(mine.outage, Outage(0, anyio.current_time() + 0.5, reset=True))
            await anyio.sleep(0.1)
            assert not (await store.leases(""))[0].attached
            await anyio.sleep(2)
            assert (await store.leases(""))[0].attached
        await mine.dispose()
        tasks.cancel_scope.cancel()
