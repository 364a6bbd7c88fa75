"""The checks of opening and closing catch stores that are wrong about them."""

from __future__ import annotations

import pytest

from arendezvous.errors import RendezvousUsageError
from arendezvous.store.memory import MemoryStore
from arendezvous.testing.checks import lifecycle
from tests.support import VIRTUAL

from .support import complaints


class LeavesCallsHanging(MemoryStore):
    async def aclose(self) -> None:
        self._open = False


class ClosesOnce(MemoryStore):
    async def aclose(self) -> None:
        if not self._open:
            raise RendezvousUsageError("closed twice")
        await super().aclose()


class StaysOpen(MemoryStore):
    async def peek(self, key: str) -> bytes | None:
        return self._table.get(key.encode())


class IsNowhere(MemoryStore):
    endpoint = ""  # type: ignore[assignment]


@VIRTUAL
@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (LeavesCallsHanging, {"closing"}),
        (ClosesOnce, {"closing"}),
        (StaysOpen, {"closing"}),
        (IsNowhere, {"describes_itself"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_store_that_closes_wrongly_is_caught(broken: type[MemoryStore], caught: set[str]) -> None:
    assert caught <= set(await complaints(lifecycle.CHECKS, broken))


@VIRTUAL
async def test_a_right_store_passes() -> None:
    assert await complaints(lifecycle.CHECKS, MemoryStore) == {}
