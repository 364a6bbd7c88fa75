"""The pure table: values, waiters, leases; time is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.store.table import Table
from arendezvous.wire.digest import digest_of


def test_compare_and_swap_follows_the_four_rules() -> None:
    """R59, D55."""
    table = Table()
    assert table.compare_and_swap(b"k", b"", b"v") == (True, b"v")
    assert table.compare_and_swap(b"k", b"", b"w") == (False, b"v")
    assert table.compare_and_swap(b"k", b"v", b"x") == (True, b"x")
    assert table.compare_and_swap(b"m", b"old", b"new") == (False, b"")
    assert table.get(b"m") is None
    table.set(b"e", b"")
    assert table.compare_and_swap(b"e", b"", b"filled") == (True, b"filled")
    # A rejected write of equal bytes is rejected all the same.
    assert table.compare_and_swap(b"e", b"other", b"filled") == (False, b"filled")


def test_compare_and_swap_takes_a_stand_in_for_a_long_value() -> None:
    table = Table()
    long = b"x" * 1000
    table.set(b"k", long)
    assert table.compare_and_swap(b"k", digest_of(b"y" * 1000), b"new") == (False, long)
    assert table.compare_and_swap(b"m", digest_of(long), b"new") == (False, b"")
    assert table.compare_and_swap(b"k", digest_of(long), b"new") == (True, b"new")


def test_counters_are_decimal_text() -> None:
    """R62."""
    table = Table()
    assert table.add(b"n", 5) == 5
    assert table.get(b"n") == b"5"
    table.set(b"n", b"7")
    assert table.add(b"n", 1) == 8
    assert table.add(b"n", -20) == -12
    assert table.get(b"n") == b"-12"
    for bad in (b"abc", b"", b" 7", b"+7", b"1_0", b"7\n", b"0x1", b"7" * 40, "٧".encode()):
        table.set(b"n", bad)
        with pytest.raises(ValueError, match="decimal"):
            table.add(b"n", 1)
        assert table.get(b"n") == bad


def test_a_counter_does_not_leave_64_bits() -> None:
    table = Table()
    table.add(b"n", 2**63 - 1)
    with pytest.raises(ValueError, match="64 bits"):
        table.add(b"n", 1)
    assert table.get(b"n") == b"%d" % (2**63 - 1)


def test_messages_leave_the_root_of_user_keys_away() -> None:
    table = Table(root=b"/")
    table.set(b"/n", b"x")
    with pytest.raises(ValueError, match="of 'n' is"):
        table.add(b"/n", 1)


def test_scan_lists_keys_in_the_order_of_their_creation() -> None:
    table = Table()
    for name in (b"p/3", b"q", b"p/1", b"p", b"p/2"):
        table.set(name, name.upper())
    table.set(b"p/3", b"again")
    assert table.scan(b"p/") == [(b"p/3", b"again"), (b"p/1", b"P/1"), (b"p/2", b"P/2")]
    table.delete(b"p/3")
    table.set(b"p/3", b"new")
    assert [key for key, _ in table.scan(b"p/")] == [b"p/1", b"p/2", b"p/3"]
    assert table.scan(b"nothing") == []
    assert table.count(b"p/") == 3
    assert table.count() == len(table) == 5


@given(
    names=st.lists(st.binary(max_size=3).map(lambda b: b.replace(b"a", b"\xff")), unique=True, max_size=12),
    prefix=st.sampled_from([b"", b"\xff", b"\xff\xff", b"\x00", b"b", b"b\xff"]),
)
def test_scan_agrees_with_looking_at_every_key(names: list[bytes], prefix: bytes) -> None:
    table = Table()
    for name in names:
        table.set(name, b"")
    expected = [name for name in names if name.startswith(prefix)]
    assert [key for key, _ in table.scan(prefix)] == expected
    assert table.count(prefix) == len(expected)


def test_a_waiter_is_told_when_the_last_key_comes() -> None:
    """R53."""
    table = Table()
    told: list[list[bytes]] = []
    table.set(b"1", b"a")
    waiter = table.wait([b"1", b"2"], told.append)
    assert waiter is not None
    assert waiter.missing == {b"2"}
    table.set(b"3", b"")
    assert told == []
    table.set(b"2", b"b")
    assert told == [[b"a", b"b"]]
    assert not waiter.pending
    table.set(b"2", b"c")
    assert len(told) == 1
    assert table.waiting == 0


@pytest.mark.parametrize("keys", [[], [b"1", b"1"], [b"1"]])
def test_waiting_for_what_is_there_is_over_at_once(keys: list[bytes]) -> None:
    """R53."""
    table = Table()
    table.set(b"1", b"a")
    told: list[list[bytes]] = []
    assert table.wait(keys, told.append) is None
    assert told == [[b"a"] * len(keys)]


def test_a_key_that_vanishes_while_others_are_waited_for_is_missing_again() -> None:
    table = Table()
    told: list[list[bytes]] = []
    table.set(b"1", b"a")
    table.wait([b"1", b"2"], told.append)
    table.delete(b"1")
    table.set(b"2", b"b")
    assert told == []
    table.set(b"1", b"c")
    assert told == [[b"c", b"b"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.set(b"k", b"new"),
        lambda t: t.set_many([(b"k", b"new")]),
        lambda t: t.compare_and_swap(b"k", b"7", b"new"),
        lambda t: t.add(b"k", 1),
        lambda t: t.append(b"k", b"x"),
        lambda t: t.delete(b"k"),
        lambda t: t.lease_set("l", "o", 1.0, b"k", b"new", 0.0),
    ],
    ids=["set", "set_many", "compare_and_swap", "add", "append", "delete", "lease_set"],
)
def test_every_kind_of_change_wakes_a_watcher(change: Callable[[Table], Any]) -> None:
    table = Table()
    told: list[bytes | None] = []
    table.set(b"k", b"7")
    table.watch(b"k", b"7", told.append)
    change(table)
    assert told == [table.get(b"k")]
    assert table.waiting == 0


def test_a_watch_that_differs_already_is_over_at_once() -> None:
    table = Table()
    told: list[bytes | None] = []
    assert table.watch(b"k", b"v", told.append) is None
    table.set(b"k", b"v")
    assert table.watch(b"k", None, told.append) is None
    assert table.watch(b"k", digest_of(b"v" * 100), told.append) is None
    assert told == [None, b"v", b"v"]


def test_writing_the_held_value_again_is_no_news() -> None:
    table = Table()
    told: list[bytes | None] = []
    long = b"v" * 100
    table.set(b"k", long)
    table.watch(b"k", digest_of(long), told.append)
    table.set(b"k", long)
    assert told == []
    table.set(b"k", b"other")
    assert told == [b"other"]


def test_a_cancelled_waiter_is_gone_and_the_others_are_told() -> None:
    """R116."""
    table = Table()
    told: list[str] = []
    first = table.watch(b"k", None, lambda _: told.append("first"))
    table.watch(b"k", None, lambda _: told.append("second"))
    waiting = table.wait([b"k", b"x"], lambda _: told.append("third"))
    assert table.waiting == 4
    assert first is not None
    assert waiting is not None
    for waiter in (first, waiting):
        waiter.cancel()
        waiter.cancel()
    assert table.waiting == 1
    table.set(b"k", b"v")
    table.set(b"x", b"v")
    assert told == ["second"]
    assert table.waiting == 0


def test_a_change_is_as_cheap_as_the_number_of_those_it_concerns() -> None:
    table = Table()
    told: list[object] = []
    for index in range(1000):
        table.watch(b"%d" % index, None, told.append)
        table.wait([b"w%d" % index], told.append)
    table.set(b"7", b"v")
    assert told == [b"v"]
    assert table.waiting == 1999


def test_a_lease_ends_ttl_seconds_after_its_last_refresh() -> None:
    table = Table()
    told: list[bytes | None] = []
    table.lease_set("l", "o", 3.0, b"k", b"v", now=10.0)
    table.watch(b"k", b"v", told.append)
    assert table.next_expiry() == 13.0
    table.lease_set("l", "o", 3.0, b"k2", b"w", now=12.0)
    assert table.next_expiry() == 15.0
    assert table.expire(14.9) == 0
    assert table.expire(15.0) == 1
    assert told == [None]
    assert len(table) == 0
    assert table.next_expiry() == math.inf


def test_a_lease_whose_owner_is_gone_lives_for_the_grace_only() -> None:
    table = Table(grace=1.0)
    table.lease_set("l", "o", 30.0, b"k", b"v", now=0.0)
    assert table.detach("o", now=5.0) == 1
    assert table.leases(b"", 5.5) == [(b"k", 5.5, 30.0, False)]
    assert table.next_expiry() == 6.0
    assert table.expire(6.0) == 1


def test_the_grace_never_prolongs_a_lease() -> None:
    table = Table(grace=1.0)
    table.lease_set("l", "o", 3.0, b"k", b"v", now=0.0)
    table.detach("o", now=2.5)
    assert table.next_expiry() == 3.0
    table.detach("o", now=2.9)
    assert table.next_expiry() == 3.0


def test_an_owner_that_comes_back_keeps_its_leases() -> None:
    table = Table(grace=1.0)
    table.lease_set("l", "o", 3.0, b"k", b"v", now=0.0)
    table.detach("o", now=1.0)
    assert table.attach("o", now=1.5) == 1
    assert table.next_expiry() == 4.5
    assert table.leases(b"", 2.0) == [(b"k", 0.5, 3.0, True)]
    assert table.attach("stranger", now=1.5) == 0


def test_a_lease_that_expired_is_opened_anew_by_a_write() -> None:
    table = Table()
    table.lease_set("l", "o", 1.0, b"k", b"v", now=0.0)
    table.expire(1.0)
    table.lease_set("l", "o", 1.0, b"k", b"w", now=5.0)
    assert table.get(b"k") == b"w"
    assert table.next_expiry() == 6.0


def test_closing_a_lease_removes_its_keys_at_once() -> None:
    table = Table()
    table.lease_set("l", "o", 1.0, b"a", b"", now=0.0)
    table.lease_set("l", "o", 1.0, b"b", b"", now=0.0)
    assert table.lease_close("l")
    assert not table.lease_close("l")
    assert len(table) == 0
    assert table.leases(b"", 0.0) == []


def test_a_plain_write_takes_a_key_out_of_its_lease() -> None:
    table = Table()
    table.lease_set("l", "o", 1.0, b"k", b"v", now=0.0)
    table.set(b"k", b"mine")
    table.expire(2.0)
    assert table.get(b"k") == b"mine"


def test_a_key_belongs_to_the_lease_that_wrote_it_last() -> None:
    table = Table()
    table.lease_set("old", "o", 1.0, b"k", b"v", now=0.0)
    table.lease_set("new", "o", 9.0, b"k", b"w", now=0.5)
    table.expire(1.0)
    assert table.get(b"k") == b"w"
    table.lease_close("new")
    assert table.get(b"k") is None


def test_a_deleted_leased_key_does_not_come_back_with_its_name() -> None:
    table = Table()
    table.lease_set("l", "o", 1.0, b"k", b"v", now=0.0)
    table.delete(b"k")
    table.set(b"k", b"plain")
    table.lease_close("l")
    assert table.get(b"k") == b"plain"


def test_a_value_over_the_cap_is_refused_and_nothing_is_changed() -> None:
    table = Table(max_value=4)
    table.set(b"k", b"1234")
    with pytest.raises(ValueError, match="larger"):
        table.set(b"k", b"12345")
    with pytest.raises(ValueError, match="larger"):
        table.append(b"k", b"5")
    with pytest.raises(ValueError, match="larger"):
        table.set_many([(b"a", b"1"), (b"b", b"12345")])
    with pytest.raises(ValueError, match="larger"):
        table.lease_set("l", "o", 1.0, b"c", b"12345", 0.0)
    assert table.scan(b"") == [(b"k", b"1234")]
    assert table.next_expiry() == math.inf
