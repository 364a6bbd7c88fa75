from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from arendezvous import MemoryStore
from arendezvous.agent.obituary import Obituary, publish, read_others
from tests.support import fail_after


def member(store: MemoryStore, rank: int) -> Any:
    return SimpleNamespace(store=store, rank=rank, world_size=3)


async def test_the_others_read_it_and_rubbish_is_passed_over() -> None:
    with fail_after(10):
        async with MemoryStore() as store:
            await publish(member(store, 1), Obituary("worker 0 exited with status 1", ("Boom\x1b[2J",)))
            await store.set("agent/died/2", b"rubbish")
            await store.set("agent/died/77", b"rubbish")
            assert await read_others(member(store, 1)) == []
            ((rank, told),) = await read_others(member(store, 0))
    assert (rank, told.who) == (1, "worker 0 exited with status 1")
    assert list(told.tell("round 0")) == [
        "round 0: worker 0 exited with status 1; it last wrote:",
        "  | Boom\\x1b[2J",
    ]
    assert list(Obituary("x", ()).tell("round 0")) == []
