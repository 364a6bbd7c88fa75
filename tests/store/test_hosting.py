"""Is this endpoint mine?"""

from __future__ import annotations

import socket

import anyio
import pytest

from arendezvous.store import hosting
from arendezvous.store.hosting import addresses_of, is_loopback, is_this_machine, loopback_only
from tests.support import fail_after


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
)
async def test_loopback_in_every_spelling_is_this_machine(host: str) -> None:
    """D23."""
    assert await is_this_machine(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "*",
        "v*",
        "x" * 300,
        "a..b",
        "192.0.2.1",
        "2001:db8::1",
        "10.96.0.9",
        "no-such-name.invalid",
        "224.0.0.1",
        "255.255.255.255",
        "ho st",
        "nul\0",
        "fe80::1%nosuchdevice",
    ],
)
async def test_everything_else_is_not_and_never_an_exception(host: str) -> None:
    """D23, R37."""
    with fail_after(20):
        assert not await is_this_machine(host, limit=5)


async def test_the_own_name_is_this_machine_whether_or_not_it_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    """R35, R41."""
    assert await is_this_machine(socket.gethostname())
    assert await is_this_machine(socket.gethostname().upper())

    async def unknown(host: str, limit: float) -> list[str]:
        raise OSError("unknown")

    monkeypatch.setattr(hosting, "addresses_of", unknown)
    assert await is_this_machine(socket.gethostname())


async def test_a_name_is_judged_by_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """R35."""

    async def resolve(host: str, *_: object, **__: object) -> list[object]:
        address = {"pod-0.svc": "127.0.0.9", "pod-1.svc": "192.0.2.7"}[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    assert await is_this_machine("pod-0.svc")
    assert not await is_this_machine("pod-1.svc")


async def test_a_name_that_is_loopback_only_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """D24."""

    async def resolve(host: str, *_: object, **__: object) -> list[object]:
        found = {"debian": ["127.0.1.1"], "both": ["127.0.1.1", "192.0.2.7"], "far": ["192.0.2.7"]}.get(host)
        if found is None:
            raise OSError("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    assert await loopback_only("debian")
    for host in ("both", "far", "unknown", "localhost", "127.0.0.1", "::1"):
        assert not await loopback_only(host)


async def test_a_lost_query_costs_the_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> list[object]:
        await anyio.sleep_forever()
        return []

    monkeypatch.setattr(anyio, "getaddrinfo", never)
    with fail_after(5):
        assert not await is_this_machine("lost.example", limit=0.05)
        with pytest.raises(OSError, match=r"longer than 0\.05 s"):
            await addresses_of("lost.example", limit=0.05)


async def test_literals_and_localhost_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """R38."""

    async def asked(*_: object, **__: object) -> list[object]:
        raise AssertionError("a look-up")

    monkeypatch.setattr(anyio, "getaddrinfo", asked)
    assert await addresses_of("192.0.2.1") == ["192.0.2.1"]
    assert await addresses_of("localhost") == ["127.0.0.1", "::1"]


def test_loopback_is_told_from_the_rest() -> None:
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("localhost")
    assert not is_loopback("10.0.0.1")
