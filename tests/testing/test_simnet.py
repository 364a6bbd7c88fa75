"""Both networks of the simulations carry a real store, and a death is seen on the store's side or is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import anyio
import pytest

from arendezvous.testing.simcheck import Checker
from arendezvous.testing.simnet import MemoryNetwork, Network, TcpNetwork
from arendezvous.testing.simplan import Weather, make_plan
from arendezvous.testing.simstore import Line
from tests.support import VIRTUAL, fail_after


@dataclass
class Somebody:
    name: str = "n0"
    dead: bool = False


@asynccontextmanager
async def network(kind: str) -> AsyncIterator[Network]:
    check = Checker(make_plan(1), [])
    async with anyio.create_task_group() as tasks:
        if kind == "memory":
            yield MemoryNetwork(check, tasks)
        else:
            net = TcpNetwork(check, tasks)
            tasks.start_soon(net.serve, 1000.0, 1001.0)
            await anyio.wait_all_tasks_blocked()
            yield net
        tasks.cancel_scope.cancel()


def line(process: Somebody, seed: int) -> Line:
    return Line(process, Weather(), (), (), Random(seed))


@VIRTUAL
@pytest.mark.parametrize("kind", ["memory", "tcp"])
async def test_two_stations_reach_one_store(kind: str) -> None:
    async with network(kind) as net:
        one, two = net.station(line(Somebody("n0"), 1)), net.station(line(Somebody("n1"), 2))
        with fail_after(60):
            async with one.open() as store, two.open() as other:
                await store.set("k", b"v")
                assert await other.get("k") == b"v"
        await one.dispose()
        await two.dispose()


@VIRTUAL
@pytest.mark.parametrize("kind", ["memory", "tcp"])
async def test_a_death_that_is_noticed_ends_a_lease_after_the_grace(kind: str) -> None:
    async with network(kind) as net:
        dying = Somebody("n0")
        one, two = net.station(line(dying, 1)), net.station(line(Somebody("n1"), 2))
        with fail_after(60):
            async with two.open() as other:
                async with anyio.create_task_group() as tasks:

                    async def live() -> None:
                        async with one.open() as store, store.lease(30) as lease:
                            await lease.set("beat", b"1")
                            await anyio.sleep_forever()

                    tasks.start_soon(live)
                    assert await other.get("beat") == b"1"
                    before = anyio.current_time()
                    dying.dead = True
                    await one.died(noticed=True)
                    assert await other.watch("beat", b"1") is None
                    assert anyio.current_time() - before < 5  # virtual seconds: the grace, not the thirty of the lease
                    tasks.cancel_scope.cancel()
        await one.dispose()
        await two.dispose()
