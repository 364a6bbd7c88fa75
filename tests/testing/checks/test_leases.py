"""The checks of leases catch stores that are wrong about them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from arendezvous.store.base import Lease, LeaseInfo
from arendezvous.store.memory import MemoryStore
from arendezvous.testing.checks import leases
from tests.support import VIRTUAL

from .support import complaints

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager


class PlainLease:
    """Writes plain keys."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.keys: list[str] = []

    async def set(self, key: str, value: bytes) -> None:
        self.keys.append(key)
        await self.store.set(key, value)


class NeverEnds(MemoryStore):
    @asynccontextmanager
    async def lease(self, ttl: float) -> AsyncIterator[Lease]:  # type: ignore[override]
        yield PlainLease(self)


class NeverExpires(MemoryStore):
    def lease(self, ttl: float) -> AbstractAsyncContextManager[Lease]:  # type: ignore[override]
        return super().lease(ttl * 10000)


class EndsOnlyWhenClean(MemoryStore):
    @asynccontextmanager
    async def lease(self, ttl: float) -> AsyncIterator[Lease]:  # type: ignore[override]
        lease = PlainLease(self)
        yield lease
        for key in lease.keys:
            await self.delete_key(key)


class NeverRefreshes(MemoryStore):
    @asynccontextmanager
    async def lease(self, ttl: float) -> AsyncIterator[Lease]:  # type: ignore[override]
        async with super().lease(ttl) as lease:

            class Once:
                seen: dict[str, bytes] = {}  # noqa: RUF012

                async def set(_, key: str, value: bytes) -> None:
                    if key in _.seen:
                        _.seen[key] = value
                    else:
                        _.seen[key] = value
                        await lease.set(key, value)

            Once.seen = {}
            yield Once()


class OneForAll(MemoryStore):
    """Ends every lease when one ends."""

    @asynccontextmanager
    async def lease(self, ttl: float) -> AsyncIterator[Lease]:  # type: ignore[override]
        async with super().lease(ttl) as lease:
            yield lease
        for info in await self.leases(""):
            await self.delete_key(info.key)


class ListsEverything(MemoryStore):
    async def leases(self, prefix: str) -> list[LeaseInfo]:
        return [LeaseInfo(key, 0.0, 1.0, True) for key, _ in await self.scan(prefix)]


class StopsTheClock(MemoryStore):
    async def leases(self, prefix: str) -> list[LeaseInfo]:
        return [replace(info, age=0.0) for info in await super().leases(prefix)]


class TakesAnyTime(MemoryStore):
    def lease(self, ttl: float) -> AbstractAsyncContextManager[Lease]:  # type: ignore[override]
        return super().lease(ttl if ttl > 0 else 1.0)


@VIRTUAL
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (NeverEnds, {"lease_exit", "lease_failure", "lease_expiry", "lease_pairs"}),
        (NeverExpires, {"lease_expiry"}),
        (EndsOnlyWhenClean, {"lease_failure"}),
        (NeverRefreshes, {"lease_refresh", "lease_key"}),
        (OneForAll, {"lease_pairs"}),
        (ListsEverything, {"lease_list"}),
        (StopsTheClock, {"lease_list"}),
        (TakesAnyTime, {"lease_values"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_store_that_leases_wrongly_is_caught(broken: type[MemoryStore], caught: set[str]) -> None:
    assert caught <= set(await complaints(leases.CHECKS, broken))


@VIRTUAL
async def test_a_right_store_passes() -> None:
    assert await complaints(leases.CHECKS, MemoryStore) == {}
