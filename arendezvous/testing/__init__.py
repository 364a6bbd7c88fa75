"""The public test kit: virtual time, streams that fail on demand, and the conformance suite of stores.

Needs no pytest. Names load when they are first used, so that a process pays only for what it takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import VirtualTimeLoop as VirtualTimeLoop
    from .clock import virtual_backend as virtual_backend
    from .clock import virtual_backends as virtual_backends
    from .conformance import CHECKS as CHECKS
    from .conformance import Check as Check
    from .conformance import ConformanceError as ConformanceError
    from .conformance import check_store as check_store
    from .simulator import SimulationError as SimulationError
    from .simulator import SimulationReport as SimulationReport
    from .simulator import simulate as simulate
    from .streams import FaultyStream as FaultyStream
    from .streams import MemoryByteStream as MemoryByteStream
    from .streams import memory_stream_pair as memory_stream_pair

_HOMES = {
    "CHECKS": "conformance",
    "Check": "conformance",
    "ConformanceError": "conformance",
    "FaultyStream": "streams",
    "MemoryByteStream": "streams",
    "SimulationError": "simulator",
    "SimulationReport": "simulator",
    "VirtualTimeLoop": "clock",
    "check_store": "conformance",
    "memory_stream_pair": "streams",
    "simulate": "simulator",
    "virtual_backend": "clock",
    "virtual_backends": "clock",
}

__all__ = (
    "CHECKS",
    "Check",
    "ConformanceError",
    "FaultyStream",
    "MemoryByteStream",
    "SimulationError",
    "SimulationReport",
    "VirtualTimeLoop",
    "check_store",
    "memory_stream_pair",
    "simulate",
    "virtual_backend",
    "virtual_backends",
)


def __getattr__(name: str) -> object:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
