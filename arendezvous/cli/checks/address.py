"""Which address of its own a node here would publish to the others, and whether that is of use to them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import anyio
from anyio.abc import SocketAttribute

from ...handler.info import host_name
from ...store.hosting import is_loopback
from .finding import Finding, note, ok, warn
from .resolve import Names, family

__all__ = ("Own", "judge", "own_address", "route_to")

SUBJECT = "own address"
_SET = "give --local-addr with an address of this host that the other nodes can reach"
#: Kept for documentation: belongs to nobody, so its route is the default one.
_NOWHERE = "192.0.2.1"


@dataclass(frozen=True, slots=True)
class Own:
    """What would be published.

    Attributes:
        address: An address or a name.
        source: Where it comes from, as a clause.
    """

    address: str
    source: str


async def route_to(address: str) -> str:
    """This machine's address on the way to another one, ``""`` if there is no way. Nothing is sent.

    Cancellation:
        Safe.
    """
    try:
        async with await anyio.create_connected_udp_socket(address, 9) as udp:
            return str(udp.extra(SocketAttribute.local_address)[0])
    except (OSError, ValueError):
        return ""


async def own_address(local_addr: str | None, connected: str, targets: tuple[str, ...] | None) -> Own:
    """Choose as a node does: what it was told, its address on the connection to the store, the host's name.

    Args:
        local_addr: What it was told.
        connected: Its address on the connection to the store; ``""`` if there is none now.
        targets: Literal addresses of the store, for the route that a connection would take; None if it is not known
            where the store will be.

    Cancellation:
        Safe.
    """
    if local_addr:
        return Own(local_addr, "--local-addr")
    if connected:
        return Own(connected, "its address on the connection to the store")
    if targets is None and (own := await route_to(_NOWHERE)):
        return Own(own, "the default route (with an endpoint, the way to it decides)")
    for target in targets or ():
        if own := await route_to(target):
            return Own(own, f"the route to {target}, which a connection to the store would take")
    return Own(host_name(), "the host's name, for want of a connection to a store")


def judge(own: Own, found: Names, *, alone: bool, here: bool, bootstrap_port: bool) -> list[Finding]:
    """What is to be said of it.

    Args:
        own: What would be published.
        found: What it stands for.
        alone: Whether the nodes are on this machine only: the store is reached through loopback, or is a file.
        here: Whether it is an address of an interface of this machine.
        bootstrap_port: Whether the option of this name is given.
    """
    seen = f"{own.address} would be published to the other nodes, from {own.source}"
    if is_loopback(own.address) or own.address.casefold() == "localhost":
        if alone:
            todo = f"for more than one machine {_SET}"
            return [note(SUBJECT, f"{seen}: only nodes of this machine can meet here", todo)]
        return [warn(SUBJECT, f"{seen}: it means something else on every host", _SET)]
    if family(own.address):
        if ipaddress.ip_address(own.address).is_link_local:
            return [warn(SUBJECT, f"{seen}: it is link-local, and needs an interface to be reached by", _SET)]
    elif not found.addresses:
        return [warn(SUBJECT, f"{seen}: the name does not resolve here, maybe nowhere", _SET)]
    elif found.loopback:
        what = f"{seen}: here the name is {', '.join(found.addresses)}, which only this host reaches"
        if alone:
            return [note(SUBJECT, what, f"nothing; for more than one machine {_SET}")]
        return [warn(SUBJECT, what, f"correct its line in /etc/hosts, or {_SET}")]
    if not here:
        if not bootstrap_port:
            return [
                warn(
                    SUBJECT,
                    f"{seen}: no interface here has it, so this node cannot offer a bootstrap port as rank 0",
                    "behind NAT give --rdzv-conf bootstrap_port=PORT too, a port that is forwarded to this host",
                )
            ]
        return [
            note(SUBJECT, f"{seen}: it is no address of an interface here", "see that it is forwarded to this host")
        ]
    return [ok(SUBJECT, seen)]
