from __future__ import annotations

from collections.abc import Callable

import anyio

from arendezvous import DynamicRendezvousHandler, MemoryStore, RendezvousParameters
from arendezvous.agent.display import Lines
from arendezvous.agent.progress import Progress
from tests.support import VIRTUAL

# A literal address: a look-up would leave virtual time.
PARAMS = RendezvousParameters("memory", "", "job", 2, 2, "127.0.0.1")


class Terminal(Lines):
    """A display that keeps each drawing of the line that changes."""

    is_live = True

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, str | None]] = []

    def wait(self, line: Callable[[int], str] | None) -> None:
        self.drawn.append((anyio.current_time(), None if line is None else line(200)))

    @property
    def now(self) -> str | None:
        return self.drawn[-1][1] if self.drawn else None


@VIRTUAL
async def test_a_node_that_waits_says_why_now_and_then_and_stops_when_it_is_in() -> None:
    lines: list[str] = []
    progress = Progress(Lines(lines.append))
    async with (
        MemoryStore() as store,
        DynamicRendezvousHandler.from_store(store, PARAMS) as handler,
        progress.tell(),
        progress.watch(handler),
        anyio.create_task_group() as tg,
    ):
        tg.start_soon(handler.next_rendezvous)
        progress.joining(handler, "here")
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
    progress = Progress(Lines(lines.append))
    params = PARAMS.replace(min_nodes=9, max_nodes=9)
    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, params) as handler:

        async def take_part() -> None:
            async with DynamicRendezvousHandler.from_store(store, params) as other:
                await other.next_rendezvous()

        async with progress.tell(), progress.watch(handler), anyio.create_task_group() as tg:
            tg.start_soon(handler.next_rendezvous)
            progress.joining(handler, "here")
            await anyio.sleep(2)
            for _ in range(5):
                tg.start_soon(take_part)
                await anyio.sleep(0.1)
            await anyio.sleep(4)
            assert len(lines) == 2
            assert "1/9" in lines[0]
            assert "6/9" in lines[1]
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_store_that_does_not_answer_is_named_soon_and_then_seldom() -> None:
    lines: list[str] = []
    progress = Progress(Lines(lines.append))
    async with progress.tell():
        progress.connecting("h:29400")
        await anyio.sleep(0.9)
        assert lines == []
        await anyio.sleep(61)
        assert lines[0] == "connecting to the store at h:29400 (1 s so far)"
        assert 2 <= len(lines) <= 3
        said = len(lines)
        progress.joined()
        await anyio.sleep(100)
        assert len(lines) == said


@VIRTUAL
async def test_at_a_terminal_one_line_counts_down_and_goes_when_the_node_is_in() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, PARAMS) as handler:
        async with progress.tell():
            progress.connecting("h:1")
            await anyio.sleep(3)
            assert terminal.now == "connecting to the store at h:1 (3 s so far)"
            async with progress.watch(handler), anyio.create_task_group() as tg:
                tg.start_soon(handler.next_rendezvous)
                progress.joining(handler, "h:1")
                assert terminal.now is None  # at once
                await anyio.sleep(10)
                assert terminal.now is not None
                assert "1 joined (min 2, max 2), gives up in 590 s" in terminal.now
                drawings = len(terminal.drawn)
                await anyio.sleep(10)
                assert 18 <= len(terminal.drawn) - drawings <= 30
                progress.joined()
                assert terminal.now is None
                drawings = len(terminal.drawn)
                await anyio.sleep(10)
                assert len(terminal.drawn) == drawings
                tg.cancel_scope.cancel()


@VIRTUAL
async def test_the_seconds_run_while_the_store_does_not_answer() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    async with MemoryStore() as store, DynamicRendezvousHandler.from_store(store, PARAMS) as handler:
        answer = handler.status

        async def slow() -> object:
            found = await answer()
            if anyio.current_time() - started > 1:
                await anyio.sleep(50)
            return found

        started = anyio.current_time()
        handler.status = slow  # type: ignore[assignment,method-assign]
        async with progress.tell(), anyio.create_task_group() as tg:
            tg.start_soon(handler.next_rendezvous)
            progress.joining(handler, "h:1")
            seen = []
            for _ in range(8):
                await anyio.sleep(5.0625)
                seen.append(terminal.now)
            assert len(set(seen)) == 8
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_an_end_leaves_no_line_behind() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    with anyio.move_on_after(5):
        async with progress.tell():
            progress.connecting("h:1")
            await anyio.sleep(100)
    assert terminal.now is None
    assert len(terminal.drawn) > 5
