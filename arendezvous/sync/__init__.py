"""The blocking API: what ``arendezvous`` does, for programs that block instead of awaiting.

Every call runs in one event loop, in a thread of its own that starts with the first call; choose it with
:func:`use_event_loop` or the environment variable ``ARENDEZVOUS_EVENT_LOOP`` (``asyncio``, ``uvloop`` or ``trio``).
Heartbeats go on there while the caller sleeps or computes. Ctrl-C in a blocking call cancels it first. After a fork the
child makes objects of its own; inherited ones say so. Inside a running event loop blocking calls are refused.
"""

from __future__ import annotations

from ..errors import StoreTimeoutError
from .portal import use_event_loop
from .store import Store
from .stores import FileStore, HashStore, MemoryStore, PrefixStore, TCPStore, TCPStoreServer

__all__ = (
    "FileStore",
    "HashStore",
    "MemoryStore",
    "PrefixStore",
    "Store",
    "StoreTimeoutError",
    "TCPStore",
    "TCPStoreServer",
    "use_event_loop",
)
