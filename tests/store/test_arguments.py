"""Checks of keys and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.store.arguments import (
    check_amount,
    check_keys,
    check_pairs,
    check_ttl,
    check_value,
    decode_key,
    encode_key,
    name_keys,
)


@given(key=st.text())
def test_any_text_is_a_key_and_keeps_its_name(key: str) -> None:
    assert decode_key(encode_key(key)) == key


@given(stored=st.binary())
def test_any_stored_key_has_a_name(stored: bytes) -> None:
    assert encode_key(decode_key(stored)) == stored


def test_what_is_no_text_is_no_key() -> None:
    with pytest.raises(TypeError, match="bytes"):
        encode_key(b"k")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        encode_key("\ud800")


@pytest.mark.parametrize("keys", ["key", b"key"], ids=["str", "bytes"])
def test_one_key_where_several_belong_is_a_mistake(keys: object) -> None:
    with pytest.raises(TypeError, match="list of str"):
        check_keys(keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), memoryview(b"v")])
def test_values_are_anything_that_holds_bytes(value: bytes) -> None:
    checked = check_value(value)
    assert checked == b"v"
    assert type(checked) is bytes


@pytest.mark.parametrize("value", ["v", 1, None, [1]])
def test_nothing_else_is_a_value(value: object) -> None:
    with pytest.raises(TypeError):
        check_value(value)  # type: ignore[arg-type]


def test_pairs_need_a_value_for_each_key() -> None:
    assert check_pairs(["a"], [b"1"]) == [(b"a", b"1")]
    with pytest.raises(ValueError, match="1 keys but 2 values"):
        check_pairs(["a"], [b"1", b"2"])


def test_amounts_are_integers_of_64_bits() -> None:
    assert check_amount(-(2**63)) == -(2**63)
    for bad in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            check_amount(bad)
    for odd in (True, 1.0, "1"):
        with pytest.raises(TypeError):
            check_amount(odd)  # type: ignore[arg-type]


def test_a_time_to_live_is_a_positive_number() -> None:
    assert check_ttl(3) == 3.0
    for bad in (0, -1, float("inf"), float("nan"), True, "3"):
        with pytest.raises(ValueError, match="ttl"):
            check_ttl(bad)  # type: ignore[arg-type]


def test_many_missing_keys_are_named_in_part() -> None:
    assert name_keys(["a"]) == "'a'"
    assert name_keys([str(number) for number in range(10)], most=2) == "'0', '1' and 8 more"
