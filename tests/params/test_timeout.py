"""Time-outs: what is taken, what is refused in which words, what is read."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.params import MAX_SECONDS, RendezvousParameters, RendezvousTimeout

NAMES = ("join", "last_call", "close", "heartbeat")


def params(**options: Any) -> RendezvousParameters:
    return RendezvousParameters("p10d", "h:1", "r", **options)


def test_the_defaults_are_the_documented_ones() -> None:
    timeout = RendezvousTimeout()
    assert [getattr(timeout, name) for name in NAMES] == [timedelta(seconds=s) for s in (600, 30, 30, 5)]
    assert RendezvousTimeout(None, None, None, None) == timeout
    assert params().timeout == timeout


def test_timedelta_and_seconds_mean_the_same() -> None:
    one = RendezvousTimeout(timedelta(minutes=1), timedelta(milliseconds=500), 1.5, 2)
    assert one == RendezvousTimeout(60, 0.5, timedelta(seconds=1.5), 2.0)
    assert (one.join, one.last_call, one.close, one.heartbeat) == (
        timedelta(seconds=60),
        timedelta(seconds=0.5),
        timedelta(seconds=1.5),
        timedelta(seconds=2),
    )
    assert (one.join_seconds, one.last_call_seconds, one.close_seconds, one.heartbeat_seconds) == (60.0, 0.5, 1.5, 2.0)


def test_equality_hash_and_repr() -> None:
    assert hash(RendezvousTimeout(join=60)) == hash(RendezvousTimeout(join=timedelta(minutes=1)))
    assert RendezvousTimeout(join=60) != RendezvousTimeout(join=61)
    timeout = RendezvousTimeout(1234567.25, 0.001, 30)
    assert repr(timeout) == "RendezvousTimeout(join=1234567.25, last_call=0.001, close=30, heartbeat=5)"
    assert eval(repr(timeout)) == timeout


def test_it_is_frozen_and_survives_pickle_copy_and_replace() -> None:
    timeout = RendezvousTimeout(join=1.25)
    with pytest.raises(dataclasses.FrozenInstanceError):
        timeout.join = timedelta(1)  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(timeout)) == copy.deepcopy(timeout) == timeout
    assert dataclasses.replace(timeout, close=timedelta(seconds=7)) == RendezvousTimeout(join=1.25, close=7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0:00:00"),
        (0.0, "0:00:00"),
        (-1, "-1 day, 23:59:59"),
        (timedelta(0), "0:00:00"),
        (timedelta(seconds=-1), "-1 day, 23:59:59"),
        (1e-9, "0:00:00"),
        (-math.inf, "-inf"),
        (-(10**400), "-1"),
    ],
)
def test_a_timeout_that_is_not_positive_is_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match="must be positive") as info:
        RendezvousTimeout(**{name: value})
    assert str(info.value).startswith(f"The {name} timeout ({text}")
    assert str(info.value).endswith(") must be positive.")


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, MAX_SECONDS + 1, timedelta.max], ids=str)
def test_a_timeout_that_is_no_span_of_time_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"The close timeout \(.*\) must be (a number of|at most 1000000000) seconds"):
        RendezvousTimeout(close=value)


@pytest.mark.parametrize("value", [True, False, "5", b"5", [5], {}], ids=repr)
def test_a_timeout_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="The join timeout must be a timedelta or a number of seconds"):
        RendezvousTimeout(join=value)


@given(st.floats(1e-5, MAX_SECONDS))
def test_any_fraction_of_seconds_is_kept_to_the_microsecond(seconds: float) -> None:
    timeout = RendezvousTimeout(heartbeat=seconds)
    assert abs(timeout.heartbeat_seconds - seconds) <= 1e-6
    assert params(heartbeat_timeout=str(seconds)).timeout == timeout


def test_options_are_read_as_text_numbers_and_timedelta() -> None:
    asked = params(
        config={"join_timeout": "0.5", "last_call_timeout": " 7 ", "close_timeout": 1.25},
        heartbeat_timeout=timedelta(seconds=321),
    )
    assert asked.timeout == RendezvousTimeout(0.5, 7, 1.25, 321)
    assert RendezvousTimeout.from_params(asked) == asked.timeout


@pytest.mark.parametrize("value", ["0", "-1", "-0.5", 0, -3, timedelta(0)], ids=repr)
def test_an_option_that_is_not_positive_is_refused_as_the_timeout_it_is(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^The last_call timeout \(.*\) must be positive\.$"):
        params(last_call_timeout=value).timeout  # noqa: B018


@pytest.mark.parametrize(
    "value", ["", "x", "5s", "1_000", "nan", "inf", "1e999", math.nan, math.inf, True, [5], b"5"], ids=repr
)
def test_an_option_that_is_no_duration_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="option 'join_timeout' does not represent a valid duration value"):
        params(join_timeout=value).timeout  # noqa: B018
