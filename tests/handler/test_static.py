"""The rendezvous whose ranks are given."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousTimeoutError, RendezvousUsageError
from arendezvous.handler.static import StaticTCPRendezvous
from arendezvous.params import RendezvousParameters
from arendezvous.store.server import TCPStoreServer
from tests.handler.kit import outcome, together, until
from tests.support import fail_after


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


def parameters(endpoint: str, size: int, given: int | None, **options: Any) -> RendezvousParameters:
    return RendezvousParameters(
        "static", endpoint, "run", size, size, node_rank=given, **{"timeout": 20, "linger": 5, **options}
    )


async def joined(*params: RendezvousParameters, times: int = 1) -> list[list[Any]]:
    """What each of several nodes gets from each of ``times`` joins."""

    async def agent(one: RendezvousParameters) -> list[Any]:
        async with StaticTCPRendezvous(one) as handler:
            return [await handler.next_rendezvous() for _ in range(times)]

    with fail_after(30):
        return await together(*(lambda one=one: agent(one) for one in params))


async def test_every_node_gets_the_rank_it_was_given() -> None:
    """R31, D54: also rank 0's address, from every rank."""
    endpoint = free_endpoint()
    infos = [got[0] for got in await joined(*(parameters(endpoint, 3, rank) for rank in (2, 0, 1)))]
    assert outcome(infos) == [(0, 2, 3), (0, 0, 3), (0, 1, 3)]
    assert len({info.bootstrap_store_info for info in infos}) == 1
    assert infos[0].bootstrap_store_info.addr == "127.0.0.1"
    assert [node.node_rank for node in infos[0].participants] == [0, 1, 2]


async def test_the_option_rank_is_the_rank() -> None:
    """D54: it is not ignored, and wins over ``node_rank``."""
    endpoint = free_endpoint()
    first, second = parameters(endpoint, 2, None, rank=1), parameters(endpoint, 2, 1, rank="0")
    infos = [got[0] for got in await joined(first, second)]
    assert [info.rank for info in infos] == [1, 0]


async def test_joining_is_repeatable_and_each_round_has_a_store_of_its_own() -> None:
    endpoint = free_endpoint()
    mine, theirs = await joined(parameters(endpoint, 2, 0), parameters(endpoint, 2, 1), times=3)
    assert [info.round for info in mine] == [info.round for info in theirs] == [0, 1, 2]
    assert len({info.store.prefix for info in mine}) == 3


@pytest.mark.parametrize(
    ("endpoint", "rank", "message"),
    [
        ("", 0, "endpoint"),
        ("   ", 0, "endpoint"),
        ("host", 0, "port"),
        ("host:1", None, "rank"),
        ("host:1", 2, "less than the world size 2"),
        ("host:x", 0, "port"),
    ],
    ids=repr,
)
def test_what_is_missing_is_a_value_error_that_names_it(endpoint: str, rank: int | None, message: str) -> None:
    """D54."""
    with pytest.raises(ValueError, match=message):
        StaticTCPRendezvous(parameters(endpoint, 2, rank))


async def test_nodes_that_do_not_come_are_named_after_the_timeout() -> None:
    """D54, D52: the option ``timeout`` counts, and the message has run id, endpoint and the missing ranks."""
    endpoint = free_endpoint()
    errors: list[str] = []

    async def agent(rank: int) -> None:
        async with StaticTCPRendezvous(parameters(endpoint, 4, rank, timeout=0.5)) as handler:
            with pytest.raises(RendezvousTimeoutError) as caught:
                await handler.next_rendezvous()
            errors.append(str(caught.value))
            await until(lambda: len(errors) == 2)

    with fail_after(20):
        await together(lambda: agent(0), lambda: agent(2))
    for text in errors:
        for part in ("'run'", endpoint, "2 of 4", "0.5 s", "missing ranks: 1, 3"):
            assert part in text


async def test_a_node_whose_join_timed_out_meets_the_others_in_its_next_one() -> None:
    """The round counts what was completed, or those that waited at different times would never meet again."""
    endpoint = free_endpoint()
    async with StaticTCPRendezvous(parameters(endpoint, 2, 0, timeout=0.3)) as early:
        with pytest.raises(RendezvousTimeoutError):
            await early.next_rendezvous()
        async with StaticTCPRendezvous(parameters(endpoint, 2, 1)) as late:
            early._timeout = 20.0
            with fail_after(20):
                infos = await together(early.next_rendezvous, late.next_rendezvous)
    assert outcome(infos) == [(0, 0, 2), (0, 1, 2)]


async def test_a_port_that_is_taken_is_a_connection_error_that_names_it() -> None:
    """D54: rank 0 serves, and nobody else's server will do."""
    async with TCPStoreServer() as other:
        with pytest.raises(RendezvousConnectionError, match=str(other.port)):
            async with StaticTCPRendezvous(parameters(other.endpoint, 2, 0)):
                pass


async def test_rank_0_can_be_told_to_use_a_server_that_is_there() -> None:
    async with TCPStoreServer() as server:
        got = await joined(*(parameters(server.endpoint, 2, rank, is_host=False) for rank in (0, 1)))
    assert sorted(info[0].rank for info in got) == [0, 1]


async def test_a_host_that_never_comes_up_is_a_connection_error() -> None:
    endpoint = free_endpoint()
    with fail_after(20), pytest.raises(RendezvousConnectionError, match=endpoint):
        async with StaticTCPRendezvous(parameters(endpoint, 2, 1, timeout=0.5)):
            pass


async def test_a_static_membership_never_changes() -> None:
    async with StaticTCPRendezvous(parameters(free_endpoint(), 1, 0)) as handler:
        changes = handler.changes()
        assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("static", "run", False)
        assert (handler.settings.min_nodes, handler.settings.max_nodes) == (1, 1)
        before = await handler.status()
        assert (before.round, before.complete) == (None, False)
        await handler.next_rendezvous()
        await handler.leave()
        handler.fail("nothing")
        await handler.set_closed()
        assert await handler.shutdown()
        assert not await handler.is_closed()
        assert await handler.num_nodes_waiting() == 0
        status = await handler.status()
        assert (status.round, status.complete, status.max_nodes) == (0, True, 1)
        assert "rank 0" in status.explain()
    with fail_after(5):
        assert [change async for change in changes] == []


async def test_rounds_of_a_static_world_end_with_finish() -> None:
    async with StaticTCPRendezvous(parameters(free_endpoint(), 1, 0)) as handler:
        worlds = []
        with fail_after(10):
            async for world in handler.rounds():
                async with world:
                    worlds.append(world.round)
                    if len(worlds) == 3:
                        world.finish()
    assert worlds == [0, 1, 2]


async def test_a_cancelled_join_can_be_repeated() -> None:
    async with StaticTCPRendezvous(parameters(free_endpoint(), 2, 0)) as handler:
        with anyio.move_on_after(0.1) as scope:
            await handler.next_rendezvous()
        assert scope.cancelled_caught
        async with StaticTCPRendezvous(parameters(handler._params.endpoint, 2, 1)) as other:
            with fail_after(20):
                infos = await together(handler.next_rendezvous, other.next_rendezvous)
    assert outcome(infos) == [(0, 0, 2), (0, 1, 2)]


async def test_a_handler_is_used_inside_its_block() -> None:
    handler = StaticTCPRendezvous(parameters("127.0.0.1:1", 1, 0))
    with pytest.raises(RendezvousUsageError, match="async with"):
        await handler.next_rendezvous()
    with pytest.raises(RendezvousUsageError, match="async with"):
        await handler.status()
