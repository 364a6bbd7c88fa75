"""Everything that two nodes can do with three faults and three nodes with one: no violation, no stuck state, no circle.

``pytest -s`` prints how many states each run has. Two explorations run at a time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from .config import Config
from .explorer import Outcome, explore

pytestmark = pytest.mark.timeout(1800)

_EVERYTHING = {"flight": 1, "suspend": 1, "close": 1}

#: The longest ones first, so that both processors are busy to the end.
QUICK = {
    "two nodes, three faults": Config(2, 1, 2, 3),
    "two nodes, both needed, three faults of any kind": Config(2, 2, 2, 3, _EVERYTHING),
    "two nodes, finishing": Config(2, 1, 2, 2, {"finish": 2}),
    "three nodes": Config(3, 1, 3, 1, _EVERYTHING),
    "three nodes, all needed, finishing": Config(3, 3, 3, 1, {**_EVERYTHING, "finish": 3}),
    "three nodes, one spare, finishing": Config(3, 2, 2, 1, {"flight": 1, "finish": 3}),
    "two nodes, two faults of any kind": Config(2, 1, 2, 2, _EVERYTHING),
    "three nodes, two needed": Config(3, 2, 3, 1, _EVERYTHING),
    "three nodes, one or two": Config(3, 1, 2, 1, _EVERYTHING),
    "three nodes, one seat": Config(3, 1, 1, 1, _EVERYTHING),
    "twins and another": Config(3, 2, 3, 1, places=(0, 0, 1)),
    "twins": Config(2, 1, 2, 2, places=(0, 0)),
    "members that are not told of losses": Config(3, 1, 2, 1, {"flight": 1}, notify_lost=False),
    "leaving and coming back, no tombstone kept": Config(
        2, 1, 2, 2, {"flight": 1, "again": 1, "crash": 0, "restart": 0}, tombstone_limit=0
    ),
    "two nodes, both needed, curious about nothing": Config(2, 2, 2, 2, {"flight": 1}, curious=False),
    "the store is lost": Config(2, 2, 2, 2, {"flight": 1, "loss": 1}),
    "the store is lost, or somebody finishes": Config(2, 1, 2, 1, {"loss": 1, "finish": 2}),
    "one node with other settings": Config(3, 2, 3, 1, misfits=(2,)),
    "restarts with another process number": Config(3, 2, 3, 1, relocate=True),
}

SLOW = {
    "the store is lost, two faults": Config(2, 1, 2, 2, {"loss": 1, "finish": 2, "flight": 1}),
    "two nodes, three faults of any kind": Config(2, 1, 2, 3, _EVERYTHING),
    "two nodes, finishing, three faults": Config(2, 1, 2, 3, {"finish": 2}),
    "two nodes, both needed, finishing, three faults": Config(2, 2, 2, 3, {**_EVERYTHING, "finish": 2}),
    "leaving and coming back": Config(2, 1, 2, 3, {"flight": 1, "again": 2, "cancel": 2}, tombstone_limit=0),
    "three nodes, finishing": Config(3, 1, 3, 1, {**_EVERYTHING, "finish": 3}),
    "three nodes, two needed, finishing": Config(3, 2, 3, 1, {**_EVERYTHING, "finish": 3}),
    "three nodes, one spare, two faults": Config(3, 2, 2, 2),
    "three nodes, all needed, two faults": Config(3, 3, 3, 2),
    "three nodes, one seat, two faults": Config(3, 1, 1, 2),
    "three nodes, two needed, two faults": Config(3, 2, 3, 2, {"spontaneous": 0}),
    "four nodes, two seats": Config(4, 2, 2, 1),
    "four nodes, one spare": Config(4, 3, 3, 1),
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Outcome]]]:
    """The explorations of the tests that were selected, two at a time."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1)
    try:
        yield {name: pool.submit(explore, {**QUICK, **SLOW}[name]) for name in wanted}
    finally:
        # After a failure under -x nobody waits for the rest.
        pool.shutdown(cancel_futures=True)


def _check(outcome: Outcome) -> None:
    print(outcome)
    assert outcome.complete
    assert outcome.clean, str(outcome)
    assert outcome.rests, "some rest states are legal"


@pytest.mark.parametrize("name", QUICK)
def test_nothing_goes_wrong(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    _check(outcomes[name].result())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_nothing_goes_wrong_in_a_longer_run(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    _check(outcomes[name].result())
