"""A free port that stays ours until somebody is ready to listen on it."""

from __future__ import annotations

import socket

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.ports import reserve_port
from tests.support import VIRTUAL, fail_after


async def test_a_reserved_port_is_free_and_is_given_to_nobody_else() -> None:
    """D59, R71: no close and re-bind."""
    reserved = [await reserve_port("127.0.0.1") for _ in range(30)]
    assert len({reservation.port for reservation in reserved}) == 30
    for reservation in reserved:
        reservation.close()


async def test_nobody_can_connect_to_a_port_that_is_only_reserved() -> None:
    reservation = await reserve_port("127.0.0.1")
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", reservation.port)) != 0
    reservation.close()


async def test_a_server_may_bind_while_the_port_is_still_reserved() -> None:
    """The hand-over has no gap."""
    reservation = await reserve_port("127.0.0.1")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=reservation.port)
    reservation.close()
    with fail_after(5):
        async with listener, await anyio.connect_tcp("127.0.0.1", reservation.port):
            pass


async def test_closing_twice_or_forgetting_to_leaks_nothing() -> None:
    reservation = await reserve_port("127.0.0.1")
    reservation.close()
    reservation.close()
    await reserve_port("127.0.0.1")  # a leaked socket is a warning, and a warning fails the test


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_ipv6_address_has_ports_too() -> None:
    try:
        reservation = await reserve_port("::1")
    except RendezvousConnectionError:
        pytest.skip("this host has no ::1")
    assert reservation.port > 0
    reservation.close()


@VIRTUAL
async def test_a_literal_address_asks_no_resolver_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """design.md 3."""

    async def lookup(*args: object, **options: object) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr(anyio, "getaddrinfo", lookup)
    (await reserve_port("127.0.0.1")).close()


@pytest.mark.parametrize("addr", ["192.0.2.1", "no-such-host.invalid", "x" * 300, ""])
async def test_an_address_that_is_not_ours_is_an_error_that_names_it_and_the_way_out(addr: str) -> None:
    """D37, R38."""
    with fail_after(30), pytest.raises(RendezvousConnectionError, match="local_addr") as caught:
        await reserve_port(addr)
    assert repr(addr) in str(caught.value)
