"""What happens to a node, for monitoring: one event and one log line per transition (defects.md D50)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ..events import NodeState, construct_and_record_rdzv_event

if TYPE_CHECKING:
    from ..node import NodeDesc
    from .changes import MembershipChange
    from .info import RendezvousInfo

__all__ = ("Recorder", "record_hosting")

logger = logging.getLogger(__name__)

#: How a change of the membership reads as the state of a node.
_STATES = {
    "joined": NodeState.STARTING,
    "waiting": NodeState.STARTING,
    "completed": NodeState.RUNNING,
    "left": NodeState.STOPPED,
    "lost": NodeState.UNHEALTHY,
    "evicted": NodeState.UNHEALTHY,
    "closed": NodeState.CLOSED,
}


class Recorder:
    """Records what one handler does and is told.

    Args:
        run_id: The run.

    Attributes:
        endpoint: Where the store is, once it was reached.
        node: The handler's node, once it has one.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.endpoint = ""
        self.node: NodeDesc | None = None

    def change(self, change: MembershipChange) -> None:
        """A change of the membership, as this node was told it."""
        self._record(_STATES[change.kind], change.kind, f"round {change.round}: {change.reason}", logging.DEBUG)

    def joining(self) -> None:
        """This node asks for a place."""
        self._record(NodeState.INITIALIZED, "joining", f"{self.node!r} joins")

    def joined(self, info: RendezvousInfo) -> None:
        """This node has one."""
        text = f"{self.node!r} is rank {info.rank} of {info.world_size} in round {info.round}"
        self._record(NodeState.RUNNING, "rank", text, rank=info.rank)

    def failed(self, what: str, error: BaseException) -> None:
        """Something ended in an error; called while it is handled. Its caller gets it, so the log only notes it."""
        self._record(NodeState.FAILED, what, f"{what} failed: {type(error).__name__}: {error}")

    def closed(self) -> None:
        """This node has closed the run id."""
        self._record(NodeState.CLOSED, "closing", f"{self.node!r} has closed the rendezvous")

    def finished(self, why: str) -> None:
        """This node's work is done and it owes nothing any more."""
        self._record(NodeState.SUCCEEDED, "finished", f"{self.node!r} has finished: {why}")

    def stopped(self) -> None:
        """The handler's block is over."""
        self._record(NodeState.STOPPED, "stopped", f"{self.node!r} has stopped")

    def _record(
        self, state: NodeState, name: str, text: str, level: int = logging.INFO, rank: int | None = None
    ) -> None:
        logger.log(level, "%s: %s", self._run_id, text)
        construct_and_record_rdzv_event(
            state,
            self._run_id,
            text,
            name=name,
            master_endpoint=self.endpoint,
            rank=rank,
            local_id=None if self.node is None else self.node.local_id,
        )


def record_hosting(run_id: str, endpoint: str) -> None:
    """This process serves the store of a run."""
    logger.info("%s: process %d hosts the rendezvous TCP store at %s", run_id, os.getpid(), endpoint)
    construct_and_record_rdzv_event(
        NodeState.INITIALIZED,
        run_id,
        f"Process {os.getpid()} hosts the rendezvous TCP store.",
        name="hosting",
        master_endpoint=endpoint,
    )
