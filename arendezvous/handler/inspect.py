"""Look at a run from outside: never hosts, joins or writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ..backend import P10dRendezvousBackend
from ..core.codec import decode_state
from ..endpoint import parse_rendezvous_endpoint
from ..errors import RendezvousConnectionError, RendezvousStateError
from ..params import RendezvousParameters
from ..store.base import Store
from .create import DEFAULT_PORT, connect_store, file_path, memory_stores, open_store, read_timeout, store_type
from .keys import Keys
from .status import RendezvousStatus, describe

__all__ = ("as_client", "inspect", "reset")


@asynccontextmanager
async def as_client(params: RendezvousParameters) -> AsyncIterator[Store]:
    """Reach the store that ``params`` name as somebody who only visits: never hosts one, never makes a file.

    Args:
        params: Backend, endpoint and store options.

    Yields:
        The store.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint.
        ValueError: an option or the endpoint is malformed.
    """
    timeout = read_timeout(params)
    if params.backend == "memory":
        if params.endpoint not in memory_stores:
            raise RendezvousConnectionError(f"This process has no memory store {params.endpoint!r}.")
        yield memory_stores[params.endpoint]
    elif store_type(params) == "file":
        path = file_path(params)
        if not await anyio.Path(path).is_file():
            raise RendezvousConnectionError(f"There is no store file {str(path)!r}.")  # looking must not make one
        async with open_store(params) as (store, _):
            yield store
    else:
        host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
        async with connect_store(params, host, port, min(timeout, 10.0)) as client:
            yield client


async def inspect(params: RendezvousParameters) -> RendezvousStatus:
    """Describe a run as it is now.

    Args:
        params: Backend, endpoint, run id and store options; sizes do not matter.

    Returns:
        RendezvousStatus: participants, waiters, spares, heartbeat ages and why the round is not complete.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint.
        RendezvousStateError: what is stored there is damaged.
        ValueError: an option or the endpoint is malformed.

    Cancellation:
        Safe: nothing is written.
    """
    keys = Keys(params.run_id)
    async with as_client(params) as store:
        got = await P10dRendezvousBackend(store, params.run_id, key=keys.state).get_state()
        state = None if got is None else decode_state(got[0])
        leases = await store.leases(keys.beats) if state is not None else []
        if state is None:
            reason = "nobody has joined"
        elif state.is_closed:
            reason = f"the rendezvous is {state.closed.value} in round {state.round}"
        elif state.complete:
            reason = f"round {state.round} is complete with {len(state.participants)} nodes"
        else:
            reason = (
                f"{len(state.participants)}/{state.settings.max_nodes} nodes joined round {state.round} "
                f"(min {state.settings.min_nodes}, max {state.settings.max_nodes})"
            )
        return describe(state, leases, keys, store.endpoint, reason=reason, bounds=(params.min_nodes, params.max_nodes))


async def reset(params: RendezvousParameters) -> bool:
    """Throw away the state of a run that can no longer be read (D39); a readable one is left alone.

    Waiting nodes form a new round, under a number that is higher than any round they had.

    Args:
        params: Backend, endpoint, run id and store options.

    Returns:
        bool: True if a damaged state was thrown away.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint.

    Cancellation:
        Safe: the state is either still there or gone.
    """
    keys = Keys(params.run_id)
    async with as_client(params) as store:
        raw = await store.peek(keys.state)
        if not raw:
            return False
        try:
            got = await P10dRendezvousBackend(store, params.run_id, key=keys.state).get_state()
            if got is not None:
                decode_state(got[0])
                return False
        except RendezvousStateError:
            pass
        swapped, _ = await store.compare_and_swap(keys.state, raw, b"")
        return swapped
