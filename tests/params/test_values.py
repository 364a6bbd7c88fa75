"""Single values, from what was given to what is kept."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from arendezvous.params.values import (
    MAX_COUNT,
    MAX_NODES,
    MAX_SECONDS,
    check_run_id,
    node_bounds,
    option_bool,
    option_int,
    option_seconds,
    positive_duration,
    to_count,
    to_int,
    to_text,
)


class Index:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


def test_integers_of_any_library_are_integers_and_nothing_else_is() -> None:
    """D20, D22."""
    assert to_int("n", 5) == 5
    assert to_int("n", Index()) == 7
    for value in (True, 5.0, "5", None, b"5"):
        with pytest.raises(TypeError, match="n must be an integer"):
            to_int("n", value)


def test_counts_have_a_least_and_a_most() -> None:
    assert [to_count("n", value, 1) for value in (1, MAX_COUNT)] == [1, MAX_COUNT]
    for value in (0, -3, MAX_COUNT + 1):
        with pytest.raises(ValueError, match=rf"n \({value}\)"):
            to_count("n", value, 1)


def test_text_is_text() -> None:
    assert to_text("s", "") == ""
    with pytest.raises(TypeError, match="s must be a string"):
        to_text("s", b"")


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 5), (MAX_NODES, MAX_NODES)])
def test_bounds_in_order_are_kept(low: int, high: int) -> None:
    assert node_bounds(low, high, "nodes") == (low, high)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [(0, 1, "greater than zero"), (-5, 1, r"\(-5\)"), (3, 2, "greater than or equal"), (1, MAX_NODES + 1, "at most")],
)
def test_bounds_out_of_order_are_named(low: int, high: int, message: str) -> None:
    """D21."""
    with pytest.raises(ValueError, match=message):
        node_bounds(low, high, "nodes")


@pytest.mark.parametrize("run_id", ["job", "a/b", "ключ", " x ", "%"])
def test_a_run_id_is_any_printable_text(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    ("run_id", "error"), [("", ValueError), ("  ", ValueError), ("a\nb", ValueError), (None, TypeError)]
)
def test_a_run_id_is_neither_blank_nor_control_characters(run_id: object, error: type[Exception]) -> None:
    """R27."""
    with pytest.raises(error):
        check_run_id(run_id)


@pytest.mark.parametrize(
    ("value", "seconds"), [(1, 1), (0.5, 0.5), (timedelta(minutes=1), 60), (MAX_SECONDS, MAX_SECONDS), (1e-6, 1e-6)]
)
def test_durations_are_timedeltas_or_seconds(value: Any, seconds: float) -> None:
    assert positive_duration("limit", value).total_seconds() == seconds


@pytest.mark.parametrize(
    "value", [0, -1, timedelta(0), 1e-9, math.nan, math.inf, -math.inf, 10**400, -(10**400)], ids=lambda v: repr(v)[:24]
)
def test_a_duration_that_is_none_is_a_value_error_that_names_it(value: Any) -> None:
    """D19, D22."""
    with pytest.raises(ValueError, match="The limit"):
        positive_duration("limit", value)


@pytest.mark.parametrize("value", [True, "1", None, b"1"], ids=repr)
def test_a_duration_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="The limit"):
        positive_duration("limit", value)


@pytest.mark.parametrize("value", [True, 1, "1", "true", "tRue", "T", "yEs", "Y"], ids=repr)
def test_true_in_every_spelling(value: object) -> None:
    assert option_bool({"k": value}, "k") is True


@pytest.mark.parametrize("value", [False, 0, "0", "faLse", "F", "f", "nO", "N"], ids=repr)
def test_false_in_every_spelling(value: object) -> None:
    assert option_bool({"k": value}, "k") is False


@pytest.mark.parametrize("value", [2, -1, 1.0, "", " true ", "on", "01", "truefalse", "_", []], ids=repr)
def test_what_is_no_boolean_is_a_value_error_that_names_the_option(value: object) -> None:
    """defects.md 2.12."""
    with pytest.raises(ValueError, match="'k' does not represent a valid boolean") as caught:
        option_bool({"k": value}, "k")
    assert repr(value) in caught.value.__notes__[0]


@pytest.mark.parametrize(("value", "number"), [("12", 12), (" 12 ", 12), ("-5", -5), (7, 7), (Index(), 7)], ids=repr)
def test_integers_as_text_or_as_they_are(value: object, number: int) -> None:
    assert option_int({"k": value}, "k") == number


@pytest.mark.parametrize("value", [True, 3.9, "1_000", "3.9", "", "0x10", [1], math.inf, "٣", b"7", "9" * 65], ids=repr)
def test_what_is_no_integer_is_a_value_error(value: object) -> None:
    """D22, defects.md 2.12."""
    with pytest.raises(ValueError, match="'k' does not represent a valid integer"):
        option_int({"k": value}, "k")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0.5", 0.5), (" 2 ", 2), ("1e-1", 0.1), (".5", 0.5), (3, 3), (timedelta(1), 86400), (-1, -1)],
    ids=repr,
)
def test_seconds_take_fractions(value: object, seconds: float) -> None:
    assert option_seconds({"k": value}, "k") == seconds


@pytest.mark.parametrize(
    "value", [True, "nan", "inf", math.nan, math.inf, "", "1_0", "5s", [], 10**400], ids=lambda v: repr(v)[:9]
)
def test_what_is_no_duration_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="'k' does not represent a valid duration"):
        option_seconds({"k": value}, "k")


def test_a_missing_option_is_none() -> None:
    for option in (option_bool, option_int, option_seconds):
        assert option({}, "k") is None
        assert option({"k": None}, "k") is None
