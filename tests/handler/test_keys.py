"""Every key of a run."""

from __future__ import annotations

import itertools

import pytest

from arendezvous.handler.keys import Keys

ODD = ["run", "run/1", "run%2F1", "a b", "ключ", "%", "/", "run/", "/run", "..", "run:1"]


@pytest.mark.parametrize("run_id", ODD)
def test_everything_of_a_run_lives_under_its_quoted_name(run_id: str) -> None:
    """design.md 3; D27."""
    keys = Keys(run_id)
    assert keys.prefix.startswith("arendezvous/1/")
    assert keys.prefix.count("/") == 3
    for key in (keys.state, keys.bell, keys.beats, keys.beat(b"\1" * 16), keys.log(b"e", 1), keys.round(3, b"n")):
        assert key.startswith(keys.prefix)
        assert len(key) > len(keys.prefix)


@pytest.mark.parametrize(("one", "two"), list(itertools.permutations(ODD, 2)))
def test_no_run_is_found_under_another(one: str, two: str) -> None:
    """D27: run "job" round 1 key "2/x" is not run "job/1" round 2 key "x"."""
    assert not Keys(one).prefix.startswith(Keys(two).prefix)


def test_keys_of_different_things_differ() -> None:
    keys, inc, other = Keys("run"), b"\1" * 16, b"\2" * 16
    every = [
        keys.state,
        keys.bell,
        keys.beat(inc),
        keys.beat(other),
        keys.record(b"e", 0, inc, 1),
        keys.record(b"e", 0, inc, 2),
        keys.record(b"e", 1, inc, 1),
        keys.record(b"f", 0, inc, 1),
        keys.record(b"e", 0, other, 1),
        keys.round(0, b"a"),
        keys.round(0, b"b"),
        keys.round(1, b"a"),
    ]
    assert len(set(every)) == len(every)
    # A scan for generation 1 must not find generation 10.
    assert not keys.record(b"e", 10, inc, 1).startswith(keys.log(b"e", 1))
    assert keys.record(b"e", 1, inc, 1).startswith(keys.log(b"e", 1))
    assert keys.beat(inc).startswith(keys.beats)
