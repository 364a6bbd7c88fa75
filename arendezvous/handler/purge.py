"""End a run from outside: close it, or remove what it left in the store. Never hosts, never joins."""

from __future__ import annotations

from dataclasses import dataclass

from ..backend import P10dRendezvousBackend
from ..core.codec import decode_state
from ..core.state import RendezvousState
from ..errors import RendezvousStateError
from ..params import RendezvousParameters
from ..store.base import Store
from ..text import listed
from .closing import close_run
from .entropy import SystemEnvironment
from .inspect import as_client, reset
from .keys import Keys

__all__ = ("Purged", "Remains", "close", "purge", "remains")


@dataclass(frozen=True, slots=True)
class Remains:
    """What a run has in the store.

    Attributes:
        keys: The names of all its keys, in creation order.
        closed: ``no``, ``closed`` or ``done``; None when there is no state that can be read.
        damage: Why the state cannot be read; None when it can, or when there is none.
        attached: Names of the nodes whose connection and heartbeat the store knows.
        unfinished: Names of the members of a closed round that had not finished. They may still be at work: members
            of a closed run have no heartbeats, and nothing of what they do is recorded any more.
    """

    keys: tuple[str, ...]
    closed: str | None
    damage: str | None
    attached: tuple[str, ...]
    unfinished: tuple[str, ...] = ()

    def obstacle(self, force: bool = False) -> str | None:
        """Why the keys have to stay and what to do about it, or None.

        Args:
            force: A run that is not closed may be purged as well, as long as nobody is attached.
        """
        if self.damage is not None:
            return None  # removing it is what helps whoever waits there
        if self.attached:
            who = f"{len(self.attached)} live node{'s' * (len(self.attached) > 1)}: {listed(self.attached)}"
            if self.closed in ("closed", "done"):
                return f"it is {self.closed}, but still has {who}; wait until they have ended"
            return f"it has {who}; close it first (`arendezvous close`) and wait until they have ended"
        if self.closed == "no" and not force:
            return "it is not closed, though no live node is attached; close it first (`arendezvous close`), or --force"
        return None


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did.

    Attributes:
        removed: How many keys it removed.
        was_reset: It threw a state away that could not be read.
        obstacle: Why it removed nothing; None when nothing was in the way.
        attached: Nodes that are attached still: of a damaged run, only the state was thrown away for them.
    """

    removed: int = 0
    was_reset: bool = False
    obstacle: str | None = None
    attached: tuple[str, ...] = ()


async def close(params: RendezvousParameters) -> str | None:
    """Close a run for ever, by the same swap as :meth:`RendezvousHandler.set_closed`.

    Args:
        params: Backend, endpoint, run id and store options.

    Returns:
        str | None: how the run was closed before this call, ``no``, ``closed`` or ``done``; None when nobody has ever
        joined it, and then nothing was written.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint.
        RendezvousStateError: what is stored there is damaged.
        ValueError: an option or the endpoint is malformed.

    Cancellation:
        Safe: the run may or may not have been closed.
    """
    keys = Keys(params.run_id)
    async with as_client(params) as store:
        backend = P10dRendezvousBackend(store, params.run_id, key=keys.state)
        got = await backend.get_state()
        if got is None:
            return None
        state = decode_state(got[0])
        if not state.is_closed:
            await close_run(store, backend, keys, state.settings, SystemEnvironment())
        return state.closed.value


async def remains(params: RendezvousParameters) -> Remains:
    """What there is to purge; only reads.

    Args:
        params: Backend, endpoint, run id and store options.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint.
        ValueError: an option or the endpoint is malformed.

    Cancellation:
        Safe: nothing is written.
    """
    async with as_client(params) as store:
        return (await _survey(store, Keys(params.run_id)))[1]


async def purge(params: RendezvousParameters, *, force: bool = False) -> Purged:
    """Remove the keys of a run that is over; a run with attached nodes is left alone.

    A state that cannot be read is thrown away (see :func:`~arendezvous.handler.inspect.reset`) also if nodes are
    attached: they then form a new round, and everything else of the run stays.

    Args:
        params: Backend, endpoint, run id and store options.
        force: Also purge a run that is not closed, if no node is attached.

    Raises:
        RendezvousConnectionError: nobody serves the endpoint, or it went away half-way; purging again goes on.
        ValueError: an option or the endpoint is malformed.

    Cancellation:
        Safe: some of the keys may be gone; purging again goes on.
    """
    keys = Keys(params.run_id)
    before = await remains(params)
    was_reset = before.damage is not None and await reset(params)
    if was_reset and before.attached:
        return Purged(was_reset=True, attached=before.attached)  # their heartbeats pause until they join again
    async with as_client(params) as store:
        while True:
            raw, found = await _survey(store, keys)
            if (obstacle := found.obstacle(force)) is not None:
                return Purged(was_reset=was_reset, obstacle=obstacle, attached=found.attached)
            # The state goes first and by a swap: who joined since that look has changed it, and is looked at again.
            if not raw or (await store.compare_and_swap(keys.state, raw, b""))[0]:
                break
        # Only what was there at that look: the keys of somebody who joins now have names of their own. Should the state
        # be theirs already, they are told it is gone and write it again.
        removed = 0
        for key in sorted(found.keys, key=lambda key: key != keys.state):
            removed += await store.delete_key(key)
        return Purged(removed, was_reset)


async def _survey(store: Store, keys: Keys) -> tuple[bytes | None, Remains]:
    """The raw state, and what there is."""
    backend = P10dRendezvousBackend(store, keys.run_id, key=keys.state)
    while True:
        raw = await store.peek(keys.state)
        state: RendezvousState | None = None
        damage = None
        try:
            got = await backend.get_state()
            state = None if got is None else decode_state(got[0])
        except RendezvousStateError as exc:
            damage = str(exc)
        if await store.peek(keys.state) == raw:
            break  # all three are the same: each write has a counter of its own
    leases = await store.leases(keys.beats)
    listing = tuple(key for key, _ in await store.scan(keys.prefix))
    attached = tuple(_name(state, keys, info.key) for info in leases if info.attached)
    unfinished: tuple[str, ...] = ()
    if state is not None and state.is_closed and state.complete:
        unfinished = tuple(state.name(inc) for inc in state.live if inc not in state.finished)
    return raw, Remains(listing, None if state is None else state.closed.value, damage, attached, unfinished)


def _name(state: RendezvousState | None, keys: Keys, beat: str) -> str:
    text = beat.removeprefix(keys.beats)
    try:
        inc = bytes.fromhex(text)
    except ValueError:
        return f"incarnation {text[:8]!r}"
    return f"incarnation {text[:8]}" if state is None else state.name(inc)
