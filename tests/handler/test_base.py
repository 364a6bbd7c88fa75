"""What every handler has by itself."""

from __future__ import annotations

from typing import Any

from arendezvous.errors import RendezvousConnectionError, RendezvousTimeoutError
from arendezvous.handler.base import RendezvousHandler
from arendezvous.handler.changes import Changes, Publisher
from arendezvous.handler.info import RendezvousInfo
from arendezvous.handler.rounds import Rounds
from arendezvous.handler.status import RendezvousStatus
from arendezvous.params import RendezvousSettings


class Least(RendezvousHandler):
    """The least that a third party must write."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem, self.closed = problem, False

    async def __aenter__(self) -> Least:
        return self

    async def __aexit__(self, *exc: Any) -> None: ...

    @property
    def settings(self) -> RendezvousSettings:
        return RendezvousSettings("run", 1, 1)

    def get_backend(self) -> str:
        return "least"

    def get_run_id(self) -> str:
        return "run"

    async def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(None, 0, 1)  # type: ignore[arg-type]

    async def is_closed(self) -> bool:
        return self.closed

    async def set_closed(self) -> None:
        if self.problem is not None:
            raise self.problem
        self.closed = True

    async def num_nodes_waiting(self) -> int:
        return 0

    async def leave(self) -> None: ...

    async def status(self) -> RendezvousStatus:
        raise NotImplementedError

    def changes(self) -> Changes:
        return Publisher().listen()

    def fail(self, reason: str) -> None: ...


async def test_shutdown_closes_and_says_so() -> None:
    handler = Least()
    assert await handler.shutdown()
    assert await handler.is_closed()


async def test_shutdown_is_false_when_closing_failed_for_a_documented_reason() -> None:
    """D47: the documented value instead of an exception."""
    for problem in (RendezvousConnectionError("down"), RendezvousTimeoutError("late")):
        assert not await Least(problem).shutdown()


async def test_rounds_run_over_any_handler() -> None:
    async with Least() as handler:
        assert isinstance(handler.rounds(), Rounds)
        async for world in handler.rounds():
            async with world:
                assert (world.rank, world.world_size) == (0, 1)
                world.finish()


def test_the_defaults_are_the_documented_ones() -> None:
    handler = Least()
    assert handler.use_agent_store is False
    assert handler.exit_barrier == 300
    assert handler.pre_shutdown() is None  # type: ignore[func-returns-value]
