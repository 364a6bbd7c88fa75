"""The built-in backends: from parameters to a store that is reached, or hosted, and a handler over it."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote

from ..endpoint import format_endpoint, parse_rendezvous_endpoint
from ..errors import RendezvousConnectionError
from ..params import RendezvousParameters, RendezvousSettings
from ..store.base import Store
from ..store.client import TCPStore
from ..store.file import FileStore
from ..store.hosting import is_this_machine, loopback_only
from ..store.memory import MemoryStore
from ..store.server import TCPStoreServer
from .base import RendezvousHandler
from .dynamic import DynamicRendezvousHandler
from .recording import record_hosting
from .registry import Creator, RendezvousHandlerRegistry
from .static import StaticTCPRendezvous

__all__ = (
    "DEFAULT_PORT",
    "connect_store",
    "create_handler",
    "get_registry",
    "open_store",
    "register_backend",
)

logger = logging.getLogger(__name__)

#: The documented default port (api.md B 1.8).
DEFAULT_PORT = 29400
#: Seconds that a hosting handler waits on exit for the other clients to go (design.md section 3).
DEFAULT_LINGER = 30.0

memory_stores: dict[str, MemoryStore] = {}


def store_type(params: RendezvousParameters) -> str:
    kind = str(params.get("store_type", "tcp")).strip().lower()
    if kind not in ("tcp", "file"):
        raise ValueError(f"Invalid store type {kind!r}. Supported values are 'file' and 'tcp'.")
    return kind


def read_timeout(params: RendezvousParameters) -> float:
    seconds = params.get_as_seconds("read_timeout", 60.0)
    if seconds is None or not 0 < seconds < math.inf:
        raise ValueError(f"The read timeout must be a positive number of seconds, not {seconds!r}.")
    return seconds


@asynccontextmanager
async def open_store(params: RendezvousParameters) -> AsyncIterator[tuple[Store, str | None]]:
    """Reach the store that ``params`` name, hosting it when this is its machine and nobody does yet.

    Args:
        params: Endpoint and the options ``store_type``, ``is_host``, ``bind``, ``read_timeout`` and ``linger``.

    Yields:
        The store, and the address under which this node reaches it (None = not over a network).

    Raises:
        ValueError: an option or the endpoint is malformed.
        RendezvousConnectionError: the store can neither be reached nor hosted.
    """
    timeout = read_timeout(params)
    if store_type(params) == "file":
        async with FileStore(file_path(params), timeout=timeout) as store:
            yield store, None
        return
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    async with AsyncExitStack() as stack:
        server = await _host(stack, params, host, port)
        if server is not None:
            port = server.port
        async with AsyncExitStack() as inner:
            try:
                client = await inner.enter_async_context(connect_store(params, host, port, timeout))
            except RendezvousConnectionError as exc:
                if params.get_as_bool("is_host", None) is None and not await is_this_machine(host):
                    raise RendezvousConnectionError(
                        f"{exc}. This node does not believe that {host!r} is its own address; if no node does, set "
                        "is_host=true on the one that shall serve the store."
                    ) from exc
                raise
            yield client, client.local_address
        if server is not None:
            await server.drain(params.get_as_seconds("linger", DEFAULT_LINGER) or 0.0)


def connect_store(params: RendezvousParameters, host: str, port: int, timeout: float) -> TCPStore:
    """A client of the store at an endpoint; a wildcard address is reached through the loopback interface."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return TCPStore(reach, port, timeout=timeout, connect_timeout=timeout)


async def _host(stack: AsyncExitStack, params: RendezvousParameters, host: str, port: int) -> TCPStoreServer | None:
    """Serve the endpoint if it is ours; None when another process does or should."""
    asked = params.get_as_bool("is_host", None)
    if asked is False or (asked is None and not await is_this_machine(host)):
        return None
    bind = params.get("bind", None)
    if bind is None and params.max_nodes > 1 and await loopback_only(host):
        raise RendezvousConnectionError(
            f"The endpoint host {host!r} resolves to a loopback address only, so no other host could reach a store "
            f"there. Use the option bind=0.0.0.0, or a literal address of this host as the endpoint."
        )
    try:
        server = await stack.enter_async_context(TCPStoreServer(host, port, bind=bind))
    except RendezvousConnectionError:
        if asked:
            raise
        logger.debug("%s is taken; assuming that a sibling serves it", format_endpoint(host, port))
        return None
    record_hosting(params.run_id, server.endpoint)
    return server


def file_path(params: RendezvousParameters) -> Path:
    """The endpoint is the path; without one, nodes of one run on one host meet in the temporary directory (D40)."""
    if params.endpoint.strip():
        return Path(params.endpoint)
    return Path(tempfile.gettempdir()) / f"arendezvous_{quote(params.run_id, safe='')}"


@asynccontextmanager
async def _open_memory(params: RendezvousParameters) -> AsyncIterator[tuple[Store, str | None]]:
    """One store per endpoint and process; it lives as long as the process, as a server would."""
    yield memory_stores.setdefault(params.endpoint, MemoryStore(timeout=read_timeout(params))), None


def _create_dynamic(params: RendezvousParameters) -> RendezvousHandler:
    store_type(params)
    read_timeout(params)
    if store_type(params) == "tcp":
        parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    settings = RendezvousSettings.from_params(params)
    return DynamicRendezvousHandler(lambda: open_store(params), settings, params, backend_name=params.backend)


def _create_memory(params: RendezvousParameters) -> RendezvousHandler:
    settings = RendezvousSettings.from_params(params)
    return DynamicRendezvousHandler(lambda: _open_memory(params), settings, params, backend_name=params.backend)


def _create_static(params: RendezvousParameters) -> RendezvousHandler:
    return StaticTCPRendezvous(params)


def _with_options(creator: Creator, *options: str) -> Creator:
    creator.options = frozenset(options)  # type: ignore[attr-defined]
    return creator


@cache
def get_registry() -> RendezvousHandlerRegistry:
    """The process-wide registry; the built-in backends are in it before anybody sees it (D53)."""
    dynamic = _with_options(_create_dynamic, "store_type", "is_host", "bind", "linger", "timeout")
    memory = _with_options(_create_memory)
    static = _with_options(_create_static, "rank", "timeout", "is_host", "bind", "linger")
    return RendezvousHandlerRegistry(
        (("p10d", dynamic), ("c10d", dynamic), ("core", dynamic), ("memory", memory), ("static", static))
    )


def register_backend(name: str, creator: Creator) -> None:
    """Register a backend with the process-wide registry (see :meth:`RendezvousHandlerRegistry.register`).

    Args:
        name: The backend's name in :class:`RendezvousParameters`.
        creator: Makes a handler of parameters; the names in its attribute ``options`` are the options that it knows,
            without the attribute it takes all.

    Raises:
        ValueError: the name is empty, or taken by another creator.
    """
    get_registry().register(name, creator)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler that ``params`` ask for: an async context manager that connects when it is entered.

    Args:
        params: Backend, endpoint, run id, sizes and options; a keyword option wins over one in ``config``.

    Returns:
        RendezvousHandler: not connected yet.

    Raises:
        ValueError: the backend, an option or the endpoint is unknown or malformed; the message names the nearest.
    """
    return get_registry().create_handler(params)
