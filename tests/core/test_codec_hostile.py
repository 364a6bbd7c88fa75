"""Damaged and hostile bytes: a value or ``RendezvousStateError``, little memory, no code run."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from arendezvous.core.codec import decode_record, decode_state, encode_record, encode_state
from arendezvous.core.fold import Fresh, fold
from arendezvous.core.state import RendezvousState, invariants
from arendezvous.errors import RendezvousStateError

from .kit import completed, finish, join, leave, node
from .test_codec import crowd


def rich_state() -> RendezvousState:
    """Members, one gone, one finished, a waiter, a tombstone."""
    run = completed(2, 4, *"abcd")
    run.step(run.join("b", 2, failed=True), run.join("x"), finish("c", run.state.round_nonce), leave("y", 9))
    run.step(suspects="d")
    assert len(run.state.gone) == 2
    return run.state


STATE = encode_state(rich_state())
JOIN = encode_record(join("a", 3, last_round=2))
LEAVE = encode_record(leave("a", 3, finished=b"r" * 16))
SAMPLES: list[Any] = [
    pytest.param(decode_state, STATE, id="state"),
    pytest.param(decode_record, JOIN, id="join"),
    pytest.param(decode_record, LEAVE, id="leave"),
]


def _short(error: RendezvousStateError) -> None:
    assert len(str(error)) < 1000


def tried(decode: Callable[[bytes], object], data: bytes) -> object:
    """A good value or None; any other error than the documented one escapes and fails the test."""
    try:
        value = decode(data)
    except RendezvousStateError as error:
        _short(error)
        return None
    if isinstance(value, RendezvousState):
        assert invariants(value) == []
        encode_state(value)
        fold(value, [], fresh=Fresh(b"N" * 16, b"R" * 16))
    return value


@pytest.mark.parametrize(("decode", "data"), SAMPLES)
def test_every_truncation_is_refused(decode: Any, data: bytes) -> None:
    for size in range(len(data)):
        assert tried(decode, data[:size]) is None


@pytest.mark.parametrize(("decode", "data"), SAMPLES)
def test_every_single_flipped_bit_gives_a_value_or_the_documented_error(decode: Any, data: bytes) -> None:
    for at in range(len(data)):
        for bit in range(8):
            tried(decode, data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])


@pytest.mark.parametrize(("decode", "data"), SAMPLES)
def test_every_single_replaced_byte_gives_a_value_or_the_documented_error(decode: Any, data: bytes) -> None:
    heads = (0x00, 0x7F, 0x80, 0x90, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC9, 0xCB, 0xCF, 0xD3, 0xD9, 0xDD, 0xDF, 0xFF)
    for at in range(len(data)):
        for head in heads:
            tried(decode, data[:at] + bytes([head]) + data[at + 1 :])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("decode", "data"), SAMPLES)
def test_heavy_damage_gives_a_value_or_the_documented_error(decode: Any, data: bytes, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(5, len(damaged))
            what = rng.random()
            if what < 0.5:
                damaged[at] ^= 1 << rng.randrange(8)
            elif what < 0.7:
                del damaged[at : at + rng.randint(1, 9)]
            elif what < 0.9:
                damaged[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                piece = damaged[rng.randrange(len(damaged)) :][:20]
                damaged[at:at] = piece
            if len(damaged) < 6:
                break
        tried(decode, bytes(damaged))


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"ARZS")
@example(b"ARZR")
@example(b"ARZS\x01")
@example(b"tp-rendezvous-null")
@example(b"1:gASVCAAAAAAAAAB9lC4=")
def test_any_bytes_give_the_documented_error(data: bytes) -> None:
    for decode in (decode_state, decode_record):
        assert tried(decode, data) is None
        tried(decode, b"ARZS\x01" + data)
        tried(decode, b"ARZR\x01" + data)


ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 2**63), st.floats(), st.binary(max_size=17), st.text(max_size=9)
)
TREES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.lists(TREES, max_size=17), st.data())
def test_any_well_formed_body_gives_a_value_or_the_documented_error(tree: list[Any], data: st.DataObject) -> None:
    for decode, sample in ((decode_state, STATE), (decode_record, JOIN)):
        tried(decode, sample[:5] + msgspec.msgpack.encode(tree))
        body = msgspec.msgpack.decode(sample[5:])
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(TREES)
        tried(decode, sample[:5] + msgspec.msgpack.encode(body))


# ---- memory -----------------------------------------------------------------------------------------------------


def peak(decode: Callable[[bytes], object], data: bytes) -> int:
    """Bytes that a refused decode took at most."""
    tracemalloc.start()
    try:
        assert tried(decode, data) is None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = [
    b"\xdc\xff\xff",  # array 16
    b"\xdd\xff\xff\xff\xff",  # array 32
    b"\xdd\x00\x01\x86\x9f",  # array of 99 999: within our own cap
    b"\xde\xff\xff",  # map 16
    b"\xdf\xff\xff\xff\xff",  # map 32
    b"\xc6\xff\xff\xff\xff",  # bytes 32
    b"\xc6\x7f\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",  # text 32
    b"\xc9\xff\xff\xff\xff\x01",  # extension 32
]


def positions(sample: bytes) -> Iterator[bytes]:
    """The sample cut off before each of its fields, and before each field of its first descriptor."""
    body = msgspec.msgpack.decode(sample[5:])
    head = msgspec.msgpack.encode([None] * len(body))[: 3 if len(body) > 15 else 1]
    for count, value in enumerate(body):
        start = sample[:5] + head + b"".join(map(msgspec.msgpack.encode, body[:count]))
        yield start
        if isinstance(value, list):
            yield start + b"\x91"
            yield start + b"\x91\x98"


@pytest.mark.parametrize("header", HUGE, ids=bytes.hex)
def test_a_header_that_claims_much_allocates_nothing(header: bytes) -> None:
    """R50, R52: memory is bounded by the input, not by what it claims."""
    for decode, sample in ((decode_state, STATE), (decode_record, JOIN)):
        for start in positions(sample):
            assert peak(decode, start + header) < 64 * 1024


def test_deep_nesting_is_refused() -> None:
    for decode, magic in ((decode_state, b"ARZS\x01"), (decode_record, b"ARZR\x01")):
        for nest in (b"\x91", b"\x81\xa0", b"\xdd\x00\x00\x00\x01"):
            assert peak(decode, magic + nest * 3000) < 1024 * 1024


def test_many_small_claims_take_no_more_than_a_multiple_of_the_input() -> None:
    body = msgspec.msgpack.decode(STATE[5:])
    for name in (10, 11, 12, 13, 14, 15):
        for filler in ([0] * 100_000, [[0, 0]] * 50_000, [None] * 100_001):
            data = STATE[:5] + msgspec.msgpack.encode([*body[:name], filler, *body[name + 1 :]])
            assert peak(decode_state, data) < 100 * len(data)


def test_decoding_takes_memory_in_proportion_to_the_nodes() -> None:
    data = encode_state(crowd(1000))
    tracemalloc.start()
    decode_state(data)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 30 * len(data)


# ---- pickle -----------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it creates a file: what an attacker's value would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_under_our_key_runs_no_code(tmp_path: Path) -> None:
    """D1, R128."""
    trace = tmp_path / "executed"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        bomb = pickle.dumps(Bomb(trace), protocol)
        for wrapped in (bomb, b"ARZS\x01" + bomb, b"ARZR\x01" + bomb, STATE + bomb, STATE[:5] + bomb, b"1:" + bomb):
            assert tried(decode_state, wrapped) is None
            assert tried(decode_record, wrapped) is None
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "the bomb itself works"


def test_the_codec_knows_no_extension_types() -> None:
    """An extension would be decoded to an object of a type that the sender names."""
    body = msgspec.msgpack.decode(JOIN[5:])
    for at in range(len(body)):
        hostile = [*body[:at], msgspec.msgpack.Ext(1, b"x"), *body[at + 1 :]]
        assert tried(decode_record, JOIN[:5] + msgspec.msgpack.encode(hostile)) is None


def test_text_that_is_no_unicode_is_refused() -> None:
    data = encode_record(join("a", place="address-of-sixteen"))
    assert tried(decode_record, data.replace(b"address-of", b"\xff\xfeaddress"[:10])) is None


def test_a_nan_among_the_attributes_harms_nobody() -> None:
    record = replace(join("a"), node=node("a", attributes={"x": float("nan")}))
    assert decode_record(encode_record(record)) == record
