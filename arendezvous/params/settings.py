"""What the nodes of one run must have in common."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..node import RANK_ORDERS
from .timeout import RendezvousTimeout
from .values import Duration, check_run_id, node_bounds, option_seconds, positive_duration, to_count, to_int

if TYPE_CHECKING:
    from datetime import timedelta

    from .parameters import RendezvousParameters

__all__ = ("MIN_EXPIRY", "RendezvousSettings")

#: Shortest time after which a silent node may be called dead; below it a moment without the processor looks like death.
MIN_EXPIRY = 0.05


@dataclass(frozen=True, init=False)
class RendezvousSettings:
    """The settings of a run; the first node that joins records them, and a node with others is refused.

    Args:
        run_id: Any printable text.
        min_nodes: Fewest nodes of a round.
        max_nodes: Most nodes of a round.
        timeout: The time-outs; None is the default of each.
        keep_alive_interval: Time between two heartbeats of a node, ``timedelta`` or seconds; 5 s.
        keep_alive_max_attempt: After how many intervals without a heartbeat a node is dead; 3.
        rank_order: ``address``, ``natural``, ``node_rank`` or ``stable``.

    Raises:
        ValueError: a value is out of its range.
        TypeError: a value is of the wrong type.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    rank_order: str

    def __init__(
        self,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: Duration = 5,
        keep_alive_max_attempt: int = 3,
        rank_order: str = "address",
    ) -> None:
        if timeout is not None and not isinstance(timeout, RendezvousTimeout):
            raise TypeError(f"timeout must be a RendezvousTimeout, not {timeout!r}.")
        interval = positive_duration("keep-alive interval", keep_alive_interval)
        attempts = to_count("keep_alive_max_attempt", keep_alive_max_attempt, 1)
        if interval.total_seconds() * attempts < MIN_EXPIRY:
            raise ValueError(
                f"The keep-alive interval ({interval.total_seconds():g} s) times keep_alive_max_attempt ({attempts}) "
                f"must be at least {MIN_EXPIRY:g} s: a busy host would take its live peers for dead."
            )
        values = (
            check_run_id(run_id),
            *node_bounds(to_int("min_nodes", min_nodes), to_int("max_nodes", max_nodes), "nodes"),
            timeout or RendezvousTimeout(),
            interval,
            attempts,
            _check_rank_order(rank_order),
        )
        for member, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, member.name, value)

    @classmethod
    def from_params(cls, params: RendezvousParameters) -> RendezvousSettings:
        """The settings that parameters ask for.

        Reads the options ``keep_alive_interval``, ``keep_alive_max_attempt``, ``rank_order`` and the time-outs.

        Raises:
            ValueError: an option is not valid.
        """
        interval = option_seconds(params.config, "keep_alive_interval")
        return cls(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.timeout,
            5 if interval is None else interval,
            params.get_as_int("keep_alive_max_attempt", 3),
            params.get("rank_order", "address"),
        )

    @property
    def keep_alive_seconds(self) -> float:
        """``keep_alive_interval`` in seconds."""
        return self.keep_alive_interval.total_seconds()

    @property
    def expiry(self) -> float:
        """Seconds without a heartbeat after which a node is dead."""
        return self.keep_alive_seconds * self.keep_alive_max_attempt

    @property
    def join(self) -> timedelta:
        """``timeout.join``."""
        return self.timeout.join

    @property
    def last_call(self) -> timedelta:
        """``timeout.last_call``."""
        return self.timeout.last_call

    @property
    def close(self) -> timedelta:
        """``timeout.close``."""
        return self.timeout.close

    @property
    def heartbeat(self) -> timedelta:
        """``timeout.heartbeat``."""
        return self.timeout.heartbeat


def _check_rank_order(rank_order: object) -> str:
    if isinstance(rank_order, str) and rank_order in RANK_ORDERS:
        return rank_order
    near = difflib.get_close_matches(str(rank_order), RANK_ORDERS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"There is no rank order {rank_order!r}; it is one of {', '.join(RANK_ORDERS)}.{hint}")
