"""The log of a file store: framed, checksummed records, and the state that they add up to. No IO.

A file is the magic, then frames. A frame is one change and counts wholly or not at all: length and checksum of its
body, a checksum of these two, and the body, a msgpack array of typed records. The first frame holds one :class:`Birth`.
Writers append while they hold the lock, so what a killed writer leaves behind is a frame that ends too early, at the
very end; anything else that does not fit was not written by a file store.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

import msgspec

from ..errors import RendezvousStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = (
    "FORMAT",
    "MAGIC",
    "MAX_FRAME",
    "Append",
    "Beat",
    "Birth",
    "Damage",
    "Delete",
    "End",
    "Item",
    "LeaseState",
    "Put",
    "Record",
    "Replica",
    "decode_frame",
    "encode_frame",
    "encode_head",
)

#: How every file starts; the first byte is in no text, the last shows a transfer that changed line ends.
MAGIC: Final = b"\x89ardzv\r\n"
#: The version of what follows the magic.
FORMAT: Final = 1
#: Largest body of a frame in bytes.
MAX_FRAME: Final = 2**30

_HEADER: Final = struct.Struct("<II")
_CHECK: Final = struct.Struct("<I")
_HEAD: Final = _HEADER.size + _CHECK.size
_LEASE_ID: Final = re.compile(r"[0-9a-f]{16}")
# What a key costs in the log besides its key and value, roughly; with a lease.
_OVERHEAD: Final = 24
_LEASE_OVERHEAD: Final = 64


class Birth(msgspec.Struct, frozen=True, array_like=True, tag="birth"):
    """What the file is: format version, random name of the data set, number of compactions."""

    format: int
    store: bytes
    generation: int


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """A key has a value and belongs to no lease."""

    key: bytes
    value: bytes


class Append(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    """A value has grown at its end; the key belongs to no lease."""

    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="del"):
    """A key is gone."""

    key: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A key has a value under a lease, which was refreshed at the time ``at`` of the clock ``clock``."""

    lease: str
    ttl: float
    clock: bytes
    at: float
    key: bytes
    value: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A lease is over and its keys are gone."""

    lease: str


Record: TypeAlias = Birth | Put | Append | Delete | Beat | End

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


class Damage(RendezvousStateError):
    """Bytes that no file store has written; whoever knows the path adds it."""


def encode_frame(records: Sequence[Record]) -> bytes:
    """Return ``records`` as one frame.

    Raises:
        ValueError: they are larger than a frame may be.
    """
    body = _encoder.encode(records)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a change of {len(body)} bytes is larger than a file store takes ({MAX_FRAME})")
    header = _HEADER.pack(len(body), crc32(body))
    return header + _CHECK.pack(crc32(header)) + body


def encode_head(store: bytes, generation: int) -> bytes:
    """Return the beginning of a file."""
    return MAGIC + encode_frame([Birth(FORMAT, store, generation)])


def decode_frame(data: memoryview) -> tuple[list[Record] | None, int]:
    """Decode the frame at the start of ``data``.

    Returns:
        The records and the length of the frame; None and the length that is needed at least if there is less.

    Raises:
        Damage: this is no frame.
    """
    if len(data) < _HEAD:
        return None, _HEAD
    length, checksum = _HEADER.unpack_from(data)
    if _CHECK.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        if not any(data[:_HEAD]) and not any(data):
            # A machine that lost power may keep a file's new size and not what was in it: as good as not written.
            return None, 4 * len(data)
        raise Damage("a record's header is damaged")
    if length > MAX_FRAME:
        raise Damage(f"a record of {length} bytes is larger than any may be")
    end = _HEAD + length
    if len(data) < end:
        return None, end
    body = data[_HEAD:end]
    if crc32(body) != checksum:
        raise Damage("a record is damaged")
    try:
        return _decoder.decode(body), end
    except msgspec.MsgspecError as exc:
        raise Damage(f"a record is not understood ({exc})") from exc


class Item:
    """A stored value. It is kept in the pieces that were appended until somebody reads it."""

    __slots__ = ("_parts", "lease", "size")

    _parts: list[bytes]
    size: int
    lease: str | None

    def __init__(self, value: bytes, lease: str | None) -> None:
        self.replace(value, lease)

    @property
    def value(self) -> bytes:
        """The whole value."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def replace(self, value: bytes, lease: str | None) -> None:
        """Take another value; the key keeps its place in the order of creation."""
        self._parts = [value]
        self.size = len(value)
        self.lease = lease

    def grow(self, more: bytes) -> None:
        """Append to the value."""
        self._parts.append(more)
        self.size += len(more)


class LeaseState:
    """What the log says of a lease.

    Attributes:
        ttl: Seconds that it lives without a refresh.
        clock: Which clock its owner reads.
        at: When it was last refreshed, by that clock.
        seen: When this replica learnt of that refresh, by its own clock.
        keys: The keys that it holds.
    """

    __slots__ = ("at", "clock", "keys", "seen", "ttl")

    def __init__(self) -> None:
        self.ttl = 0.0
        self.clock = b""
        self.at = 0.0
        self.seen = 0.0
        self.keys: set[bytes] = set()

    def refreshed(self, clock: bytes) -> float:
        """When it was last refreshed, as near as a reader of ``clock`` can tell: not before, perhaps later."""
        return self.at if self.clock == clock else self.seen


