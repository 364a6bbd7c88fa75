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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# Where each public name lives. Looked up on first use: whoever needs one store does not pay for the handlers.
_HOMES = {
    "Capabilities": ".store.base",
    "DynamicRendezvousHandler": ".handler.dynamic",
    "FileStore": ".store.file",
    "HashStore": ".store.memory",
    "Lease": ".store.base",
    "LeaseInfo": ".store.base",
    "MembershipChange": ".handler.changes",
    "MemoryStore": ".store.memory",
    "NodeDesc": ".node",
    "NodeStatus": ".handler.status",
    "P10dRendezvousBackend": ".backend",
    "PrefixStore": ".store.prefix",
    "RendezvousBackend": ".backend",
    "RendezvousClosedError": ".errors",
    "RendezvousConnectionError": ".errors",
    "RendezvousError": ".errors",
    "RendezvousExhaustedError": ".errors",
    "RendezvousGracefulExitError": ".errors",
    "RendezvousHandler": ".handler.base",
    "RendezvousHandlerRegistry": ".handler.registry",
    "RendezvousInfo": ".handler.info",
    "RendezvousParameters": ".params",
    "RendezvousSettings": ".params",
    "RendezvousSettingsError": ".errors",
    "RendezvousStateError": ".errors",
    "RendezvousStatus": ".handler.status",
    "RendezvousStoreInfo": ".handler.info",
    "RendezvousTimeout": ".params",
    "RendezvousTimeoutError": ".errors",
    "RendezvousUsageError": ".errors",
    "Round": ".handler.rounds",
    "StaticTCPRendezvous": ".handler.static",
    "Store": ".store.base",
    "StoreTimeoutError": ".errors",
    "TCPStore": ".store.client",
    "TCPStoreServer": ".store.server",
    "Token": ".backend",
    "create_handler": ".handler.create",
    "get_registry": ".handler.create",
    "inspect": ".handler.inspect",
    "parse_rendezvous_config": ".endpoint",
    "parse_rendezvous_endpoint": ".endpoint",
    "register_backend": ".handler.create",
    "reset": ".handler.inspect",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
