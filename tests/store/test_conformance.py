"""The public conformance suite on the memory store and the network store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from arendezvous.store.client import TCPStore
from arendezvous.store.memory import MemoryStore
from arendezvous.store.server import TCPStoreServer
from arendezvous.store.service import StoreService
from arendezvous.testing.conformance import CHECKS, PATIENCE, Check
from arendezvous.testing.streams import memory_stream_pair
from tests.support import SLOW, VIRTUAL

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from arendezvous.store.base import Store

pytestmark = pytest.mark.parametrize("check", CHECKS, ids=str)


async def test_the_network_store_conforms_over_tcp(check: Check) -> None:
    async with TCPStoreServer() as server:

        @asynccontextmanager
        async def make() -> AsyncIterator[Store]:
            async with TCPStore("127.0.0.1", server.port) as store:
                yield store

        await check(make, patience=PATIENCE * SLOW)


@VIRTUAL
async def test_the_network_store_conforms_in_memory(check: Check) -> None:
    async with StoreService() as service, anyio.create_task_group() as tasks:

        async def connect() -> ByteStream:
            ours, theirs = memory_stream_pair()
            tasks.start_soon(service.serve_stream, theirs)
            return ours

        @asynccontextmanager
        async def make() -> AsyncIterator[Store]:
            async with TCPStore("net", 1, connect=connect) as store:
                yield store

        await check(make)
