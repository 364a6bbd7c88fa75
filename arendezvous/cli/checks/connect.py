"""Whether each address takes connections, and what it says if not."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import SocketAttribute

from ...endpoint import format_endpoint
from ...store.link import reason_of
from .finding import Finding, fail, note, ok, seconds, warn
from .resolve import family

__all__ = ("Attempt", "judge", "knock", "knock_all", "reach", "remedy", "why_not")

#: A name that stands for more addresses than this is not looked through to the end.
_MOST = 16
#: Seconds after which a client tries the next address beside the one that has not answered.
_NEXT = 0.25


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to connect.

    Attributes:
        address: The literal address.
        port: The port.
        took: Seconds.
        trouble: ``""`` = it worked, else ``refused``, ``silent``, ``unreachable`` or ``other``.
        reason: The system's words.
        own: This machine's address on the connection.
    """

    address: str
    port: int
    took: float
    trouble: str = ""
    reason: str = ""
    own: str = ""

    @property
    def endpoint(self) -> str:
        """``address:port``."""
        return format_endpoint(self.address, self.port)


def reach(host: str) -> str:
    """What to dial: a wildcard address is reached through the loopback interface."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def why_not(exc: BaseException) -> tuple[str, str]:
    """Kind of trouble and the system's words for a connection that failed."""
    reason = reason_of(exc)
    while isinstance(exc, BaseExceptionGroup) or exc.__cause__ is not None:
        exc = exc.exceptions[0] if isinstance(exc, BaseExceptionGroup) else exc.__cause__ or exc
    number = exc.errno if isinstance(exc, OSError) else None
    if number == errno.ECONNREFUSED:
        return "refused", reason
    if number == errno.ETIMEDOUT:
        return "silent", reason
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES):
        return "unreachable", reason
    return "other", reason


async def knock(address: str, port: int, limit: float) -> Attempt:
    """Connect to one address and close the connection again.

    Args:
        address: A literal address.
        port: Its port.
        limit: Longest wait in seconds.

    Cancellation:
        Safe.
    """
    began = anyio.current_time()
    with anyio.move_on_after(limit):
        try:
            stream = await anyio.connect_tcp(reach(address), port)
        except (OSError, ValueError) as exc:
            return Attempt(address, port, anyio.current_time() - began, *why_not(exc))
        took = anyio.current_time() - began
        own = stream.extra(SocketAttribute.local_address, ("",))
        await stream.aclose()
        return Attempt(address, port, took, own=str(own[0]))
    return Attempt(address, port, anyio.current_time() - began, "silent", f"no answer within {limit:g} s")


async def knock_all(addresses: Sequence[str], port: int, limit: float) -> list[Attempt]:
    """Connect to every address at the same time; the answers are in the order of the addresses.

    Args:
        addresses: Literal addresses.
        port: Their port.
        limit: Longest wait in seconds.

    Cancellation:
        Safe.
    """
    found: dict[str, Attempt] = {}

    async def one(address: str) -> None:
        found[address] = await knock(address, port, limit)

    async with anyio.create_task_group() as tasks:
        for address in addresses[:_MOST]:
            tasks.start_soon(one, address)
    return [found[address] for address in addresses[:_MOST]]


def remedy(trouble: str, endpoint: str) -> str:
    """What to do about a connection that failed."""
    if trouble == "refused":
        return (
            "nobody listens there, or a firewall rejects: start an agent on that host or `arendezvous serve "
            f"{endpoint}`, see that it does not listen on loopback only, and that the port is the same on all nodes"
        )
    if trouble == "silent":
        return (
            "packets are dropped: look at firewalls, security groups and network policies for this port, and whether "
            "the host is up; `arendezvous doctor --listen` there and `--dial` here try one port"
        )
    if trouble == "unreachable":
        return "this machine has no route there: look at `ip route get`, the interfaces and the address itself"
    return "see whether the address and port are right and the host is up"


def judge(attempts: Sequence[Attempt], *, may_host: bool) -> list[Finding]:
    """What is to be said of the attempts.

    Args:
        attempts: In the order in which a client makes them.
        may_host: Whether an agent started here would listen there itself, so that a refusal is no failure.
    """
    works = [attempt for attempt in attempts if not attempt.trouble]
    findings = []
    for attempt in attempts:
        subject = f"connect {attempt.address}"
        if not attempt.trouble:
            findings.append(ok(subject, f"{attempt.endpoint} took the connection in {seconds(attempt.took)}"))
            continue
        seen = f"{attempt.endpoint}: {_words(attempt)}"
        if works:
            slower = attempt.trouble == "silent" and attempts.index(attempt) < attempts.index(works[0])
            cost = f"; each connection loses {_NEXT:g} s to it" if slower else ""
            findings.append(warn(subject, seen + cost, _other_family(attempt, works)))
        elif attempt.trouble == "refused" and may_host:
            findings.append(
                note(subject, f"{seen}; nobody listens there yet", "nothing: the first agent here hosts it, see below")
            )
        else:
            findings.append(fail(subject, seen, remedy(attempt.trouble, attempt.endpoint)))
    if len({family(attempt.address) for attempt in works}) > 1:
        findings.append(ok("connect", f"both families work; a client takes {works[0].address} first"))
    return findings


def _words(attempt: Attempt) -> str:
    if attempt.trouble == "silent":
        return f"timed out, nothing answered within {seconds(attempt.took)}"
    return f"{attempt.trouble} ({attempt.reason})" if attempt.trouble != "other" else attempt.reason


def _other_family(attempt: Attempt, works: Sequence[Attempt]) -> str:
    if any(family(other.address) == family(attempt.address) for other in works):
        return f"{works[0].endpoint} answers: take this address out of the name, or have the store listen on it too"
    return (
        f"{works[0].endpoint} answers, so IPv{family(attempt.address)} does not work for this name: use the literal "
        "address as the endpoint, or have the store listen on both families"
    )
