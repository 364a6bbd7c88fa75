"""Clocks of simulated nodes."""

from __future__ import annotations

import math
from random import Random

import anyio
import pytest

from arendezvous.testing.simclock import NodeClock, Outage, Pause, SeededEnvironment, SpinError, passes
from tests.support import VIRTUAL


def test_a_clock_has_an_origin_and_a_rate() -> None:
    clock = NodeClock(100.0, 2.0)
    assert clock.show(0) == 100
    assert clock.show(5) == 110
    assert clock.instant(110) == pytest.approx(5)


def test_a_frozen_pause_stops_the_clock() -> None:
    clock = NodeClock(0.0, 1.0, [Pause(2, 5, frozen=True)])
    assert clock.show(3) == clock.show(5) == 2
    assert clock.show(6) == 3
    assert clock.instant(3) == pytest.approx(6)


def test_another_pause_lets_the_clock_run_but_fires_no_timer() -> None:
    clock = NodeClock(0.0, 1.0, [Pause(2, 5, frozen=False)])
    assert clock.show(3) == 3
    assert clock.instant(3) == pytest.approx(5)
    assert clock.instant(6) == pytest.approx(6)


@pytest.mark.parametrize("frozen", [True, False])
def test_whoever_sleeps_until_an_instant_of_its_clock_never_wakes_before_it(frozen: bool) -> None:
    rng = Random(1)
    for _ in range(500):
        clock = NodeClock(rng.uniform(0, 1e5), rng.uniform(0.5, 2), [Pause(2, 5, frozen), Pause(7, 7.5, not frozen)])
        shown = clock.show(rng.uniform(0, 10))
        at = clock.instant(shown)
        assert clock.show(at) >= shown
        assert not 2 <= at < 5
        assert not 7 <= at < 7.5


def test_never_is_never() -> None:
    assert NodeClock(5, 2).instant(math.inf) == math.inf


def test_things_pass_when_no_outage_is_in_the_way() -> None:
    outages = [Outage(1, 2, reset=False), Outage(2, 3, reset=True)]
    assert passes(outages, 0.5) == 0.5
    assert passes(outages, 1.5) == 3
    assert passes(outages, 3) == 3


@VIRTUAL
async def test_an_environment_maps_the_clock_of_the_loop() -> None:
    env = SeededEnvironment(NodeClock(1000, 2.0), Random(1))
    began = env.now()
    await anyio.sleep_until(env.deadline(began + 10))
    assert env.now() == pytest.approx(began + 10)
    assert env.now() >= began + 10


@VIRTUAL
async def test_an_environment_is_as_random_as_its_seed() -> None:
    first, again, other = (SeededEnvironment(NodeClock(), Random(seed)) for seed in (1, 1, 2))
    assert (first.random(), first.token()) == (again.random(), again.token())
    assert first.token() != other.token()
    assert len(other.token()) == 16


@VIRTUAL
async def test_who_asks_for_the_time_for_ever_without_waiting_is_stopped() -> None:
    env = SeededEnvironment(NodeClock(), Random(1))
    with pytest.raises(SpinError):
        while True:
            env.now()
    env.now()
