from __future__ import annotations

import anyio

from arendezvous import RendezvousInfo, RendezvousParameters, create_handler
from arendezvous.agent.obituary import Obituary, publish, read_all, shown
from tests.support import fail_after


async def test_the_others_read_it_and_rubbish_is_passed_over() -> None:
    """Two members of a real round."""
    infos: dict[int, RendezvousInfo] = {}
    both = anyio.Event()
    params = RendezvousParameters("memory", "obituary", "job", 2, 2)

    async def member() -> None:
        async with create_handler(params) as handler:
            info = await handler.next_rendezvous()
            infos[info.rank] = info
            if len(infos) == 2:
                both.set()
            await anyio.sleep_forever()

    with fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member)
            tasks.start_soon(member)
            await both.wait()
            await publish(infos[1], Obituary("worker 0 exited with status 1", ("Boom\x1b[2J",), final=True))
            await infos[0].store.set("agent/died/0", b"rubbish")
            await infos[0].store.set("agent/died/77", b"rubbish")
            found = await read_all(infos[0])
            tasks.cancel_scope.cancel()
    assert list(found) == [1]
    assert shown(found, own_rank=1) == []
    ((rank, told),) = shown(found, own_rank=0)
    assert (rank, told.who, told.final) == (1, "worker 0 exited with status 1", True)
    assert list(told.tell("round 0")) == [
        "round 0: worker 0 exited with status 1; it last wrote:",
        "  | Boom\\x1b[2J",
    ]
    assert list(Obituary("x", ()).tell("round 0")) == []


def test_only_the_first_few_are_shown() -> None:
    """After a collective breaks, every node has one."""
    found = {rank: Obituary(f"worker of {rank}", ("x",)) for rank in range(100)}
    assert [rank for rank, _ in shown(found, own_rank=1)] == [0, 2, 3]
