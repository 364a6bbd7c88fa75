"""Endpoints and configuration strings: text to values and back (defects.md 2.12). Nothing here resolves a name.

An endpoint is ``host``, ``host:port``, ``[ipv6]``, ``[ipv6]:port`` or a bare IPv6 address. A host is a dot-separated
list of labels, an IPv4 address or an IPv6 address, which may carry a zone (``fe80::1%eth0``). What is not clearly one
of these is refused: a host or port guessed from a typing mistake sends every node to a rendezvous of its own.
"""

from __future__ import annotations

import ipaddress
import re

__all__ = ("format_endpoint", "parse_rendezvous_config", "parse_rendezvous_endpoint")

_MAX_PORT = 65535
_PORT = re.compile(r"[0-9]{1,32}", re.ASCII)
_LABEL = re.compile(r"[\w-]+")
_DOTTED_QUAD = re.compile(r"[0-9]+(\.[0-9]+){3}", re.ASCII)
# An interface name as Linux allows it, less what would make an endpoint ambiguous.
_ZONE = re.compile(r"[^\s/%:\[\]]+")


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Split an endpoint into host and port.

    Blanks around an endpoint are not trimmed: a stray one is more often half of a second word than an accident.

    Args:
        endpoint: The endpoint; None or nothing but blanks means ``localhost``.
        default_port: The port if the endpoint names none; given back as it is.

    Returns:
        The host as it was written, without brackets, and the port.

    Raises:
        ValueError: the host or the port is not valid, or an IPv6 address runs into its port.
    """
    if endpoint is None or not endpoint.strip(" \t\r\n"):
        return "localhost", default_port
    if not endpoint.isprintable():
        raise _bad_host(endpoint, endpoint, "it holds a control or other unprintable character")

    if endpoint.startswith("["):
        host, bracket, rest = endpoint[1:].partition("]")
        if not bracket:
            raise _bad_host(endpoint, endpoint, "the closing bracket is missing")
        if not _is_ipv6(host):
            raise _bad_host(endpoint, host, "only an IPv6 address is put in brackets")
        if not rest:
            return host, default_port
        if not rest.startswith(":"):
            raise _bad_host(endpoint, endpoint, f"{rest!r} follows the closing bracket")
        return host, _parse_port(endpoint, rest[1:])

    if _is_ipv6(endpoint):
        return endpoint, default_port
    host, colon, port = endpoint.rpartition(":")
    if not colon:
        _check_name(endpoint, endpoint)
        return endpoint, default_port
    if _is_ipv6(host):
        raise ValueError(
            f"The rendezvous endpoint {endpoint!r} is ambiguous: bracket the IPv6 address, as in '[{host}]:{port}'."
        )
    _check_name(endpoint, host)
    return host, _parse_port(endpoint, port)


def format_endpoint(host: str, port: int) -> str:
    """Join host and port; an IPv6 address is always bracketed.

    What it returns is read back by ``parse_rendezvous_endpoint`` as the same host and port.

    Args:
        host: A host name or an address, without brackets.
        port: 0 to 65535.

    Raises:
        ValueError: no endpoint can say this host or this port.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT:
        raise _bad_port(f"{host}:{port}", str(port))
    if _is_ipv6(host):
        return f"[{host}]:{port}"
    _check_name(host, host)
    return f"{host}:{port}"


def parse_rendezvous_config(text: str) -> dict[str, str]:
    """Read ``k=v,k2=v2`` as ``--rdzv-conf`` means it.

    Blanks around keys and values are trimmed; a value may hold ``=``.

    Args:
        text: The configuration; blank means none.

    Raises:
        ValueError: an entry has no key or no value, is empty, or repeats a key.
    """
    config: dict[str, str] = {}
    if not text.strip():
        return config
    for entry in text.split(","):
        key, _, value = (part.strip() for part in entry.partition("="))
        if not key:
            raise ValueError(
                f"The rendezvous configuration {text!r} has an entry without a key: {entry!r}. "
                "It is a list of <key>=<value> separated by commas."
            )
        if not value:
            raise ValueError(f"The rendezvous configuration option '{key}' in {text!r} must have a value.")
        if key in config:
            raise ValueError(f"The rendezvous configuration option '{key}' is given twice in {text!r}.")
        config[key] = value
    return config


def _is_ipv6(host: str) -> bool:
    address, percent, zone = host.partition("%")
    if percent and not (_ZONE.fullmatch(zone) and zone.isprintable()):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _check_name(endpoint: str, host: str) -> None:
    """Refuse what is neither an IPv4 address nor a name that a resolver can be asked for."""
    if not host:
        raise _bad_host(endpoint, host, "it is empty")
    if _DOTTED_QUAD.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise _bad_host(endpoint, host, "it is not a valid IPv4 address") from None
        return
    # A trailing dot marks a name as fully qualified; any other empty label is a mistake.
    if not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise _bad_host(endpoint, host)
    try:
        # Resolvers encode names this way and raise a bare UnicodeError for one that does not fit.
        encoded = host.encode("idna")
    except UnicodeError:
        raise _bad_host(endpoint, host, "a label is longer than 63 bytes or cannot be encoded") from None
    if len(encoded) > 254:
        raise _bad_host(endpoint, host, "it is longer than 253 bytes")


def _parse_port(endpoint: str, port: str) -> int:
    if not _PORT.fullmatch(port) or int(port) > _MAX_PORT:
        raise _bad_port(endpoint, port)
    return int(port)


def _bad_port(endpoint: str, port: str) -> ValueError:
    return ValueError(
        f"The port number {port!r} of the rendezvous endpoint {endpoint!r} must be an integer "
        f"between 0 and {_MAX_PORT}."
    )


def _bad_host(endpoint: str, host: str, why: str = "") -> ValueError:
    return ValueError(
        f"The hostname {host!r} of the rendezvous endpoint {endpoint!r} must be a dot-separated list of labels, "
        f"an IPv4 address, or an IPv6 address{': ' if why else ''}{why}."
    )
