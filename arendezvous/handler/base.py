"""The asynchronous handler that every backend offers (api.md A.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from ..errors import RendezvousError
from .changes import Changes
from .info import RendezvousInfo
from .rounds import Rounds

if TYPE_CHECKING:
    from types import TracebackType

    from ..params import RendezvousSettings
    from .status import RendezvousStatus

__all__ = ("RendezvousHandler",)


class RendezvousHandler(ABC):
    """One node's door to a rendezvous; an async context manager.

    Entry connects and opens the handler's task group; exit *leaves* (never closes): the others go on.

    Concurrency:
        One task at a time in :meth:`next_rendezvous`; everything else from any task of the same event loop.
    """

    #: Seconds that a finished member waits for the others (design.md section 3).
    exit_barrier: float = 300.0

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None: ...

    @property
    @abstractmethod
    def settings(self) -> RendezvousSettings:
        """What this handler was started with."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use a store that the agent serves for the round."""
        return False

    @abstractmethod
    def get_backend(self) -> str:
        """The backend's registered name."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The run."""

    @abstractmethod
    async def next_rendezvous(self) -> RendezvousInfo:
        """Join, or join again, and return this node's place in the completed round.

        Returns:
            RendezvousInfo: rank, world size, participants and the round's store; an immutable snapshot.

        Raises:
            RendezvousClosedError: the run id was closed for ever.
            RendezvousGracefulExitError: this node was a spare and the job is over.
            RendezvousTimeoutError: the join time-out ended (``RendezvousExhaustedError`` below ``min_nodes``).
            RendezvousSettingsError: the run's settings differ from this node's.
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored is damaged.
            RendezvousUsageError: another task is joining, or the handler is not entered.
            RendezvousError: another task called :meth:`leave`, or left the handler's block, meanwhile.

        Cancellation:
            Withdraws this node within a bounded second, in the handler's own task, and then goes on being cancelled.

        Concurrency:
            One caller at a time.
        """

    @abstractmethod
    async def is_closed(self) -> bool:
        """Whether the run id was closed for ever; reads, never writes.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored is damaged.

        Cancellation:
            Safe.
        """

    @abstractmethod
    async def set_closed(self) -> None:
        """Close the run id for ever and for everybody; idempotent.

        Raises:
            RendezvousTimeoutError: the close time-out ended; it may or may not have been closed.
            RendezvousConnectionError: the store cannot be reached.

        Cancellation:
            Safe: it may or may not have been closed.
        """

    @abstractmethod
    async def num_nodes_waiting(self) -> int:
        """How many reasons a member has to re-join: waiters that find a seat, plus one for a loss; never writes.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored is damaged.

        Cancellation:
            Safe.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Withdraw from the round; the others go on. Idempotent.

        Cancellation:
            The withdrawal goes on in the handler's own task, within a bounded second.
        """

    @abstractmethod
    async def status(self) -> RendezvousStatus:
        """Who is in, who is missing, what this node waits for and when that ends.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored is damaged.

        Cancellation:
            Safe.
        """

    @abstractmethod
    def changes(self) -> Changes:
        """Every change of the membership from now on; see :class:`Changes`."""

    @abstractmethod
    def fail(self, reason: str) -> None:
        """Say that the next join follows a failure of this node's work, so that the round it opens counts as one.

        Args:
            reason: What failed, for the log.
        """

    def rounds(self) -> Rounds:
        """One agreed membership after another; ends when the job is done or closed.

        Use as ``async for world in handler.rounds(): async with world: ...``. Ends silently after ``finish()`` and for
        a spare whose job ended; raises :class:`RendezvousClosedError` when the run was closed while this node still
        had work.
        """
        return Rounds(self)

    async def shutdown(self) -> bool:
        """Close the rendezvous for everybody (the documented meaning); True if it is closed.

        Cancellation:
            Safe: it may or may not have been closed.
        """
        try:
            await self.set_closed()
        except RendezvousError:
            return False
        return True

    def pre_shutdown(self) -> None:  # noqa: B027  a hook with nothing to do by default
        """Called before workers are stopped; does nothing by default."""
