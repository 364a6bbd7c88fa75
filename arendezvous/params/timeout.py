"""How long the phases of a rendezvous may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from .values import Duration, option_seconds, positive_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from .parameters import RendezvousParameters

__all__ = ("RendezvousTimeout",)

_DEFAULTS = {"join": 600, "last_call": 30, "close": 30, "heartbeat": 5}


@dataclass(frozen=True, init=False, repr=False)
class RendezvousTimeout:
    """The time-outs of a rendezvous, given as ``timedelta`` or seconds and read as ``timedelta``; None is the default.

    Args:
        join: Leaving the last round and joining the next, as one operation; 600 s.
        last_call: How long a round that has reached its minimum waits for more nodes; 30 s.
        close: Closing the rendezvous; 30 s.
        heartbeat: One exchange with the store to keep this node alive; 5 s.

    Raises:
        ValueError: a time-out is not positive, not a number or longer than thirty years.
        TypeError: a time-out is neither a ``timedelta`` nor a number.
    """

    join: timedelta
    last_call: timedelta
    close: timedelta
    heartbeat: timedelta

    def __init__(
        self,
        join: Duration | None = 600,
        last_call: Duration | None = 30,
        close: Duration | None = 30,
        heartbeat: Duration | None = 5,
    ) -> None:
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat}
        for name, value in given.items():
            duration = positive_duration(f"{name} timeout", _DEFAULTS[name] if value is None else value)
            object.__setattr__(self, name, duration)

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={getattr(self, name).total_seconds():.15g}" for name in _DEFAULTS)
        return f"{type(self).__name__}({members})"

    @classmethod
    def from_params(cls, params: RendezvousParameters) -> RendezvousTimeout:
        """Read the options ``join_timeout``, ``last_call_timeout``, ``close_timeout`` and ``heartbeat_timeout``.

        Raises:
            ValueError: an option is not a positive number of seconds.
        """
        return cls(**{member.name: option_seconds(params.config, f"{member.name}_timeout") for member in fields(cls)})

    @property
    def join_seconds(self) -> float:
        """``join`` in seconds."""
        return self.join.total_seconds()

    @property
    def last_call_seconds(self) -> float:
        """``last_call`` in seconds."""
        return self.last_call.total_seconds()

    @property
    def close_seconds(self) -> float:
        """``close`` in seconds."""
        return self.close.total_seconds()

    @property
    def heartbeat_seconds(self) -> float:
        """``heartbeat`` in seconds."""
        return self.heartbeat.total_seconds()
