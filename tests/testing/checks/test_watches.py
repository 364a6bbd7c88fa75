"""The checks of watch and scan catch stores that are wrong about them."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.store.memory import MemoryStore
from arendezvous.testing.checks import watches
from tests.support import VIRTUAL

from .support import complaints


class WaitsForTheNextChange(MemoryStore):
    """Returns on the next change instead of at once when there is news already."""

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        return await super().watch(key, await self.peek(key))


class EmptyIsMissing(MemoryStore):
    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        return await super().watch(key, held or None) or None


class BoundedWatch(MemoryStore):
    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        with self.bounded(str):
            return await super().watch(key, held)
        raise AssertionError


class DeafToDelete(MemoryStore):
    async def delete_key(self, key: str) -> bool:
        self._table._watchers.clear()
        return await super().delete_key(key)


class SleepsThroughNews(MemoryStore):
    """Loses what was written between two calls: it knows the held value from the last call instead of the argument."""

    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        value = await super().watch(key, held)
        with anyio.move_on_after(1e-9):
            await anyio.sleep_forever()
        return await super().watch(key, value) if value and value.endswith(b"5") else value


class WakesForNeighbours(MemoryStore):
    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        keys = await self.num_keys()
        while await self.num_keys() == keys and await self.peek(key) == held:
            await anyio.sleep(0.001)
        return await self.peek(key)


class LosesNeighbours(MemoryStore):
    async def watch(self, key: str, held: bytes | None) -> bytes | None:
        try:
            return await super().watch(key, held)
        except anyio.get_cancelled_exc_class():
            self._table._watchers.clear()
            raise


class ScansInOrderOfKeys(MemoryStore):
    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        return sorted(await super().scan(prefix))


class ScansGlobs(MemoryStore):
    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        import fnmatch

        return [pair for pair in await super().scan("") if fnmatch.fnmatch(pair[0], f"{prefix}*")]


@VIRTUAL
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (WaitsForTheNextChange, {"watch_at_once"}),
        (EmptyIsMissing, {"watch_at_once"}),
        (BoundedWatch, {"watch_has_no_limit"}),
        (DeafToDelete, {"watch_wakes"}),
        (SleepsThroughNews, {"watch_wakes"}),
        (WakesForNeighbours, {"watch_one_key"}),
        (LosesNeighbours, {"watch_cancelled"}),
        (ScansInOrderOfKeys, {"scan_order"}),
        (ScansGlobs, {"scan_odd"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_store_that_watches_or_scans_wrongly_is_caught(broken: type[MemoryStore], caught: set[str]) -> None:
    assert caught <= set(await complaints(watches.CHECKS, broken))


@VIRTUAL
async def test_a_right_store_passes() -> None:
    assert await complaints(watches.CHECKS, MemoryStore) == {}
