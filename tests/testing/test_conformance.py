"""The conformance suite as a whole."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from arendezvous.store.memory import MemoryStore
from arendezvous.testing import CHECKS, ConformanceError, check_store
from tests.support import VIRTUAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from arendezvous.store.base import Store


@VIRTUAL
async def test_a_right_store_passes_the_whole_suite_on_one_data_set() -> None:
    store = MemoryStore()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        nonlocal store
        if not store._open:
            # Closing this one closes it for all: the last checks get another.
            store = MemoryStore()
        yield store

    await check_store(opened)


@VIRTUAL
async def test_the_first_difference_is_reported() -> None:
    class Broken(MemoryStore):
        async def delete_key(self, key: str) -> bool:
            await super().delete_key(key)
            return False

    store = Broken()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield store

    with pytest.raises(ConformanceError, match="delete_keys: delete_key removes a key"):
        await check_store(opened)


def test_every_check_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(len(check.sentence) > 10 and not check.sentence.endswith(".") for check in CHECKS)
    assert [check.closes for check in CHECKS] == sorted(check.closes for check in CHECKS)


def test_the_suite_needs_no_test_framework() -> None:
    code = "import sys, arendezvous.testing.conformance; print('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
