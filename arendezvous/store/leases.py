"""The book of leases: who owns which keys, and when they run out. Pure: time is an argument."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush

from .base import DISCONNECT_GRACE

__all__ = ("LeaseBook", "LeaseEntry")


class LeaseEntry:
    """One lease.

    Attributes:
        name: What identifies it within the book.
        owner: The connection or block that keeps it alive; several leases may share one.
        ttl: Seconds that it lives without a refresh.
        refreshed: When it was last refreshed.
        attached: False while its owner's connection is gone.
        deadline: When it ends unless something happens.
        keys: The keys it holds.
        queued: Which item of the book's heap stands for it; others are left-overs.
    """

    __slots__ = ("attached", "deadline", "keys", "name", "owner", "queued", "refreshed", "ttl")

    def __init__(self, name: Hashable, owner: Hashable, ttl: float, now: float) -> None:
        self.name = name
        self.owner = owner
        self.ttl = ttl
        self.refreshed = now
        self.attached = True
        self.deadline = now + ttl
        self.keys: set[bytes] = set()
        self.queued = math.inf


class LeaseBook:
    """Every open lease.

    Args:
        grace: Seconds that a lease outlives its owner's connection.
    """

    def __init__(self, grace: float = DISCONNECT_GRACE) -> None:
        self._grace = grace
        self._entries: dict[Hashable, LeaseEntry] = {}
        self._owners: dict[Hashable, set[Hashable]] = {}
        # Never searched: a refresh leaves its old item in place, which is moved on when it comes to the top.
        self._heap: list[tuple[float, int, LeaseEntry]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LeaseEntry]:
        return iter(self._entries.values())

    def get(self, name: Hashable) -> LeaseEntry | None:
        """Return the lease called ``name`` or None."""
        return self._entries.get(name)

    def refresh(self, name: Hashable, owner: Hashable, ttl: float, now: float) -> LeaseEntry:
        """Open the lease, or give an open one its full time again."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = LeaseEntry(name, owner, ttl, now)
            self._owners.setdefault(owner, set()).add(name)
            self._push(entry)
            return entry
        if entry.owner != owner:
            self._disown(entry)
            entry.owner = owner
            self._owners.setdefault(owner, set()).add(name)
        entry.attached = True
        entry.ttl = ttl
        entry.refreshed = now
        self._move(entry, now + ttl)
        return entry

    def attach(self, owner: Hashable, now: float) -> int:
        """Give the leases of an owner that has returned, so lives, their full time again; returns how many."""
        names = self._owners.get(owner, ())
        for name in names:
            entry = self._entries[name]
            entry.attached = True
            entry.refreshed = now
            self._move(entry, now + entry.ttl)
        return len(names)

    def detach(self, owner: Hashable, now: float) -> int:
        """Start the disconnect grace of an owner's leases; returns how many there are."""
        names = self._owners.get(owner, ())
        for name in names:
            entry = self._entries[name]
            if entry.attached:
                entry.attached = False
                self._move(entry, min(entry.deadline, now + self._grace))
        return len(names)

    def close(self, name: Hashable) -> LeaseEntry | None:
        """End a lease and return it for its keys; None if there is none."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._disown(entry)
            entry.deadline = math.inf
        return entry

    def expired(self, now: float) -> Iterable[LeaseEntry]:
        """End and return the leases whose time is over."""
        ended = []
        while self.next_expiry() <= now:
            entry = heappop(self._heap)[2]
            self.close(entry.name)
            ended.append(entry)
        return ended

    def next_expiry(self) -> float:
        """When the next lease ends; ``inf`` if none will."""
        heap = self._heap
        while heap:
            due, _, entry = heap[0]
            if due != entry.queued or self._entries.get(entry.name) is not entry:
                heappop(heap)
            elif due < entry.deadline:
                heappop(heap)
                self._push(entry)
            else:
                return due
        return math.inf

    def _move(self, entry: LeaseEntry, deadline: float) -> None:
        sooner = deadline < entry.deadline
        entry.deadline = deadline
        if sooner:
            # The old item would come to the top too late.
            self._push(entry)

    def _push(self, entry: LeaseEntry) -> None:
        self._pushes += 1
        entry.queued = entry.deadline
        heappush(self._heap, (entry.deadline, self._pushes, entry))

    def _disown(self, entry: LeaseEntry) -> None:
        names = self._owners.get(entry.owner)
        if names is not None:
            names.discard(entry.name)
            if not names:
                del self._owners[entry.owner]
