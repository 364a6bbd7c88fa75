from __future__ import annotations

import anyio

from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Node, form, outcome, params
from tests.support import VIRTUAL, fail_after


@VIRTUAL
async def test_two_nodes_get_the_two_ranks_of_one_world() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2)) as a, Node(store, params(2, 2)) as b:
        with fail_after(5):
            infos = await form(a, b)
    assert sorted(outcome(infos)) == [(0, 0, 2), (0, 1, 2)]
    assert infos[0].participants == infos[1].participants
