"""The pure key/value engine that the memory store and the server share. Synchronous, no IO; time is an argument.

Keys and values are bytes. Whoever waits registers a callback and gets a :class:`Waiter` to take it back with; a
callback is called once, synchronously, at the end of the change that satisfied it, and must only pass the news on: it
must not call the table, nor raise.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from ..wire.digest import Digest, Held, digest_of
from .arguments import COUNTER_MAX, COUNTER_MIN, decode_key
from .base import DISCONNECT_GRACE
from .leases import LeaseBook

__all__ = ("KeyWaiter", "Table", "Waiter", "Watcher")

_W = TypeVar("_W", bound="Waiter")
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")


class _Item:
    """A stored value."""

    __slots__ = ("_digest", "born", "lease", "revision", "value")

    def __init__(self, value: bytes, revision: int) -> None:
        self.value = value
        self.born = revision
        self.revision = revision
        self.lease: Hashable | None = None
        self._digest: Digest | None = None

    def replace(self, value: bytes, revision: int) -> None:
        self.value = value
        self.revision = revision
        self._digest = None

    def is_held(self, held: Held) -> bool:
        if not isinstance(held, Digest):
            return self.value == held
        if len(self.value) != held.size:
            return False
        # Kept, because a thousand watchers of one state would hash it a thousand times.
        if self._digest is None:
            self._digest = digest_of(self.value)
        return self._digest == held


class Waiter:
    """Something that waits; :meth:`cancel` takes it out of the table."""

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table: Table | None = table

    @property
    def pending(self) -> bool:
        """Whether the callback is still to come."""
        return self._table is not None

    def cancel(self) -> None:
        """Unregister; idempotent, and harmless after the callback was called."""
        table, self._table = self._table, None
        if table is not None:
            self._leave(table)

    def _leave(self, table: Table) -> None:
        raise NotImplementedError


class KeyWaiter(Waiter):
    """Waits until all of some keys exist.

    Attributes:
        keys: The keys as they were asked for.
        missing: Those that do not exist now.
    """

    __slots__ = ("callback", "keys", "missing")

    def __init__(self, table: Table, keys: Sequence[bytes], callback: Callable[[list[bytes]], None]) -> None:
        super().__init__(table)
        self.keys = keys
        self.missing: set[bytes] = set()
        self.callback = callback

    def _leave(self, table: Table) -> None:
        for key in dict.fromkeys(self.keys):
            table._forget(table._waiters, key, self)


class Watcher(Waiter):
    """Waits until one key differs from what somebody holds."""

    __slots__ = ("callback", "held", "key")

    def __init__(self, table: Table, key: bytes, held: Held, callback: Callable[[bytes | None], None]) -> None:
        super().__init__(table)
        self.key = key
        self.held = held
        self.callback = callback

    def _leave(self, table: Table) -> None:
        table._forget(table._watchers, self.key, self)


class Table:
    """All keys of one store.

    Args:
        grace: Seconds that a lease outlives its owner's connection.
        max_value: Largest value in bytes that may be stored.
        root: What all keys of users start with; messages leave it away.

    Attributes:
        revision: Number of changes so far.
    """

    def __init__(self, *, grace: float = DISCONNECT_GRACE, max_value: int = 2**40, root: bytes = b"") -> None:
        self.revision = 0
        self._max_value = max_value
        self._root = root
        self._items: dict[bytes, _Item] = {}
        self._sorted: list[bytes] = []
        self._waiters: dict[bytes, dict[KeyWaiter, None]] = {}
        self._watchers: dict[bytes, dict[Watcher, None]] = {}
        self._leases = LeaseBook(grace)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def waiting(self) -> int:
        """How many registrations of waiters exist (one per waiter and key)."""
        return sum(map(len, self._waiters.values())) + sum(map(len, self._watchers.values()))

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, None when it is missing."""
        item = self._items.get(key)
        return None if item is None else item.value

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of ``keys`` that do not exist, each once, in order."""
        return [key for key in dict.fromkeys(keys) if key not in self._items]

    def count(self, prefix: bytes = b"") -> int:
        """Return how many keys start with ``prefix``."""
        return len(self._sorted) if not prefix else len(self._range(prefix))

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the keys that start with ``prefix`` and their values in the order of their creation."""
        found = sorted((self._items[key].born, key) for key in self._range(prefix))
        return [(key, self._items[key].value) for _, key in found]

    # Writing

    def set(self, key: bytes, value: bytes) -> None:
        """Write ``value``; the key belongs to no lease any more.

        Raises:
            ValueError: the value is larger than the table takes.
        """
        self._check_size(len(value))
        self._write(key, value, None)

    def set_many(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Write all pairs or, when one of them is too large, none.

        Raises:
            ValueError: a value is larger than the table takes.
        """
        for _, value in pairs:
            self._check_size(len(value))
        for key, value in pairs:
            self._write(key, value, None)

    def compare_and_swap(self, key: bytes, expected: bytes | Digest, desired: bytes) -> tuple[bool, bytes]:
        """Replace ``expected`` by ``desired``; return ``(swapped, value now stored)``.

        Raises:
            ValueError: ``desired`` is larger than the table takes.
        """
        self._check_size(len(desired))
        item = self._items.get(key)
        if item is None:
            if expected != b"":
                return False, b""
        elif not item.is_held(expected):
            return False, item.value
        self._write(key, desired, None)
        return True, desired

    def add(self, key: bytes, amount: int) -> int:
        """Add to a decimal counter and return the sum.

        Raises:
            ValueError: the stored value is not a decimal number, or the sum does not fit 64 bits.
        """
        item = self._items.get(key)
        stored = b"0" if item is None else item.value
        if _NUMBER.fullmatch(stored) is None:
            shown = stored if len(stored) <= 32 else stored[:32] + b"..."
            raise ValueError(f"the value of {self._name(key)!r} is {shown!r}, not a decimal number")
        total = int(stored) + amount
        if not COUNTER_MIN <= total <= COUNTER_MAX:
            raise ValueError(f"the counter {self._name(key)!r} would leave 64 bits: {int(stored)} + {amount}")
        self._write(key, b"%d" % total, None)
        return total

    def append(self, key: bytes, value: bytes) -> int:
        """Append to what ``key`` holds and return the new length.

        Raises:
            ValueError: the result is larger than the table takes.
        """
        stored = self.get(key) or b""
        self._check_size(len(stored) + len(value))
        self._write(key, stored + value, None)
        return len(stored) + len(value)

    def delete(self, key: bytes) -> bool:
        """Remove ``key``; True if it existed."""
        item = self._items.pop(key, None)
        if item is None:
            return False
        self._unlease(key, item)
        del self._sorted[bisect_left(self._sorted, key)]
        self.revision += 1
        for waiter in self._waiters.get(key, ()):
            waiter.missing.add(key)
        self._tell_watchers(key, None)
        return True

    # Waiting

    def wait(self, keys: Sequence[bytes], callback: Callable[[list[bytes]], None]) -> KeyWaiter | None:
        """Call ``callback(values)`` as soon as all of ``keys`` exist together.

        Returns:
            The waiter, or None when they all do: the callback has then been called already.
        """
        missing = self.missing(keys)
        if not missing:
            callback([self._items[key].value for key in keys])
            return None
        waiter = KeyWaiter(self, keys, callback)
        waiter.missing.update(missing)
        # Under every key, the existing ones too: one of these may vanish before the last of the others comes.
        for key in dict.fromkeys(keys):
            self._waiters.setdefault(key, {})[waiter] = None
        return waiter

    def watch(self, key: bytes, held: Held, callback: Callable[[bytes | None], None]) -> Watcher | None:
        """Call ``callback(value)`` as soon as ``key`` differs from ``held``; None stands for a missing key.

        Returns:
            The waiter, or None when it differs now: the callback has then been called already.
        """
        item = self._items.get(key)
        if (held is not None) if item is None else not item.is_held(held):
            callback(None if item is None else item.value)
            return None
        watcher = Watcher(self, key, held, callback)
        self._watchers.setdefault(key, {})[watcher] = None
        return watcher

    # Leases

    def lease_open(self, name: Hashable, owner: Hashable, ttl: float, now: float) -> None:
        """Open a lease that holds nothing yet, or refresh it."""
        self._leases.refresh(name, owner, ttl, now)

    def lease_set(self, name: Hashable, owner: Hashable, ttl: float, key: bytes, value: bytes, now: float) -> None:
        """Write ``key`` under a lease and refresh the lease, which is opened if it is not open (any more).

        Raises:
            ValueError: the value is larger than the table takes.
        """
        self._check_size(len(value))
        self._leases.refresh(name, owner, ttl, now).keys.add(key)
        self._write(key, value, name)

    def lease_close(self, name: Hashable) -> bool:
        """End a lease and remove its keys; False if there was none."""
        entry = self._leases.close(name)
        if entry is None:
            return False
        for key in sorted(entry.keys):
            self.delete(key)
        return True

    def attach(self, owner: Hashable, now: float) -> int:
        """An owner has come back: its leases get their full time again. Returns how many are still open."""
        return self._leases.attach(owner, now)

    def detach(self, owner: Hashable, now: float) -> int:
        """An owner's connection has dropped: start the disconnect grace. Returns how many leases it has."""
        return self._leases.detach(owner, now)

    def expire(self, now: float) -> int:
        """End the leases whose time is over and remove their keys; returns how many leases ended."""
        ended = list(self._leases.expired(now))
        for entry in ended:
            for key in sorted(entry.keys):
                self.delete(key)
        return len(ended)

    def next_expiry(self) -> float:
        """When :meth:`expire` has something to do next; ``inf`` if never."""
        return self._leases.next_expiry()

    def leases(self, prefix: bytes, now: float) -> list[tuple[bytes, float, float, bool]]:
        """Return ``(key, age, ttl, attached)`` of every leased key that starts with ``prefix``, ordered by key."""
        return sorted(
            (key, max(0.0, now - entry.refreshed), entry.ttl, entry.attached)
            for entry in self._leases
            for key in entry.keys
            if key.startswith(prefix)
        )

    # Inside

    def _name(self, key: bytes) -> str:
        return decode_key(key.removeprefix(self._root))

    def _check_size(self, size: int) -> None:
        if size > self._max_value:
            raise ValueError(f"a value of {size} bytes is larger than this store takes ({self._max_value})")

    def _range(self, prefix: bytes) -> list[bytes]:
        start = bisect_left(self._sorted, prefix)
        # The first text after all that start with the prefix: its last byte that can grow grows, the rest goes.
        stem = prefix.rstrip(b"\xff")
        if not stem:
            return [key for key in self._sorted[start:] if key.startswith(prefix)]
        return self._sorted[start : bisect_left(self._sorted, stem[:-1] + bytes([stem[-1] + 1]), start)]

    def _unlease(self, key: bytes, item: _Item) -> None:
        if item.lease is not None:
            entry = self._leases.get(item.lease)
            if entry is not None:
                entry.keys.discard(key)
            item.lease = None

    def _write(self, key: bytes, value: bytes, lease: Hashable | None) -> None:
        self.revision += 1
        item = self._items.get(key)
        if item is not None:
            if item.lease is not None and item.lease != lease:
                self._unlease(key, item)
            item.lease = lease
            item.replace(value, self.revision)
            self._tell_watchers(key, item)
            return
        item = self._items[key] = _Item(value, self.revision)
        item.lease = lease
        insort(self._sorted, key)
        self._tell_watchers(key, item)
        if key in self._waiters:
            self._tell_waiters(key)

    def _tell_watchers(self, key: bytes, item: _Item | None) -> None:
        watchers = self._watchers.get(key)
        if not watchers:
            return
        news = [
            watcher
            for watcher in watchers
            if ((watcher.held is not None) if item is None else not item.is_held(watcher.held))
        ]
        value = None if item is None else item.value
        # All leave before the first is called: a callback that fails must not leave the rest half told.
        for watcher in news:
            watcher.cancel()
        for watcher in news:
            watcher.callback(value)

    def _tell_waiters(self, key: bytes) -> None:
        ready = []
        for waiter in self._waiters[key]:
            waiter.missing.discard(key)
            if not waiter.missing:
                ready.append(waiter)
        for waiter in ready:
            waiter.cancel()
        for waiter in ready:
            waiter.callback([self._items[wanted].value for wanted in waiter.keys])

    @staticmethod
    def _forget(index: dict[bytes, dict[_W, None]], key: bytes, waiter: _W) -> None:
        waiting = index.get(key)
        if waiting is not None:
            waiting.pop(waiter, None)
            if not waiting:
                del index[key]
