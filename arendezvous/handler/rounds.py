"""``handler.rounds()``: one agreed membership after another, each a block that ends when the membership does.

Measured on asyncio, uvloop and trio (design.md section 6): a class with ``__anext__`` and never an async generator; the
round's cancel scope is entered in the *user's* task; leaving runs in the handler's own task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import anyio

from ..errors import (
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    RendezvousUsageError,
)

if TYPE_CHECKING:
    from types import TracebackType

    from ..node import NodeDesc
    from ..store.base import Store
    from .base import RendezvousHandler
    from .changes import MembershipChange
    from .info import RendezvousInfo, RendezvousStoreInfo

__all__ = ("Round", "RoundKeeper", "Rounds")


class Rounds:
    """The iterator behind ``handler.rounds()``.

    Cancellation:
        Cancelling an iteration withdraws the node, as :meth:`RendezvousHandler.next_rendezvous` does.

    Concurrency:
        One consumer.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._last: Round | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Round:
        if self._last is not None and self._last.is_finished:
            raise StopAsyncIteration
        try:
            info = await self._handler.next_rendezvous()
        except RendezvousGracefulExitError:
            raise StopAsyncIteration from None
        keeper = self._handler if isinstance(self._handler, RoundKeeper) else None
        self._last = Round(info, keeper, exit_barrier=self._handler.exit_barrier)
        return self._last


class RoundKeeper(ABC):
    """What a handler with a changing membership offers to its rounds."""

    @abstractmethod
    def attach(self, world: Round) -> None:
        """From now on ``world`` is told when its membership ends."""

    @abstractmethod
    def detach(self, world: Round) -> None:
        """``world`` is over."""

    @abstractmethod
    def mark_finished(self) -> None:
        """This member's work is done."""

    @abstractmethod
    async def released(self, limit: float) -> str:
        """Wait until this finished member owes nothing any more; return why.

        Args:
            limit: Longest wait in seconds.

        Cancellation:
            Safe: the member stays finished.
        """


class Round:
    """One completed round: everything of :class:`RendezvousInfo`, and a block that ends with the membership.

    Used as ``async with world:``. The body is cancelled when a member is lost or leaves, or newcomers wait, and the
    block then ends without an error; ``world.ended`` says why. A body that returns without :meth:`finish` joins again.

    Args:
        info: The snapshot.
        keeper: Tells this round when its membership ends; None where it never does.
        exit_barrier: Seconds that a finished member waits for the others.

    Attributes:
        info: The snapshot.
        ended: Why the membership ended; None while it holds.
    """

    def __init__(self, info: RendezvousInfo, keeper: RoundKeeper | None, *, exit_barrier: float) -> None:
        self.info = info
        self.ended: MembershipChange | None = None
        self.is_finished = False
        self.outcome = ""
        self._keeper = keeper
        self._exit_barrier = exit_barrier
        self._scope: anyio.CancelScope | None = None
        self._error: RendezvousError | None = None
        self._barriers: dict[str, int] = {}
        if keeper is not None:
            keeper.attach(self)

    @property
    def store(self) -> Store:
        """A store of this round alone."""
        return self.info.store

    @property
    def rank(self) -> int:
        """This node's rank in ``[0, world_size)``."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """Number of nodes in the round."""
        return self.info.world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """Rank 0's address and port for this round."""
        return self.info.bootstrap_store_info

    @property
    def participants(self) -> tuple[NodeDesc, ...]:
        """Every member in rank order."""
        return self.info.participants

    @property
    def wait_list(self) -> tuple[NodeDesc, ...]:
        """Who waited for a seat when the round was read."""
        return self.info.wait_list

    @property
    def round(self) -> int:
        """Number of the round."""
        return self.info.round

    @property
    def failures(self) -> int:
        """How many rounds of the run a failure opened."""
        return self.info.failures

    def release_port(self) -> None:
        """Rank 0: free the reserved bootstrap port for the worker that will listen on it; idempotent."""
        self.info.release_port()

    def finish(self) -> None:
        """This node's work is done: no further round for it. Idempotent.

        The heartbeat goes on; leaving the block waits until every member has finished or is lost, at most the exit
        barrier. It is announced at once, so others learn of it before this block ends.
        """
        if not self.is_finished:
            self.is_finished = True
            if self._keeper is not None:
                self._keeper.mark_finished()

    def end(self, change: MembershipChange, error: RendezvousError | None = None) -> None:
        """The membership is over: cancel the body, unless its work is done.

        Args:
            change: Why; the first one counts.
            error: What the block raises, when the membership was lost rather than changed.
        """
        if self.ended is None:
            self.ended, self._error = change, error
            if self._scope is not None and not self.is_finished:
                self._scope.cancel()

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            raise RendezvousUsageError("A round is entered once; the next one comes from rounds().")
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        if self.ended is not None:
            self._scope.cancel()  # it ended before the block began
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        assert self._scope is not None  # __aexit__ follows __aenter__
        swallow = self._scope.__exit__(exc_type, exc, tb)
        try:
            # The user's own exception wins over anything that happened in the background.
            if exc is None or swallow:
                if self._error is not None and not self.is_finished:
                    raise self._error
                if self.is_finished and self._keeper is not None:
                    self.outcome = await self._keeper.released(self._exit_barrier)
        finally:
            self.info.release_port()
            if self._keeper is not None:
                self._keeper.detach(self)
        return swallow

    async def barrier(self, name: str, timeout: float | None = None) -> None:
        """Wait until every member of this round has called ``barrier(name)`` as often as this node has.

        Args:
            name: Any text; the same on all members.
            timeout: Seconds to wait; None = until the round ends.

        Raises:
            RendezvousTimeoutError: the time-out ended; the message names the missing members.
            RendezvousConnectionError: the store cannot be reached.
            ValueError: ``timeout`` is not positive.

        Cancellation:
            Safe; this node's arrival stays counted.
        """
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be positive seconds or None, not {timeout!r}")
        turn = self._barriers[name] = self._barriers.get(name, 0) + 1
        prefix = f"barrier/{turn}/{name}/"
        await self.store.set(f"{prefix}in/{self.rank}", b"")
        with anyio.move_on_after(math.inf if timeout is None else timeout):
            if await self.store.add(f"{prefix}count", 1) >= self.world_size:
                await self.store.set(f"{prefix}open", b"1")
            await self.store.watch(f"{prefix}open", None)
            return
        there = {int(key.rsplit("/", 1)[1]) for key, _ in await self.store.scan(f"{prefix}in/")}
        missing = [f"rank {k} ({node!r})" for k, node in enumerate(self.participants) if k not in there]
        raise RendezvousTimeoutError(
            f"Barrier {name!r} of round {self.round}: {len(there)} of {self.world_size} members arrived within "
            f"{timeout:g} s; missing: {', '.join(missing) or 'nobody, it opened late'}."
        )
