"""What an operator reads while an agent works: who is missing, which rank this node has, why a round ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from .waiting import Connecting, Joining

if TYPE_CHECKING:
    from ..handler.base import RendezvousHandler
    from ..handler.changes import Changes
    from ..handler.rounds import Round
    from .display import Display
    from .environment import WorkerSpec
    from .waiting import Waiting

__all__ = ("Progress",)

#: What is over sooner needs no line in a log.
_PATIENCE = 1.0
#: Between two lines with news, and between two lines without.
_NEWS_GAP = 2.0
_QUIET_GAP = 30.0
#: The same for a line that changes: until it appears, from one drawing to the next, between two looks at the store.
_LIVE_PATIENCE = 0.3
_TICK = 0.5
_LIVE_GAP = 5.0


class _Wait:
    """One wait, and the scope of telling about it."""

    def __init__(self, what: Waiting) -> None:
        self.what = what
        self.scope = anyio.CancelScope()


class Progress:
    """Tells while this node waits: in a log at most one line every few seconds, at a terminal one line that changes.

    Args:
        display: Where to.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._wait: _Wait | None = None
        self._turn = anyio.Event()
        self._news = anyio.Event()

    def connecting(self, endpoint: str) -> None:
        """The store has not answered yet."""
        self._begin(Connecting(endpoint))

    def joining(self, handler: RendezvousHandler, endpoint: str) -> None:
        """This node waits for a round from now on."""
        self._begin(Joining(handler, endpoint))

    def joined(self) -> None:
        """It is in a round, or the job is over."""
        self._end()

    def started(self, world: Round, specs: Sequence[WorkerSpec]) -> None:
        """The workers of a round are about to start."""
        env = specs[0].env
        ranks = f"rank {specs[0].rank}" if len(specs) == 1 else f"ranks {specs[0].rank}-{specs[-1].rank}"
        self._display.news(
            f"round {world.round}: node {world.rank} of {world.world_size}, worker {ranks} of {env['WORLD_SIZE']},"
            f" master {env['MASTER_ADDR']}:{env['MASTER_PORT']}, failures {world.failures}"
        )

    def finished(self, world: Round, handler: RendezvousHandler, endpoint: str) -> None:
        """The workers of this node have done their work."""
        if world.world_size > 1:
            self._display.news(
                f"round {world.round}: the workers of this node have finished; waiting for the other nodes"
            )
            if self._display.is_live:  # a log need not hear that work goes on
                self._begin(Joining(handler, endpoint))

    @asynccontextmanager
    async def tell(self) -> AsyncIterator[None]:
        """Tell for as long as the block runs."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._tell)
            try:
                yield
            finally:
                self._end()
                tg.cancel_scope.cancel()

    @asynccontextmanager
    async def watch(self, handler: RendezvousHandler) -> AsyncIterator[None]:
        """Hear of news from a handler for as long as the block runs."""
        changes = handler.changes()
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._listen, changes)
            yield
            tg.cancel_scope.cancel()
        await changes.aclose()

    def _begin(self, what: Waiting) -> None:
        self._end()
        self._wait = _Wait(what)
        self._turn.set()

    def _end(self) -> None:
        """At once, and not when the telling task runs next: the workers may write from now on."""
        if self._wait is not None:
            self._wait.scope.cancel()
            self._wait = None
            self._display.wait(None)

    async def _listen(self, changes: Changes) -> None:
        async for _ in changes:
            self._news.set()

    async def _tell(self) -> None:
        while True:
            wait = self._wait
            if wait is None:
                self._turn = anyio.Event()
                await self._turn.wait()
                continue
            with wait.scope:
                if self._display.is_live:
                    await self._tell_live(wait)
                else:
                    await self._tell_log(wait.what)

    async def _tell_log(self, what: Waiting) -> None:
        pause = _PATIENCE
        while True:
            await anyio.sleep(pause)
            self._news = anyio.Event()  # before the look, or what happens during it is missed
            await what.look()
            self._display.news(what.sentence())
            pause = _NEWS_GAP
            with anyio.move_on_after(_QUIET_GAP):
                await self._news.wait()

    async def _tell_live(self, wait: _Wait) -> None:
        await anyio.sleep(_LIVE_PATIENCE)
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._draw, wait)
            while True:
                self._news = anyio.Event()
                await wait.what.look()
                self._show(wait)
                await anyio.sleep(_TICK)
                with anyio.move_on_after(_LIVE_GAP):
                    await self._news.wait()

    async def _draw(self, wait: _Wait) -> None:
        """Apart from the looks: those may take long, and the seconds run meanwhile."""
        while True:
            self._show(wait)
            await anyio.sleep(_TICK)

    def _show(self, wait: _Wait) -> None:
        if wait is self._wait:  # it may have ended in the instant in which this task was woken
            self._display.wait(wait.what.line)
