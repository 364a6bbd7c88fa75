"""What addresses a name stands for here, and how long that takes to learn."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import anyio

from ...store.hosting import is_loopback
from ...store.link import reason_of
from .finding import Finding, fail, note, ok, seconds, warn

__all__ = ("Names", "family", "judge", "look_up")

SUBJECT = "resolve"
#: A look-up that takes longer than this has lost a query: resolvers ask again after five seconds.
_SLOW = 1.0


@dataclass(frozen=True, slots=True)
class Names:
    """What a host stands for.

    Attributes:
        host: The name, or a literal address.
        addresses: In the order in which a client tries them; empty if the look-up failed.
        took: Seconds.
        problem: Why it failed.
        abandoned: The resolver had not answered when the limit ended, and is still at it.
    """

    host: str
    addresses: tuple[str, ...] = ()
    took: float = 0.0
    problem: str = ""
    abandoned: bool = False

    @property
    def literal(self) -> bool:
        """There was nothing to look up."""
        return family(self.host) != 0

    @property
    def loopback(self) -> bool:
        """All addresses are loopback."""
        return bool(self.addresses) and all(map(is_loopback, self.addresses))


def family(address: str) -> int:
    """4 or 6 for a literal address, 0 for anything else."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


async def look_up(host: str, port: int, limit: float) -> Names:
    """Ask the resolver of this machine, as a client would.

    Args:
        host: A name or a literal address.
        port: What it is to be reached on.
        limit: Longest wait in seconds.

    Cancellation:
        Safe; the look-up is abandoned.
    """
    if family(host):
        return Names(host, (host,))
    began = anyio.current_time()
    with anyio.move_on_after(limit):
        try:
            found = await anyio.getaddrinfo(host, port)
        except (OSError, UnicodeError, ValueError) as exc:
            return Names(host, (), anyio.current_time() - began, reason_of(exc))
        addresses = tuple(dict.fromkeys(str(where[0]) for *_, where in found))
        return Names(host, _in_order(addresses), anyio.current_time() - began)
    return Names(host, (), anyio.current_time() - began, f"no answer within {limit:g} s", abandoned=True)


def _in_order(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """The order of a client: the resolver's, but an IPv6 address first and an IPv4 address second."""
    six = [a for a in addresses if family(a) == 6]
    four = [a for a in addresses if family(a) == 4]
    first = [*six[:1], *four[:1]] if six else []
    return tuple(dict.fromkeys([*first, *addresses]))


def judge(names: Names) -> list[Finding]:
    """What is to be said of a look-up."""
    host = names.host
    if names.literal:
        return [ok(SUBJECT, f"{host} is an IPv{family(host)} address; there is nothing to look up")]
    took = seconds(names.took)
    if not names.addresses:
        return [
            fail(
                SUBJECT,
                f"the name {host} does not resolve here: {names.problem} (after {took})",
                f"correct the name, add it to DNS or /etc/hosts of this node (try: getent ahosts {host}), or use an "
                "address as the endpoint. In Kubernetes a headless service resolves only once its pod is there.",
            )
        ]
    text = ", ".join(f"{address} (IPv{family(address)})" for address in names.addresses)
    seen = f"{host} is {text}; the look-up took {took}"
    findings = []
    if names.took > _SLOW:
        findings.append(
            warn(
                SUBJECT,
                seen,
                "a lost DNS query costs five seconds, and every connection may pay that: look at /etc/resolv.conf "
                "(a dead name server, many search domains), or use an address as the endpoint",
            )
        )
    else:
        findings.append(ok(SUBJECT, seen))
    return findings + _oddities(names)


def _oddities(names: Names) -> list[Finding]:
    families = {family(address) for address in names.addresses}
    if names.host.casefold() == "localhost":
        if families != {4, 6}:
            (only,) = families
            return [
                note(
                    SUBJECT,
                    f"localhost is IPv{only} only here",
                    "a service on the other family is not found by this name: write 127.0.0.1 or [::1] to say which",
                )
            ]
        return []
    if names.loopback:
        return [
            warn(
                SUBJECT,
                f"the name {names.host} leads to loopback on this machine (as Debian's 127.0.1.1 in /etc/hosts), so "
                "this node means itself, and a store that it serves under this name is reached by no other host",
                "give the address that other hosts reach as the endpoint, or correct /etc/hosts, or host with "
                "--rdzv-conf bind=0.0.0.0",
            )
        ]
    if any(map(is_loopback, names.addresses)):
        return [
            warn(
                SUBJECT,
                f"{names.host} is loopback as well as an address of the network",
                "remove the loopback line of this name from /etc/hosts: which one is used is chance",
            )
        ]
    if any(sum(family(a) == kind for a in names.addresses) > 1 for kind in families):
        return [
            note(
                SUBJECT,
                f"{names.host} is several addresses; a client goes on with the next when one does not answer",
                "make sure that all of them are one host: nodes that end up at different stores never meet",
            )
        ]
    return []
