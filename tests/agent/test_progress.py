from __future__ import annotations

import anyio

from arendezvous import DynamicRendezvousHandler, MemoryStore, RendezvousParameters
from arendezvous.agent.progress import Progress
from tests.support import VIRTUAL

# A literal address: a look-up would leave virtual time.
PARAMS = RendezvousParameters("memory", "", "job", 2, 2, "127.0.0.1")


@VIRTUAL
async def test_a_node_that_waits_says_why_now_and_then_and_stops_when_it_is_in() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    async with (
        MemoryStore() as store,
        DynamicRendezvousHandler.from_store(store, PARAMS) as handler,
        progress.watch(handler),
        anyio.create_task_group() as tg,
    ):
        tg.start_soon(handler.next_rendezvous)
        progress.joining()
        await anyio.sleep(0.5)
        assert lines == []  # a round that forms at once needs no line
        await anyio.sleep(99.5)
        assert 3 <= len(lines) <= 5
        assert "1/2 nodes joined round 0 (min 2, max 2); at least 1 more must join" in lines[0]
        async with DynamicRendezvousHandler.from_store(store, PARAMS) as other:
            tg.start_soon(other.next_rendezvous)
            await anyio.sleep(0.5)
            progress.joined()
            said = len(lines)
            await anyio.sleep(100)
            assert len(lines) == said


@VIRTUAL
async def test_news_brings_a_line_but_never_more_than_one_every_two_seconds() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    params = PARAMS.replace(min_nodes=9, max_nodes=9)
    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, params) as handler:

        async def take_part() -> None:
            async with DynamicRendezvousHandler.from_store(store, params) as other:
                await other.next_rendezvous()

        async with progress.watch(handler), anyio.create_task_group() as tg:
            tg.start_soon(handler.next_rendezvous)
            progress.joining()
            await anyio.sleep(2)
            for _ in range(5):
                tg.start_soon(take_part)
                await anyio.sleep(0.1)
            await anyio.sleep(4)
            assert len(lines) == 2
            assert "1/9" in lines[0]
            assert "6/9" in lines[1]
            tg.cancel_scope.cancel()
