"""Beating and watching: one loop, so that who cannot watch does not beat (protocol.md P7).

A heartbeat is a counter on a lease, O(1) bytes, with the nonce of the state its owner saw last. Watching is waiting
for the neighbour's key to change; the store says so when it vanishes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from ..core.liveness import Sighting, absent, seen
from ..errors import RendezvousConnectionError
from ..store.base import Lease, Store
from .entropy import Environment
from .keys import Keys

__all__ = ("Heart", "Observer")

logger = logging.getLogger(__name__)

_BEAT = struct.Struct(">Q8s")


class Heart:
    """This node's own heartbeat.

    Args:
        env: Clock and randomness.
        keys: The run's keys.
        inc: Own incarnation.
        interval: Seconds between beats.
        timeout: Seconds that one beat may take before it counts as failed.
        nonce: Returns the nonce of the state last seen.
        late: Called after a pause of this process that was longer than an interval.
    """

    def __init__(
        self,
        env: Environment,
        keys: Keys,
        inc: bytes,
        *,
        interval: float,
        timeout: float,
        nonce: Callable[[], bytes],
        late: Callable[[], None],
    ) -> None:
        self._env, self._key = env, keys.beat(inc)
        self._interval, self._timeout, self._nonce, self._late = interval, timeout, nonce, late
        self._count = 0
        self.failed = 0

    async def beat(self, lease: Lease) -> None:
        """Send one beat.

        Raises:
            RendezvousConnectionError: it did not arrive within the heartbeat time-out.
        """
        self._count += 1
        with anyio.move_on_at(self._env.deadline(self._env.now() + self._timeout)) as scope:
            await lease.set(self._key, _BEAT.pack(self._count, self._nonce()[:8].ljust(8, b"\0")))
        if scope.cancelled_caught:
            raise RendezvousConnectionError(f"a heartbeat did not reach the store within {self._timeout:g} s")

    async def run(self, lease: Lease) -> None:
        """Beat for ever; a failed beat is counted and logged, and the next one is sent all the same (R52, R97)."""
        due = self._env.now() + self._interval
        while True:
            await anyio.sleep_until(self._env.deadline(due))
            now = self._env.now()
            if now - due > self._interval:
                self._late()  # suspended, or a blocked event loop: what was seen before proves nothing
            due = max(due + self._interval, now)
            try:
                await self.beat(lease)
            except Exception as exc:  # noqa: BLE001  whatever a store raises, the next beat may get through (R52)
                self.failed += 1
                logger.warning("heartbeat %d failed (%d so far): %s", self._count, self.failed, exc)


class Observer:
    """Watches some incarnations and keeps what it saw of each.

    Args:
        env: The observer's clock.
        store: Where the heartbeats are.
        keys: The run's keys.
        changed: Called when a sighting changed in a way that may change a decision.
        differs: Called with the state nonce that a neighbour reports, so that a lost notice heals.
    """

    def __init__(
        self,
        env: Environment,
        store: Store,
        keys: Keys,
        *,
        changed: Callable[[], None],
        differs: Callable[[bytes], None],
    ) -> None:
        self._env, self._store, self._keys = env, store, keys
        self._changed, self._differs = changed, differs
        self.sightings: dict[bytes, Sighting] = {}
        self._scopes: dict[bytes, anyio.CancelScope] = {}

    def follow(self, targets: Iterable[bytes], tg: TaskGroup) -> None:
        """Watch exactly ``targets`` from now on."""
        wanted = set(targets)
        for inc in [inc for inc in self._scopes if inc not in wanted]:
            self._scopes.pop(inc).cancel()
        # A sighting that nobody renews would look like silence later, so it goes with its watch.
        for inc in [inc for inc in self.sightings if inc not in wanted]:
            del self.sightings[inc]
        for inc in sorted(wanted - self._scopes.keys()):  # in an order that a simulation can repeat
            scope = self._scopes[inc] = anyio.CancelScope()
            tg.start_soon(self._watch, inc, scope)

    def restart(self) -> None:
        """Forget how long everybody has been silent: this observer was not looking."""
        now = self._env.now()
        for inc, s in self.sightings.items():
            self.sightings[inc] = replace(s, since=now, progressed=now, absent=None if s.absent is None else now)

    def silent(self, interval: float) -> set[bytes]:
        """Those that missed a beat, so that watching goes on past them."""
        now = self._env.now()
        return {inc for inc, s in self.sightings.items() if s.absent is not None or now - s.progressed > 1.5 * interval}

    async def verify(self, incs: Iterable[bytes]) -> None:
        """Ask the store about the leases of ``incs`` before a decision that a dropped connection could change.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
        """
        leases = {info.key: info for info in await self._store.leases(self._keys.beats)}
        now = self._env.now()
        for inc in incs:
            info, before = leases.get(self._keys.beat(inc)), self.sightings.get(inc)
            if info is None:
                self.sightings[inc] = absent(before, now)
            elif not info.attached:
                known = before if before is not None and before.value is not None else None
                value = b"" if known is None or known.value is None else known.value
                self.sightings[inc] = seen(known, value, now, attached=False)
            elif before is not None:
                # What the store heard counts, however late it was to reach this observer.
                progressed = max(before.progressed, now - info.age)
                self.sightings[inc] = replace(before, absent=None, dropped=False, progressed=progressed)

    async def _watch(self, inc: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            key = self._keys.beat(inc)
            value = await self._store.peek(key)
            while self._scopes.get(inc) is scope:  # news may have been on the way when the watch was cancelled
                now, before = self._env.now(), self.sightings.get(inc)
                after = absent(before, now) if value is None else seen(before, value, now)
                self.sightings[inc] = after
                if before is None or after.absent != before.absent or after.moved != before.moved:
                    self._changed()
                if value is not None and len(value) == _BEAT.size:
                    self._differs(_BEAT.unpack(value)[1])
                value = await self._store.watch(key, value)
