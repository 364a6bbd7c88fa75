from __future__ import annotations

from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.speak import converse, judge_round_trips, measure_round_trips, read_clock
from arendezvous.store.server import TCPStoreServer
from tests.support import fail_after


async def test_a_store_answers_the_hello_pings_and_its_clock() -> None:
    with fail_after(20):
        async with TCPStoreServer("127.0.0.1", 0) as server:
            port = int(server.endpoint.rpartition(":")[2])
            async with converse("127.0.0.1", port, 5) as (talk, found, own):
                assert (found.level, own) == (Level.OK, "127.0.0.1")
                assert talk is not None
                assert len(await measure_round_trips(talk, 5)) == 20
                assert all(abs(sample.ahead) < 1 for sample in await read_clock(talk, 5))


def test_slow_or_missing_pings() -> None:
    assert judge_round_trips([0.001] * 20, 5.0, 5.0).level is Level.OK
    assert judge_round_trips([0.5] * 20, 5.0, 5.0).level is Level.WARN
    assert judge_round_trips([], 5.0, 5.0).level is Level.FAIL
