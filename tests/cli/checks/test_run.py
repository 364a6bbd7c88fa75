from __future__ import annotations

from arendezvous import RendezvousParameters, create_handler, inspect
from arendezvous.cli.checks.run import judge, look
from arendezvous.store.server import TCPStoreServer
from tests.support import fail_after


async def test_a_run_is_looked_at_without_joining() -> None:
    with fail_after(20):
        async with TCPStoreServer("127.0.0.1", 0) as server:
            params = RendezvousParameters("p10d", server.endpoint, "job", 1, 1, config={"is_host": "false"})
            (found,) = await look(params, 5)
            assert found.seen == "nobody has joined"
            async with create_handler(params) as handler:
                await handler.next_rendezvous()
                found = judge(await inspect(params))[0]
            assert (found.subject, "round 0 is complete with 1 nodes" in found.seen) == ("run job", True)
