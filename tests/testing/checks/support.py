"""Runs checks on stores that are broken on purpose."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from arendezvous.testing import Check, ConformanceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from arendezvous.store.base import Store


async def complaints(checks: Iterable[Check], make: Callable[[], Store]) -> dict[str, str]:
    """Run ``checks``, each on a fresh data set, and return the message of each that fails by the name of the check."""
    failed: dict[str, str] = {}
    for check in checks:
        store = make()

        @asynccontextmanager
        async def opened(store: Store = store) -> AsyncIterator[Store]:
            yield store

        try:
            await check(opened)
        except ConformanceError as exc:
            failed[check.name] = str(exc)
    return failed
