"""What an operator reads while an agent works: who is missing, which rank this node has, why a round ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ..errors import RendezvousError

if TYPE_CHECKING:
    from ..handler.base import RendezvousHandler
    from ..handler.changes import Changes
    from ..handler.rounds import Round
    from .environment import WorkerSpec

__all__ = ("Progress",)

#: A round that forms faster than this needs no line.
_PATIENCE = 1.0
#: Between two lines with news, and between two lines without.
_NEWS_GAP = 2.0
_QUIET_GAP = 30.0


class Progress:
    """Plain lines, at most one every few seconds while this node waits.

    Args:
        say: Takes each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._waiting = False
        self._turn = anyio.Event()
        self._news = anyio.Event()

    def joining(self) -> None:
        """This node waits for a round from now on."""
        self._waiting = True
        self._turn.set()

    def joined(self) -> None:
        """It is in a round, or the job is over."""
        self._waiting = False
        self._news.set()

    def started(self, world: Round, specs: Sequence[WorkerSpec]) -> None:
        """The workers of a round are about to start."""
        env = specs[0].env
        ranks = f"rank {specs[0].rank}" if len(specs) == 1 else f"ranks {specs[0].rank}-{specs[-1].rank}"
        self._say(
            f"round {world.round}: node {world.rank} of {world.world_size}, worker {ranks} of {env['WORLD_SIZE']},"
            f" master {env['MASTER_ADDR']}:{env['MASTER_PORT']}, failures {world.failures}"
        )

    def finished(self, world: Round) -> None:
        """The workers of this node have done their work."""
        if world.world_size > 1:
            self._say(f"round {world.round}: the workers of this node have finished; waiting for the other nodes")

    @asynccontextmanager
    async def watch(self, handler: RendezvousHandler) -> AsyncIterator[None]:
        """Report for as long as the block runs."""
        changes = handler.changes()
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._listen, changes)
            tg.start_soon(self._report, handler)
            yield
            tg.cancel_scope.cancel()
        await changes.aclose()

    async def _listen(self, changes: Changes) -> None:
        async for _ in changes:
            self._news.set()

    async def _report(self, handler: RendezvousHandler) -> None:
        while True:
            self._turn = anyio.Event()
            if not self._waiting:
                await self._turn.wait()
            pause = _PATIENCE
            while self._waiting:
                await self._sleep_waiting(pause)
                if not self._waiting:
                    break
                self._news = anyio.Event()  # before the look, or what happens during it is missed
                try:
                    self._say((await handler.status()).explain())
                except RendezvousError as exc:
                    self._say(str(exc))
                pause = _NEWS_GAP
                with anyio.move_on_after(_QUIET_GAP):
                    await self._news.wait()

    async def _sleep_waiting(self, seconds: float) -> None:
        """Let news collect; over at once when this node is in a round."""
        until = anyio.current_time() + seconds
        with anyio.move_on_at(until):
            while self._waiting:
                self._news = anyio.Event()
                await self._news.wait()
