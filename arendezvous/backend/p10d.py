"""The state of a run as one fenced value in any store."""

from __future__ import annotations

import os
import struct
from urllib.parse import quote

from ..errors import RendezvousConnectionError, RendezvousStateError
from ..store.base import Store
from .base import Token

__all__ = ("P10dRendezvousBackend",)

# Epoch and counter stand before the state, so that equal states never look equal to a compare-and-swap.
_HEADER = struct.Struct(">QQ")


class P10dRendezvousBackend:
    """Keep the state in a :class:`~arendezvous.store.base.Store` under one key.

    Args:
        store: Any store.
        run_id: The run; must not be empty.
        key: The full key; by default derived from the run id.
        name: The registered name this backend answers to.

    Raises:
        ValueError: ``run_id`` is empty.

    Concurrency:
        Any number of tasks may read; one writer per backend object.
    """

    def __init__(self, store: Store, run_id: str, *, key: str | None = None, name: str = "p10d") -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        self._key = key if key is not None else f"arendezvous/1/{quote(run_id, safe='')}/state"
        self._name = name
        # The raw values behind the tokens last seen, so that a swap needs no read before it.
        self._raw: dict[Token, bytes] = {}

    @property
    def name(self) -> str:
        """The backend's registered name."""
        return self._name

    @property
    def store(self) -> Store:
        """The store underneath."""
        return self._store

    @property
    def key(self) -> str:
        """The key of the state."""
        return self._key

    async def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None when there is none (see :class:`RendezvousBackend`).

        Cancellation:
            Safe; nothing was changed.
        """
        return self._read(await self._store.peek(self._key))

    async def changed(self, token: Token | None) -> tuple[bytes, Token] | None:
        """Wait until the stored state no longer has ``token``.

        Cancellation:
            Safe; nothing is lost, the next call returns at once if there is news.
        """
        held = self._raw.get(token) if token else None
        if held is None:
            raw = await self._store.peek(self._key)
            current = self._read(raw)
            if (current[1] if current else None) != (token or None):
                return current
            held = raw
        while True:
            held = await self._store.watch(self._key, held)
            current = self._read(held)
            if (current[1] if current else None) != (token or None):
                return current

    async def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` over the state of ``token`` (see :class:`RendezvousBackend`).

        Cancellation:
            Safe: the write may or may not have happened; read again to know.
        """
        if token is not None and (isinstance(token, bool) or not isinstance(token, int) or token < 0):
            token = -1  # no token of ours: never matches
        if token:
            raw = self._raw.get(token)
            if raw is None:
                raw = await self._store.peek(self._key)
                current = self._read(raw)
                if current is None or current[1] != token:
                    return None if current is None else (*current, False)
            assert raw is not None  # it has a token
            epoch, counter = _HEADER.unpack_from(raw)
        else:
            raw, counter = b"", 0
            epoch = int.from_bytes(os.urandom(8), "big") >> 1 or 1
        mine = _HEADER.pack(epoch, counter + 1) + state
        try:
            swapped, stored = await self._store.compare_and_swap(self._key, raw, mine)
        except RendezvousConnectionError as exc:
            # The answer was lost, not necessarily the write. Our own value standing there is proof; anything else
            # proves nothing (protocol.md P11).
            if await self._store.peek(self._key) != mine:
                raise RendezvousConnectionError(
                    f"The connection to the rendezvous store at {self._store.endpoint} failed while the state was "
                    f"written; whether it was is unknown. Read it again. ({exc})"
                ) from exc
            swapped, stored = True, mine
        current = self._read(mine if swapped else stored)
        return None if current is None else (*current, swapped)

    def _read(self, raw: bytes | None) -> tuple[bytes, Token] | None:
        if not raw:
            return None
        if len(raw) < _HEADER.size:
            raise RendezvousStateError(
                "The rendezvous state object is corrupt: "
                f"{len(raw)} bytes under {self._key!r} at {self._store.endpoint}. "
                "Reset it (arendezvous.reset) or use a fresh run id."
            )
        epoch, counter = _HEADER.unpack_from(raw)
        token = (epoch << 64) | counter
        if token not in self._raw:
            while len(self._raw) >= 2:  # the one held and the one coming in
                del self._raw[next(iter(self._raw))]
            self._raw[token] = raw
        elif self._raw[token] != raw:
            self._raw[token] = raw
        return raw[_HEADER.size :], token
