"""Outcomes: the first one counts, and waiting for one that is there returns at once."""

from __future__ import annotations

from arendezvous.errors import RendezvousClosedError
from arendezvous.handler.outcome import WITHDRAW_LIMIT, Counters, Limits, Waiter
from tests.support import fail_after


async def test_the_first_outcome_counts() -> None:
    waiter = Waiter()
    waiter.settle(reason="done")
    waiter.settle(error=RendezvousClosedError("too late"))
    with fail_after(5):
        await waiter.event.wait()
    assert (waiter.reason, waiter.error) == ("done", None)


def test_a_withdrawal_is_bounded_by_a_second() -> None:
    """design.md 3: the node withdraws within a bounded second."""
    assert Limits().withdraw == WITHDRAW_LIMIT == 1.0


def test_counters_start_at_nothing() -> None:
    counters = Counters()
    assert all(getattr(counters, name) == 0 for name in Counters.__slots__)
