"""Is this endpoint mine? And what every TCP connection of a store gets: keep-alive probes."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import SocketAttribute

if TYPE_CHECKING:
    from anyio.abc import AnyByteStream

__all__ = ("RESOLVE_LIMIT", "addresses_of", "enable_keep_alive", "is_loopback", "is_this_machine", "loopback_only")

#: Seconds that a name look-up may take; a lost query would cost more.
RESOLVE_LIMIT: Final = 5.0
#: Idle seconds before the first probe, seconds between probes, and probes before a silent host counts as gone.
_PROBES: Final = ((("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 15), (("TCP_KEEPINTVL",), 5), (("TCP_KEEPCNT",), 3))


async def addresses_of(host: str, limit: float = RESOLVE_LIMIT) -> list[str]:
    """Return the addresses that ``host`` stands for: itself if it is a literal, else what it resolves to.

    ``localhost`` is 127.0.0.1 and ::1 without asking anybody, because resolvers differ on it.

    Args:
        host: A literal address without brackets, or a name.
        limit: Longest look-up in seconds.

    Raises:
        OSError: the name cannot be resolved within ``limit``.

    Cancellation:
        Safe; a look-up in a worker thread is abandoned.
    """
    if host.casefold() == "localhost":
        return ["127.0.0.1", "::1"]
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    with anyio.move_on_after(limit):
        try:
            found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (UnicodeError, ValueError) as exc:
            raise OSError(f"{host!r} is no host name: {exc}") from exc
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    raise OSError(f"looking up {host!r} took longer than {limit:g} s")


def literal(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A literal address, as IPv4 if it is IPv4 in IPv6's clothes; None for anything else, names included."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None) or parsed


def is_loopback(address: str) -> bool:
    """Whether a literal address is loopback, in whatever spelling; False for anything else, names included."""
    parsed = literal(address)
    return parsed is not None and parsed.is_loopback


async def loopback_only(host: str, limit: float = RESOLVE_LIMIT) -> bool:
    """Whether ``host`` is a name that resolves to loopback and nothing else, so that no other host can reach it.

    False for literal addresses and ``localhost``, whose user has said what is meant, and for names that do not resolve.

    Args:
        host: A literal address without brackets, or a name.
        limit: Longest look-up in seconds.

    Cancellation:
        Safe; a look-up in a worker thread is abandoned.
    """
    if host.casefold() == "localhost":
        return False
    try:
        addresses = await addresses_of(host, limit)
    except OSError:
        return False
    return addresses != [host] and all(map(is_loopback, addresses))


async def is_this_machine(host: str, limit: float = RESOLVE_LIMIT) -> bool:
    """Whether ``host`` names this machine: some address of it can be bound here.

    True for loopback in every spelling, this machine's own names and every address of its interfaces. False, and never
    an exception, for everything else: wildcards, patterns, the empty text, names that do not resolve.

    Args:
        host: A literal address without brackets, or a name.
        limit: Longest look-up in seconds.

    Cancellation:
        Safe; a look-up in a worker thread is abandoned.
    """
    if not host or "\0" in host:
        return False
    own = host.casefold() == socket.gethostname().casefold()
    try:
        addresses = await addresses_of(host, limit)
    except OSError:
        # The kernel says that this is our name, whether or not a resolver knows it.
        return own
    return own or any(_can_bind(address) for address in addresses)


def _can_bind(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    if mapped is not None:
        parsed = mapped
    if parsed.is_unspecified or parsed.is_multicast or str(parsed) == "255.255.255.255":
        return False
    if parsed.is_loopback:
        # Also where the container has no ::1: nobody else's loopback can be meant.
        return True
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(parsed), 0) if family == socket.AF_INET else _scoped(parsed))
    except (OSError, OverflowError):
        return False
    return True


def _scoped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[str, int, int, int]:
    scope = getattr(address, "scope_id", None)
    if scope is None:
        return str(address), 0, 0, 0
    text = str(address).partition("%")[0]
    return text, 0, 0, int(scope) if scope.isdecimal() else socket.if_nametoindex(scope)


def enable_keep_alive(stream: AnyByteStream) -> None:
    """Have the kernel probe an idle TCP connection, so that a host that vanished is noticed in half a minute.

    Does nothing for streams that are no TCP sockets.
    """
    raw = stream.extra(SocketAttribute.raw_socket, None)
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for names, seconds in _PROBES:
            option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
            if option is not None:
                raw.setsockopt(socket.IPPROTO_TCP, option, seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
