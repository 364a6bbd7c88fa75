"""Elastic rendezvous as structured concurrency, on asyncio and trio.

Agents on many hosts agree who takes part in a job, which rank each has and which key/value store they share; they
notice deaths in about a second and let newcomers in::

    import anyio, arendezvous

    async def agent(endpoint: str) -> None:
        params = arendezvous.RendezvousParameters("p10d", endpoint, "my-job", min_nodes=2, max_nodes=4)
        async with arendezvous.create_handler(params) as handler:
            async for world in handler.rounds():       # one agreed membership after another
                async with world:                      # cancelled when the membership changes
                    await train(world.rank, world.world_size, world.store)
                    world.finish()                     # done: no further round for this node

    anyio.run(agent, "10.0.0.5:29400")

Leaving (cancellation, the end of the block), finishing (``world.finish()``) and closing (``set_closed()``, for ever and
for everybody) are three things. Stores are usable alone: ``TCPStore``, ``TCPStoreServer``, ``FileStore``,
``MemoryStore``, ``PrefixStore``. ``arendezvous.testing`` checks stores of your own. Errors: ``arendezvous.errors``.
"""

from __future__ import annotations

from .backend import P10dRendezvousBackend, RendezvousBackend, Token
from .endpoint import parse_rendezvous_config, parse_rendezvous_endpoint
from .errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousExhaustedError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RendezvousUsageError,
    StoreTimeoutError,
)
from .handler.base import RendezvousHandler
from .handler.changes import MembershipChange
from .handler.create import create_handler, get_registry, register_backend
from .handler.dynamic import DynamicRendezvousHandler
from .handler.info import RendezvousInfo, RendezvousStoreInfo
from .handler.inspect import inspect, reset
from .handler.registry import RendezvousHandlerRegistry
from .handler.rounds import Round
from .handler.static import StaticTCPRendezvous
from .handler.status import NodeStatus, RendezvousStatus
from .node import NodeDesc
from .params import RendezvousParameters, RendezvousSettings, RendezvousTimeout
from .store.base import Capabilities, Lease, LeaseInfo, Store
from .store.client import TCPStore
from .store.file import FileStore
from .store.memory import HashStore, MemoryStore
from .store.prefix import PrefixStore
from .store.server import TCPStoreServer

__version__ = "0.1.0.dev0"

__all__ = (
    "Capabilities",
    "DynamicRendezvousHandler",
    "FileStore",
    "HashStore",
    "Lease",
    "LeaseInfo",
    "MembershipChange",
    "MemoryStore",
    "NodeDesc",
    "NodeStatus",
    "P10dRendezvousBackend",
    "PrefixStore",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousExhaustedError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousSettingsError",
    "RendezvousStateError",
    "RendezvousStatus",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "RendezvousUsageError",
    "Round",
    "StaticTCPRendezvous",
    "Store",
    "StoreTimeoutError",
    "TCPStore",
    "TCPStoreServer",
    "Token",
    "__version__",
    "create_handler",
    "get_registry",
    "inspect",
    "parse_rendezvous_config",
    "parse_rendezvous_endpoint",
    "register_backend",
    "reset",
)
