"""Stand-ins for long values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arendezvous.wire.digest import INLINE_LIMIT, Digest, digest_of, matches, summarize

VALUES = st.one_of(st.binary(max_size=8), st.binary(min_size=60, max_size=70))


@given(value=VALUES)
def test_a_value_matches_its_summary(value: bytes) -> None:
    assert matches(value, summarize(value))
    assert isinstance(summarize(value), Digest) == (len(value) > INLINE_LIMIT)


@given(value=st.one_of(st.none(), VALUES), other=st.one_of(st.none(), VALUES))
def test_a_summary_says_what_the_value_says(value: bytes | None, other: bytes | None) -> None:
    held = None if other is None else summarize(other)
    assert matches(value, held) == (value == other)


def test_a_summary_of_a_long_value_is_short() -> None:
    digest = digest_of(b"x" * 10_000_000)
    assert digest.size == 10_000_000
    assert len(digest.checksum) == 16
