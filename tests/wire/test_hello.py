"""The hello of both sides."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.wire.errors import WireError
from arendezvous.wire.hello import (
    FIRST_BYTE,
    MAX_TOKEN,
    VERSION,
    ClientHello,
    ClientHelloDecoder,
    ServerHello,
    ServerHelloDecoder,
    Status,
)

SESSION = bytes(range(16))


def feed_three_ways(make: Any, data: bytes, expected: object) -> None:
    """Whole, byte by byte, with a tail."""
    assert make().feed(data) == (expected, b"")
    decoder = make()
    for index in range(len(data) - 1):
        assert decoder.feed(data[index : index + 1]) is None
    assert decoder.feed(data[-1:]) == (expected, b"")
    assert make().feed(data + b"tail") == (expected, b"tail")


@pytest.mark.parametrize("token", [b"", b"secret", b"\x00" * MAX_TOKEN])
def test_a_client_hello_comes_out_the_same_however_it_is_fed(token: bytes) -> None:
    hello = ClientHello(SESSION, token)
    feed_three_ways(ClientHelloDecoder, hello.encode(), hello)


@pytest.mark.parametrize("status", [Status.OK, Status.WRONG_TOKEN])
def test_a_server_hello_comes_out_the_same_however_it_is_fed(status: Status) -> None:
    hello = ServerHello(SESSION, status)
    feed_three_ways(ServerHelloDecoder, hello.encode(), hello)


def test_the_first_byte_belongs_to_no_other_dialect() -> None:
    others = {*range(0x13), 0x16, *string.ascii_letters.encode()}
    assert FIRST_BYTE not in others
    assert ClientHello(SESSION).encode()[0] == ServerHello(SESSION).encode()[0] == FIRST_BYTE


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 64, b"\xff" * 64, b"\xa7rdzX"],
)
@pytest.mark.parametrize("make", [ClientHelloDecoder, ServerHelloDecoder])
def test_a_stranger_is_known_by_the_first_wrong_byte(make: Any, garbage: bytes) -> None:
    """R50, D57."""
    wrong = next(i for i, byte in enumerate(garbage) if i >= 5 or byte != b"\xa7rdzv"[i])
    decoder = make()
    for index in range(wrong):
        assert decoder.feed(garbage[index : index + 1]) is None
    with pytest.raises(WireError):
        decoder.feed(garbage[wrong : wrong + 1])
    with pytest.raises(WireError):
        decoder.feed(ClientHello(SESSION).encode())


def test_another_version_is_told_by_its_number() -> None:
    got = ClientHelloDecoder().feed(ClientHello(SESSION, version=VERSION + 1).encode())
    assert got is not None
    assert got[0].version == VERSION + 1
    answer = ServerHelloDecoder().feed(ServerHello(SESSION, version=VERSION + 7).encode())
    assert answer is not None
    assert answer[0].version == VERSION + 7
    assert answer[0].status is Status.WRONG_VERSION


def test_a_token_over_the_cap_fails_before_it_is_read() -> None:
    data = ClientHello(SESSION).encode()[:-2] + b"\xff\xff"
    with pytest.raises(WireError, match="token"):
        ClientHelloDecoder().feed(data)


@pytest.mark.parametrize("session", [b"", b"x" * 17])
def test_ids_of_a_wrong_length_are_refused(session: bytes) -> None:
    with pytest.raises(ValueError):
        ClientHello(session).encode()
    with pytest.raises(ValueError):
        ServerHello(session).encode()
    with pytest.raises(ValueError):
        ClientHello(SESSION, b"t" * (MAX_TOKEN + 1)).encode()


def test_a_hello_is_decoded_once() -> None:
    decoder = ClientHelloDecoder()
    decoder.feed(ClientHello(SESSION).encode())
    with pytest.raises(WireError):
        decoder.feed(b"")


@given(data=st.one_of(st.binary(max_size=400), st.binary(max_size=400).map(lambda rest: b"\xa7rdzv" + rest)))
@pytest.mark.parametrize("make", [ClientHelloDecoder, ServerHelloDecoder])
def test_any_bytes_are_a_hello_or_a_wire_error(make: Any, data: bytes) -> None:
    try:
        make().feed(data)
    except WireError:
        pass
