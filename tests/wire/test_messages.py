"""Requests and replies: any bytes are one of them or one documented error."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.wire import messages as say
from arendezvous.wire.digest import Digest
from arendezvous.wire.errors import WireError

REQUESTS = [
    say.Set(1, b"k", b"v"),
    say.Peek(2, b""),
    say.Get(3, [b"a", b"a"], True),
    say.Check(4, []),
    say.CompareAndSwap(5, b"k", b"", b"\xff\xfe"),
    say.CompareAndSwap(6, b"k", Digest(100, b"d" * 16), b""),
    say.Add(7, b"n", -(2**63)),
    say.Append(8, b"k", b"\x00"),
    say.Delete(9, b"k"),
    say.NumKeys(10),
    say.MultiSet(11, [(b"a", b"1"), (b"b", b"2")]),
    say.Scan(12, b"p/"),
    say.Watch(13, b"k", None),
    say.Watch(14, b"k", b"v"),
    say.Watch(15, b"k", Digest(65, b"d" * 16)),
    say.LeaseOpen(16, 1, 0.5),
    say.LeaseSet(17, 1, 5, b"k", b"v"),
    say.LeaseClose(18, 1),
    say.Leases(19, b""),
    say.Cancel(20),
    say.Ping(2**53 - 1),
    say.Clock(21),
]
REPLIES = [
    say.Done(1),
    say.Value(2, None),
    say.Value(3, b""),
    say.Values(4, [b"", b"x"]),
    say.Swapped(5, True, None),
    say.Swapped(6, False, b"v"),
    say.Number(7, 2**63 - 1),
    say.Pairs(8, [(b"k", b"v")]),
    say.LeaseList(9, [(b"k", 0.5, 3.0, True)]),
    say.Failed(10, "no number"),
    say.Time(11, 1.5e9),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_a_request_comes_out_as_it_went_in(request_: say.Request) -> None:
    assert say.decode_request(say.encode(request_)) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=repr)
def test_a_reply_comes_out_as_it_went_in(reply: say.Reply) -> None:
    assert say.decode_reply(say.encode(reply)) == reply


def test_every_message_is_exercised_here() -> None:
    kinds = {kind for _, kind in inspect.getmembers(say, inspect.isclass)}
    for base, examples in ((say.Request, REQUESTS), (say.Reply, REPLIES)):
        assert {kind for kind in kinds if issubclass(kind, base) and kind is not base} == set(map(type, examples))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x90",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([1, 1, b"k", "text"]),
        msgspec.msgpack.encode([1, -1, b"k", b"v"]),
        msgspec.msgpack.encode([1, 2**60, b"k", b"v"]),
        msgspec.msgpack.encode([1, 1, b"k", b"v", b"more"]),
        msgspec.msgpack.encode([3, 1, [b""] * (say.MAX_KEYS + 1), True]),
        msgspec.msgpack.encode([12, 1, b"k", [100, b"short"]]),
        msgspec.msgpack.encode([12, 1, b"k", [-1, b"d" * 16]]),
        msgspec.msgpack.encode([13, 1, 1, 0.0]),
        msgspec.msgpack.encode([13, 1, 1, float("nan")]),
        msgspec.msgpack.encode([13, 1, 1, float("inf")]),
        say.encode(say.Ping(1)) + b"\x00",
        b"\x91" * 100_000,
    ],
    ids=range(17),
)
def test_what_is_no_request_is_a_wire_error(content: bytes) -> None:
    with pytest.raises(WireError):
        say.decode_request(content)


ANY = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=20) | st.text(),
        lambda inner: st.lists(inner, max_size=5),
        max_leaves=12,
    ).map(msgspec.msgpack.encode),
    st.builds(
        lambda message, at, byte: (
            (content := bytearray(say.encode(message)), content.__setitem__(at % len(content), byte)) and bytes(content)
        ),
        st.sampled_from([*REQUESTS, *REPLIES]),
        st.integers(0, 1000),
        st.integers(0, 255),
    ),
)


@given(content=ANY)
def test_any_bytes_are_a_message_or_a_wire_error(content: bytes) -> None:
    for decode in (say.decode_request, say.decode_reply):
        try:
            message = decode(content)
        except WireError:
            continue
        assert decode(say.encode(message)) == message or "nan" in repr(message)
