"""Every built-in store passes the public conformance suite (that of the network is in ``test_client``)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from arendezvous.store.client import TCPStore
from arendezvous.store.file import FileStore
from arendezvous.store.memory import MemoryStore
from arendezvous.store.prefix import PrefixStore
from arendezvous.store.service import StoreService
from arendezvous.testing import CHECKS, Check, FaultyStream, memory_stream_pair
from tests.support import SLOW, VIRTUAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import ByteStream

    from arendezvous.store.base import Store
    from arendezvous.testing.conformance import MakeStore

PATIENCE = 5 * SLOW
every_check = pytest.mark.parametrize("check", CHECKS, ids=str)


def memory() -> MakeStore:
    """Everybody is given the same object."""
    store = MemoryStore()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield store

    return opened


@every_check
async def test_memory(check: Check) -> None:
    assert await check(memory(), patience=PATIENCE)


@VIRTUAL
@every_check
async def test_memory_in_virtual_time(check: Check) -> None:
    assert await check(memory())


@VIRTUAL
@every_check
async def test_prefix_in_virtual_time(check: Check) -> None:
    store = MemoryStore()
    assert await check(lambda: PrefixStore("outer", PrefixStore("in/ner:%", store)))


@every_check
async def test_file(check: Check, tmp_path: Path) -> None:
    assert await check(lambda: FileStore(tmp_path / "store"), patience=PATIENCE)


@pytest.mark.parametrize("anyio_backend", [("trio", {})], ids=["trio"], indirect=True)
@every_check
async def test_prefix_over_file(check: Check, tmp_path: Path) -> None:
    async with FileStore(tmp_path / "store") as one, FileStore(tmp_path / "store") as two:
        views = [one, two]

        def opened() -> PrefixStore:
            views.reverse()
            return PrefixStore("outer", views[0])

        assert await check(opened, patience=PATIENCE)


@VIRTUAL
@every_check
async def test_network_in_memory_when_bytes_trickle(check: Check) -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:

        async def connect() -> ByteStream:
            ours, theirs = memory_stream_pair(capacity=4096)
            tasks.start_soon(service.serve_stream, FaultyStream(theirs, chunk=4096, delay=1e-5))
            return FaultyStream(ours, chunk=1000, delay=1e-5)

        assert await check(lambda: TCPStore("net", 1, connect=connect))
