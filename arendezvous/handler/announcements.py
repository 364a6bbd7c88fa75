"""The announcement area on a store that can scan: one key per record, never overwritten (protocol.md P1, P4).

The store's creation order is the order of the log. A counter is the bell: only the first folder watches it, so an
announcement wakes one node and not N.
"""

from __future__ import annotations

import logging

from ..core.codec import decode_record, encode_record
from ..core.state import Record
from ..errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from ..store.base import Store
from .keys import Keys

__all__ = ("Announcements",)

logger = logging.getLogger(__name__)


class Announcements:
    """Append, read and forget announcements.

    Args:
        store: A store that can scan.
        keys: The run's keys.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store, self._keys = store, keys
        # A record's key is never overwritten, so each is decoded once per generation; None = unreadable.
        self._decoded: dict[str, Record | None] = {}
        self._generation: tuple[bytes, int] | None = None

    async def append(self, epoch: bytes, gen: int, record: Record) -> None:
        """Write a record into a generation and ring the bell.

        Cancellation:
            Safe: the record may or may not be there; its owner folds it from memory in any case.
        """
        key = self._keys.record(epoch, gen, record.inc, record.seq)
        await self._store.set(key, encode_record(record))
        try:
            await self._store.add(self._keys.bell, 1)
        except RendezvousConnectionError as exc:
            # Only the notice may be lost; the owner folds its record itself when its turn comes.
            logger.debug("the bell may not have rung: %s", exc)

    async def read(self, epoch: bytes, gen: int) -> tuple[Record, ...]:
        """Every readable record of a generation, in creation order; a damaged one is reported once and skipped."""
        found = await self._store.scan(self._keys.log(epoch, gen))
        if self._generation != (epoch, gen):
            self._generation, self._decoded = (epoch, gen), {}
        for key, value in found:
            if key not in self._decoded:
                try:
                    self._decoded[key] = decode_record(value)
                except RendezvousStateError as exc:
                    self._decoded[key] = None
                    logger.warning("skipping an announcement under %r: %s", key, exc)
        records = (self._decoded[key] for key, _ in found)
        return tuple(record for record in records if record is not None)

    async def forget(self, epoch: bytes, gen: int) -> None:
        """Delete a generation that nobody reads any more; best effort (protocol.md P10)."""
        if gen < 0:
            return
        try:
            for key, _ in await self._store.scan(self._keys.log(epoch, gen)):
                await self._store.delete_key(key)
        except RendezvousError as exc:
            logger.debug("old announcements stay: %s", exc)

    async def rung(self, held: bytes | None) -> bytes | None:
        """Wait until the bell differs from ``held`` and return it."""
        return await self._store.watch(self._keys.bell, held)

    async def bell(self) -> bytes | None:
        """The bell now."""
        return await self._store.peek(self._keys.bell)
