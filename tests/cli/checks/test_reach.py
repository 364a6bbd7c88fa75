from __future__ import annotations

import anyio

from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.reach import Visit, dial, judge_visit, open_listener
from tests.support import fail_after


async def test_a_dialer_and_a_listener_see_each_other_and_a_stranger_is_one() -> None:
    visits: list[Visit] = []
    with fail_after(20):
        async with open_listener(0) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, visits.append)
            found = await dial("127.0.0.1", listener.port, 5)
            assert [finding.level for finding in found if finding.level is Level.FAIL] == []
            async with await anyio.connect_tcp("127.0.0.1", listener.port) as stream:
                await stream.send(b"GET / HTTP/1.0\n")
                try:
                    await stream.receive()
                except anyio.EndOfStream:
                    pass
            while len(visits) < 2:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert [visit.words is None for visit in visits] == [True, False]
    assert judge_visit(visits[0]).level is Level.NOTE  # from this machine it proves nothing about the network
    assert judge_visit(visits[1]).level is not Level.OK
