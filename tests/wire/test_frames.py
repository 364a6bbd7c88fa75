"""Frames, fed whole, byte by byte and with a tail."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.wire.errors import WireError
from arendezvous.wire.frames import MAX_FRAME, FrameDecoder, encode_frame

CONTENTS = st.lists(st.binary(max_size=40), max_size=8)


@given(contents=CONTENTS, tail=st.binary(max_size=3))
def test_frames_come_out_the_same_however_they_are_fed(contents: list[bytes], tail: bytes) -> None:
    data = b"".join(map(encode_frame, contents))
    assert FrameDecoder().feed(data) == contents

    decoder = FrameDecoder()
    found: list[bytes] = []
    for index in range(len(data)):
        found += decoder.feed(data[index : index + 1])
    assert found == contents
    assert decoder.buffered == 0

    # A tail of at most three bytes is the start of a header: it is kept and completes nothing.
    decoder = FrameDecoder()
    assert decoder.feed(data + tail) == contents
    assert decoder.buffered == len(tail)


@given(contents=CONTENTS, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_frames_come_out_the_same_wherever_the_pieces_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, contents))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = FrameDecoder()
    found: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        found += decoder.feed(data[start:end])
    assert found == contents


def test_an_empty_frame_is_a_frame() -> None:
    assert FrameDecoder().feed(encode_frame(b"") + encode_frame(b"x")) == [b"", b"x"]


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 0xFFFFFFFF])
def test_a_length_over_the_cap_fails_before_anything_is_allocated(length: int) -> None:
    """R50, R52."""
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=str(length)):
            decoder.feed(length.to_bytes(4, "little"))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_frame_at_the_cap_passes_and_one_above_it_does_not() -> None:
    assert FrameDecoder(8).feed(encode_frame(b"12345678")) == [b"12345678"]
    with pytest.raises(WireError):
        FrameDecoder(8).feed(encode_frame(b"123456789"))


def test_failure_is_sticky() -> None:
    decoder = FrameDecoder(8)
    with pytest.raises(WireError):
        decoder.feed(b"\xff" * 64)
    with pytest.raises(WireError):
        decoder.feed(encode_frame(b"fine"))
    assert decoder.buffered == 0


def test_a_frame_too_large_to_send_is_refused() -> None:
    with pytest.raises(WireError, match="9 bytes"):
        encode_frame(b"123456789", 8)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_wire_error(data: bytes) -> None:
    decoder = FrameDecoder(64)
    try:
        for index in range(0, len(data), 7):
            decoder.feed(data[index : index + 7])
    except WireError:
        pass
