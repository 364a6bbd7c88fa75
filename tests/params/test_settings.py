"""Settings: documented defaults, refusals with numbers, what is read from parameters."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest

from arendezvous.core import codec
from arendezvous.node import RANK_ORDERS
from arendezvous.params import MAX_NODES, RendezvousParameters, RendezvousSettings, RendezvousTimeout


def settings(**changes: Any) -> RendezvousSettings:
    return RendezvousSettings(**{"run_id": "r", "min_nodes": 2, "max_nodes": 4, **changes})


def test_the_defaults_are_the_documented_ones() -> None:
    made = settings()
    assert made == RendezvousSettings("r", 2, 4, RendezvousTimeout(), timedelta(seconds=5), 3, "address")
    assert (made.keep_alive_seconds, made.keep_alive_max_attempt, made.expiry) == (5.0, 3, 15.0)


def test_the_positional_form_is_the_documented_one() -> None:
    made = RendezvousSettings("r", 1, 2, RendezvousTimeout(join=7), 0.5, 4)
    assert (made.run_id, made.min_nodes, made.max_nodes) == ("r", 1, 2)
    assert (made.keep_alive_interval, made.keep_alive_max_attempt) == (timedelta(seconds=0.5), 4)
    assert (made.keep_alive_seconds, made.expiry) == (0.5, 2.0)
    timeout = made.timeout
    assert (made.join, made.last_call, made.close, made.heartbeat) == (
        timeout.join,
        timeout.last_call,
        timeout.close,
        timeout.heartbeat,
    )
    assert made.join == timedelta(seconds=7)


def test_it_is_frozen_hashable_and_survives_pickle_copy_and_replace() -> None:
    made = settings(keep_alive_interval=0.25, rank_order="stable")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.run_id = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert hash(made) == hash(settings(keep_alive_interval=timedelta(milliseconds=250), rank_order="stable"))
    moved = dataclasses.replace(made, run_id="other")
    assert (moved.run_id, moved.keep_alive_interval, moved.rank_order) == ("other", timedelta(seconds=0.25), "stable")
    assert made != moved


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run_id": ""}, "The run id must be a non-empty string."),
        ({"run_id": "  "}, "The run id must be a non-empty string."),
        ({"min_nodes": 0}, "The minimum number of nodes (0) must be greater than zero."),
        ({"min_nodes": -5}, "The minimum number of nodes (-5) must be greater than zero."),
        (
            {"min_nodes": 5},
            "The maximum number of nodes (4) must be greater than or equal to the minimum number of nodes (5).",
        ),
        ({"max_nodes": MAX_NODES + 1}, "The maximum number of nodes (100001) must be at most 100000."),
        ({"keep_alive_interval": 0}, "The keep-alive interval (0:00:00) must be positive."),
        ({"keep_alive_interval": -1}, "The keep-alive interval (-1 day, 23:59:59) must be positive."),
        ({"keep_alive_interval": math.nan}, "The keep-alive interval (nan) must be a number of seconds."),
        ({"keep_alive_interval": math.inf}, "The keep-alive interval (inf) must be at most 1000000000 seconds."),
        ({"keep_alive_max_attempt": 0}, "keep_alive_max_attempt (0) must be at least 1 and at most 1000000."),
        ({"keep_alive_max_attempt": -3}, "keep_alive_max_attempt (-3) must be at least 1 and at most 1000000."),
        (
            {"keep_alive_interval": 0.01, "keep_alive_max_attempt": 3},
            (
                "The keep-alive interval (0.01 s) times keep_alive_max_attempt (3) must be at least 0.05 s: "
                "a busy host would take its live peers for dead."
            ),
        ),
        (
            {"rank_order": "adress"},
            (
                "There is no rank order 'adress'; it is one of address, natural, node_rank, stable. "
                "Did you mean 'address'?"
            ),
        ),
        ({"rank_order": None}, "There is no rank order None; it is one of address, natural, node_rank, stable."),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_number(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as info:
        settings(**changes)
    assert str(info.value) == text


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": None},
        {"run_id": 7},
        {"min_nodes": True},
        {"min_nodes": "2"},
        {"max_nodes": 4.0},
        {"max_nodes": math.inf},
        {"keep_alive_interval": True},
        {"keep_alive_interval": "5"},
        {"keep_alive_interval": None},
        {"keep_alive_max_attempt": True},
        {"keep_alive_max_attempt": 3.0},
        {"keep_alive_max_attempt": math.nan},
        {"timeout": 600},
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as info:
        settings(**changes)
    (name,) = changes
    assert name.replace("_", " ") in str(info.value).replace("_", " ").replace("-", " ")


def test_the_shortest_expiry_is_allowed() -> None:
    assert settings(keep_alive_interval=0.05, keep_alive_max_attempt=1).expiry == 0.05
    assert settings(keep_alive_interval=0.025, keep_alive_max_attempt=2).expiry == 0.05


@pytest.mark.parametrize("rank_order", RANK_ORDERS)
def test_every_documented_rank_order_is_accepted(rank_order: str) -> None:
    assert settings(rank_order=rank_order).rank_order == rank_order


def test_keep_alive_options_take_effect() -> None:
    # R89: values fit for thousands of ranks were not configurable.
    params = RendezvousParameters(
        "p10d",
        "h:1",
        "r",
        2,
        8,
        config={"keep_alive_interval": "1122", "heartbeat_timeout": "321", "keep_alive_max_attempt": "5"},
        rank_order="natural",
    )
    made = RendezvousSettings.from_params(params)
    assert made == RendezvousSettings("r", 2, 8, RendezvousTimeout(heartbeat=321), 1122, 5, "natural")
    assert made.expiry == 5610.0


def test_settings_of_bare_parameters_are_the_defaults() -> None:
    params = RendezvousParameters("p10d", "h:1", "r", 2, 4)
    assert RendezvousSettings.from_params(params) == settings()


@pytest.mark.parametrize(
    "options",
    [
        {"keep_alive_interval": "0"},
        {"keep_alive_interval": "-1"},
        {"keep_alive_interval": "soon"},
        {"keep_alive_interval": True},
        {"keep_alive_interval": "0.001"},
        {"keep_alive_max_attempt": "0"},
        {"keep_alive_max_attempt": "-3"},
        {"keep_alive_max_attempt": "1.5"},
        {"keep_alive_max_attempt": True},
        {"rank_order": "ADDRESS"},
        {"join_timeout": "0"},
    ],
)
def test_an_option_that_is_not_valid_is_a_value_error(options: dict[str, Any]) -> None:
    params = RendezvousParameters("p10d", "h:1", "r", **options)
    with pytest.raises(ValueError):
        RendezvousSettings.from_params(params)


def test_whatever_settings_allow_the_stored_state_allows() -> None:
    assert MAX_NODES == codec.MAX_NODES
