"""What a rendezvous is started with: parameters, time-outs, settings. All frozen, all checked on construction.

Precedence, from the strongest: a keyword argument, ``config`` (``PET_RDZV_CONF``), the other ``PET_*`` variables (read
by ``RendezvousParameters.from_env`` only), the default. Durations are taken as ``timedelta`` or seconds, fractions
allowed, and read as ``timedelta``.
"""

from __future__ import annotations

from .parameters import MAX_ATTRIBUTES, MAX_ATTRIBUTES_BYTES, RendezvousParameters
from .settings import MIN_EXPIRY, RendezvousSettings
from .timeout import RendezvousTimeout
from .values import MAX_COUNT, MAX_NODES, MAX_SECONDS, Duration

__all__ = (
    "MAX_ATTRIBUTES",
    "MAX_ATTRIBUTES_BYTES",
    "MAX_COUNT",
    "MAX_NODES",
    "MAX_SECONDS",
    "MIN_EXPIRY",
    "Duration",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousTimeout",
)
