"""Closing a run: acknowledged only by a closed state, whoever else writes meanwhile (protocol.md P13)."""

from __future__ import annotations

from typing import Any

import anyio

from arendezvous.backend import P10dRendezvousBackend
from arendezvous.core.codec import decode_state, encode_state
from arendezvous.core.fold import Fresh, create
from arendezvous.core.state import AgreedSettings, Closed, Kind, Record, RendezvousState
from arendezvous.errors import RendezvousConnectionError
from arendezvous.handler.announcements import Announcements
from arendezvous.handler.closing import close_run
from arendezvous.handler.entropy import SystemEnvironment
from arendezvous.handler.keys import Keys
from arendezvous.node import NodeDesc
from arendezvous.store.memory import MemoryStore
from tests.support import fail_after

KEYS = Keys("run")
SETTINGS = AgreedSettings(1, 2)
ENV = SystemEnvironment()


def backend(store: Any) -> P10dRendezvousBackend:
    return P10dRendezvousBackend(store, "run", key=KEYS.state)


async def stored(store: Any) -> RendezvousState:
    got = await backend(store).get_state()
    assert got is not None
    return decode_state(got[0])


def first_state() -> RendezvousState:
    inc = ENV.token()
    record = Record(inc, 1, Kind.JOIN, NodeDesc("a", 1, 0, inc), SETTINGS)
    return create(record, epoch=ENV.token(), fresh=Fresh(ENV.token(), ENV.token()))


async def test_a_run_that_nobody_joined_is_closed_too() -> None:
    async with MemoryStore() as store:
        await close_run(store, backend(store), KEYS, SETTINGS, ENV)
        assert (await stored(store)).closed is Closed.CLOSED


async def test_closing_twice_writes_once() -> None:
    async with MemoryStore() as store:
        await close_run(store, backend(store), KEYS, SETTINGS, ENV)
        raw = await store.peek(KEYS.state)
        await close_run(store, backend(store), KEYS, SETTINGS, ENV)
        assert await store.peek(KEYS.state) == raw


class Contested(P10dRendezvousBackend):
    """Somebody else always writes first, as often as told; the answers of some writes are lost."""

    def __init__(self, store: MemoryStore, *, losses: int = 0, lost_answers: int = 0) -> None:
        super().__init__(store, "run", key=KEYS.state)
        self.losses, self.lost_answers = losses, lost_answers

    async def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        if self.losses:
            self.losses -= 1
            other = backend(self.store)
            got = await other.get_state()
            await other.set_state(encode_state(first_state()), got[1] if got else None)
        answer = await super().set_state(state, token)
        if self.lost_answers:
            self.lost_answers -= 1
            raise RendezvousConnectionError("the answer was lost")
        return answer


async def test_after_two_lost_swaps_closing_is_announced_as_well() -> None:
    async with MemoryStore() as store:
        await backend(store).set_state(encode_state(first_state()))
        with fail_after(5):
            await close_run(store, Contested(store, losses=3), KEYS, SETTINGS, ENV)
        assert (await stored(store)).is_closed
        announced = [key for key, _ in await store.scan(KEYS.prefix + "log/")]
        assert len(announced) == 1


async def test_a_lost_answer_is_settled_by_reading() -> None:
    """P11."""
    async with MemoryStore() as store:
        with fail_after(5):
            await close_run(store, Contested(store, lost_answers=1), KEYS, SETTINGS, ENV)
        assert (await stored(store)).is_closed


async def test_a_closing_that_is_cancelled_leaves_a_readable_state() -> None:
    async with MemoryStore() as store:
        await backend(store).set_state(encode_state(first_state()))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await close_run(store, backend(store), KEYS, SETTINGS, ENV)
        assert not (await stored(store)).is_closed
        assert await Announcements(store, KEYS).bell() is None