class Replica:
    """The sum of a log.

    Attributes:
        birth: What the file is; None before its first frame.
        items: Every key in the order of creation.
        leases: Every lease that is not over.
        live: How many bytes a log of the present state takes, roughly.
    """

    def __init__(self, before: Replica | None = None) -> None:
        self.birth: Birth | None = None
        self.items: dict[bytes, Item] = {}
        self.leases: dict[str, LeaseState] = {}
        self.live = 0
        # Which keys have changed since somebody asked; None = any.
        self._changed: set[bytes] | None = None if before is not None else set()
        # A log that is read again shows old refreshes: they keep the time at which they were first seen.
        self._before = {} if before is None else before.leases

    def take_changes(self) -> set[bytes] | None:
        """Return the keys that may have changed since the last call; None = any."""
        changed, self._changed = self._changed, set()
        return changed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, None when it is missing."""
        item = self.items.get(key)
        return None if item is None else item.value

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of ``keys`` that do not exist, each once, in order."""
        return [key for key in dict.fromkeys(keys) if key not in self.items]

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the keys that start with ``prefix`` and their values in the order of their creation."""
        return [(key, item.value) for key, item in self.items.items() if key.startswith(prefix)]

    def leased(self, prefix: bytes, clock: bytes, now: float) -> list[tuple[bytes, float, float]]:
        """Return ``(key, age, ttl)`` of every leased key that starts with ``prefix``, ordered by key."""
        return sorted(
            (key, max(0.0, now - lease.refreshed(clock)), lease.ttl)
            for lease in self.leases.values()
            for key in lease.keys
            if key.startswith(prefix)
        )

    def apply(self, records: Iterable[Record], now: float) -> None:
        """Take in the records of one frame.

        Raises:
            Damage: they cannot follow what came before.
        """
        for record in records:
            if (self.birth is None) != isinstance(record, Birth):
                raise Damage("the first record, and no other, says what the file is")
            if isinstance(record, Put):
                self._write(record.key, record.value, None)
            elif isinstance(record, Beat):
                self._beat(record, now)
            elif isinstance(record, Append):
                self._append(record)
            elif isinstance(record, Delete):
                self._delete(record.key)
            elif isinstance(record, End):
                self._end(record.lease)
            else:
                self.birth = record

    def snapshot(self) -> Iterator[list[Record]]:
        """Return records that add up to the present state, in portions for one frame each."""
        portion: list[Record] = []
        size = 0
        for key, item in self.items.items():
            lease = None if item.lease is None else self.leases[item.lease]
            if lease is None or item.lease is None:
                portion.append(Put(key, item.value))
            else:
                portion.append(Beat(item.lease, lease.ttl, lease.clock, lease.at, key, item.value))
            size += len(key) + item.size
            if size >= 2**20:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    def _write(self, key: bytes, value: bytes, lease: str | None) -> None:
        self._note(key)
        item = self.items.get(key)
        if item is not None:
            self._unlease(key, item)
            self.live += len(value) - item.size
            item.replace(value, lease)
        else:
            self.items[key] = Item(value, lease)
            self.live += len(key) + len(value) + _OVERHEAD
        if lease is not None:
            self.live += _LEASE_OVERHEAD

    def _append(self, record: Append) -> None:
        item = self.items.get(record.key)
        if item is None:
            self._write(record.key, record.value, None)
            return
        self._note(record.key)
        self._unlease(record.key, item)
        item.grow(record.value)
        self.live += len(record.value)

    def _delete(self, key: bytes) -> None:
        item = self.items.pop(key, None)
        if item is not None:
            self._note(key)
            self._unlease(key, item)
            self.live -= len(key) + item.size + _OVERHEAD

    def _beat(self, record: Beat, now: float) -> None:
        # The name becomes the name of a file, and times are calculated with.
        if not _LEASE_ID.fullmatch(record.lease) or not 0 < record.ttl < math.inf or not math.isfinite(record.at):
            raise Damage("a lease is not understood")
        self._write(record.key, record.value, record.lease)
        lease = self.leases.get(record.lease)
        if lease is None:
            lease = self.leases[record.lease] = LeaseState()
        lease.keys.add(record.key)
        lease.ttl = record.ttl
        if (lease.clock, lease.at) != (record.clock, record.at):
            old = self._before.get(record.lease)
            known = old is not None and (old.clock, old.at) == (record.clock, record.at)
            lease.seen = old.seen if known and old is not None else now
            lease.clock, lease.at = record.clock, record.at

    def _end(self, name: str) -> None:
        lease = self.leases.pop(name, None)
        if lease is not None:
            for key in sorted(lease.keys):
                self._delete(key)

    def _unlease(self, key: bytes, item: Item) -> None:
        if item.lease is not None:
            self.live -= _LEASE_OVERHEAD
            lease = self.leases.get(item.lease)
            if lease is not None:
                lease.keys.discard(key)
            item.lease = None

    def _note(self, key: bytes) -> None:
        if self._changed is not None:
            self._changed.add(key)
