"""Closing a run for ever (protocol.md P13)."""

from __future__ import annotations

import logging

import anyio

from ..backend import RendezvousBackend
from ..core.codec import decode_state, encode_state
from ..core.fold import Fresh, close, fence
from ..core.state import AgreedSettings, Kind, Record
from ..errors import RendezvousConnectionError
from ..store.base import Store
from .announcements import Announcements
from .entropy import Environment
from .keys import Keys

__all__ = ("close_run",)

logger = logging.getLogger(__name__)


async def close_run(
    store: Store, backend: RendezvousBackend, keys: Keys, settings: AgreedSettings, env: Environment
) -> None:
    """Swap ``closed`` in; after two lost swaps announce it too, so that any folder does it.

    Args:
        store: Where announcements are.
        backend: Where the state is.
        keys: The run's keys.
        settings: Recorded when nobody had joined yet.
        env: Clock and randomness.

    Raises:
        RendezvousConnectionError: the store cannot be reached.
        RendezvousStateError: what is stored is damaged.

    Cancellation:
        Safe: the run may or may not have been closed.
    """
    record = Record(env.token(), 1, Kind.CLOSE)
    lost = 0
    while True:
        got = await backend.get_state()
        state, token = (None, None) if got is None else (decode_state(got[0]), got[1])
        if state is not None and state.is_closed:
            return
        fresh = Fresh(env.token(), env.token())
        if state is None:
            proposal = fence(record, settings, epoch=env.token(), fresh=fresh)
        else:
            proposal = close(state, fresh=fresh)
        try:
            written = await backend.set_state(encode_state(proposal), token)
        except RendezvousConnectionError as exc:
            # Closed is acknowledged only by reading it: the next turn does, and waits for the connection.
            logger.debug("closing has an unknown outcome, reading again: %s", exc)
            continue
        if written is not None and written[2]:
            return
        lost += 1
        if lost == 2 and state is not None:
            await Announcements(store, keys).append(state.epoch, state.gen, record)
        await anyio.sleep(0.02 * env.random() * min(lost, 10))
