"""How a node's wish ends when it does not come true: the error that says who, what, how long and what to do (D52)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ops import Action
from ..core.state import AgreedSettings, RendezvousState
from ..endpoint import parse_rendezvous_endpoint
from ..errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousExhaustedError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
)
from ..node import NodeDesc
from ..store.hosting import is_loopback

__all__ = ("Ending", "leaf")


@dataclass(frozen=True, slots=True)
class Ending:
    """What there is to say about an end.

    Attributes:
        run_id: The run.
        endpoint: Where its store is.
        node: The node that wanted in.
        settings: What it asked for.
        join: Its join time-out in seconds.
        waited: Seconds it has waited.
        reason: The decision's sentence.
        state: The state last read.
    """

    run_id: str
    endpoint: str
    node: NodeDesc
    settings: AgreedSettings
    join: float
    waited: float
    reason: str
    state: RendezvousState | None

    def error(self, action: Action) -> RendezvousError:
        """The error for a decision that ends a join."""
        run = f"rendezvous {self.run_id!r} at {self.endpoint}"
        if action is Action.CLOSED:
            return RendezvousClosedError(
                f"The {run} was closed for ever and takes no further participants; use a fresh run id "
                f"(waited {self.waited:.1f} s)."
            )
        if action is Action.GRACEFUL:
            return RendezvousGracefulExitError(f"The {run} is over: {self.reason}.")
        if action is Action.MISMATCH:
            return RendezvousSettingsError(
                f"This node does not fit the {run}. {self.reason}. Start every node with the same settings."
            )
        state = self.state
        detail = f"{run}: {self.reason}; waited {self.waited:.1f} s as {self.node}"
        if state is not None and state.nodes:
            detail += f"; here: {state.names(list(state.ring))}"
        if self.settings.max_nodes > 1 and _only_this_host(self.endpoint):
            detail += "; the endpoint is a loopback address, which nodes on other hosts cannot reach"
        if state is None or len(state.live) < self.settings.min_nodes:
            return RendezvousExhaustedError(self.settings, f"{self.join:g} s", detail)
        return RendezvousTimeoutError(f"The join time-out of {self.join:g} s ended. {detail}")


def _only_this_host(endpoint: str) -> bool:
    try:
        host, _ = parse_rendezvous_endpoint(endpoint, 0)
    except ValueError:
        return False  # a path
    return host == "localhost" or is_loopback(host)


def leaf(error: BaseException) -> BaseException:
    """The first real error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
