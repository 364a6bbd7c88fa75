"""The checks of waiting catch stores that are wrong about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from arendezvous.errors import StoreTimeoutError
from arendezvous.store.memory import MemoryStore
from arendezvous.testing.checks import waits
from tests.support import VIRTUAL

from .support import complaints

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


class CountsAllAsMissing(MemoryStore):
    """Waits for as many arrivals as keys were asked for (pytorch#53840)."""

    async def wait(self, keys: Sequence[str]) -> None:
        if len(keys) > 1 and await self.check(keys[:1]):
            await super().wait([*keys, "never"])
        await super().wait(keys)


class WaitsForAny(MemoryStore):
    async def wait(self, keys: Sequence[str]) -> None:
        while keys and not any([await self.check([key]) for key in keys]):
            await anyio.sleep(0.001)


class HangsOnNothing(MemoryStore):
    async def wait(self, keys: Sequence[str]) -> None:
        if not keys:
            await anyio.sleep_forever()
        await super().wait(keys)


class DeafToAppend(MemoryStore):
    async def append(self, key: str, value: bytes) -> None:
        # Goes round the table's waiters.
        if await self.peek(key) is None and self.waiting:
            self._table._waiters.clear()
        await super().append(key, value)


class StickyLimit(MemoryStore):
    """Keeps the limit of one call for the next (pytorch#100056)."""

    def limit(self, seconds: float | None) -> AbstractContextManager[None]:
        self._timeout = seconds
        return super().limit(seconds)


class SharedLimit(MemoryStore):
    timeout: float | None = 300.0  # type: ignore[assignment]


class NamesNothing(MemoryStore):
    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except StoreTimeoutError:
            raise StoreTimeoutError("Socket Timeout") from None


class NamesEveryKey(MemoryStore):
    async def wait(self, keys: Sequence[str]) -> None:
        try:
            await super().wait(keys)
        except StoreTimeoutError as exc:
            raise StoreTimeoutError(f"{exc}: {keys}") from None


class ClaimsCallersTimeouts(MemoryStore):
    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except anyio.get_cancelled_exc_class():
            raise StoreTimeoutError(key) from None


class LosesNeighbours(MemoryStore):
    """A cancelled waiter takes the wake-up of the others along."""

    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except anyio.get_cancelled_exc_class():
            self._table._waiters.clear()
            raise


class WakesInAChain(MemoryStore):
    """The arrival of a key wakes one waiter, who wakes the next: lost if that one is cancelled meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[anyio.Event] = []

    def wake_one(self) -> None:
        if self.queue:
            self.queue.pop(0).set()

    async def set(self, key: str, value: bytes) -> None:
        await super().set(key, value)
        self.wake_one()

    async def get(self, key: str) -> bytes:
        while await self.peek(key) is None:
            event = anyio.Event()
            self.queue.append(event)
            await event.wait()
        self.wake_one()
        return await super().get(key)


class WritesLate(MemoryStore):
    async def append(self, key: str, value: bytes) -> None:
        for part in (value[:3], value[3:]):
            await super().append(key, part)


@VIRTUAL
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (CountsAllAsMissing, {"wait_for_all"}),
        (WaitsForAny, {"wait_for_all"}),
        (HangsOnNothing, {"wait_for_all"}),
        (DeafToAppend, {"get_waits"}),
        (StickyLimit, {"limit_scope"}),
        (SharedLimit, {"limit_scope", "limit_ends"}),
        (NamesNothing, {"limit_ends"}),
        (NamesEveryKey, {"limit_ends"}),
        (ClaimsCallersTimeouts, {"scopes_stay_anonymous"}),
        (LosesNeighbours, {"cancel_waits"}),
        (WakesInAChain, {"cancel_at_arrival"}),
        (WritesLate, {"cancel_writes"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_store_that_waits_wrongly_is_caught(broken: type[MemoryStore], caught: set[str]) -> None:
    assert caught <= set(await complaints(waits.CHECKS, broken))


@VIRTUAL
async def test_a_right_store_passes() -> None:
    assert await complaints(waits.CHECKS, MemoryStore) == {}
