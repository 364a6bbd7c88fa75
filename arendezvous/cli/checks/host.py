"""Who would serve the store at an endpoint, and whether it could."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import RendezvousConnectionError
from ...store.hosting import is_this_machine
from ...store.server import open_sockets
from .finding import Finding, fail, note, ok, warn
from .resolve import Names

if TYPE_CHECKING:
    from ...params import RendezvousParameters

__all__ = ("Role", "judge", "judge_port", "who_hosts")

SUBJECT = "host"
_PRIVILEGED = 1024


@dataclass(frozen=True, slots=True)
class Role:
    """This node's part.

    Attributes:
        hosts: Whether an agent started here would serve the store.
        why: The reason, as a clause.
    """

    hosts: bool
    why: str


async def who_hosts(params: RendezvousParameters, host: str, limit: float) -> Role:
    """Decide as an agent would.

    Args:
        params: Backend, rank and the option ``is_host``.
        host: The endpoint's host.
        limit: Longest look-up in seconds.

    Raises:
        ValueError: an option is malformed.
    """
    asked = params.get_as_bool("is_host", None)
    if params.backend == "static":
        rank = params.get_as_int("rank", params.node_rank)
        if rank is None:
            return Role(False, "rank 0 of a static rendezvous serves it, and no rank is given here")
        return Role(
            rank == 0 and asked is not False, f"rank 0 of a static rendezvous serves it, and this is rank {rank}"
        )
    if asked is not None:
        return Role(asked, f"is_host={'true' if asked else 'false'} says so")
    if await is_this_machine(host, limit):
        return Role(True, f"{host} is this machine")
    return Role(False, f"{host} is not this machine")


def judge(role: Role, names: Names, endpoint: str, *, served: bool, bound: bool) -> list[Finding]:
    """What is to be said of who serves.

    Args:
        role: This node's part.
        names: What the endpoint's host stands for.
        endpoint: What it is called.
        served: Whether somebody takes connections there.
        bound: Whether the option ``bind`` is given.
    """
    if served:
        own = "an agent here would join it like all others" if role.hosts else "an agent here is its client"
        return [ok(SUBJECT, f"somebody serves already; {own} ({role.why})")]
    if not role.hosts:
        return [
            fail(
                SUBJECT,
                f"nobody serves {endpoint}, and an agent started here would not either: {role.why}",
                f"start an agent on that host, or `arendezvous serve {endpoint}` there; if it is this machine, "
                "give --rdzv-conf is_host=true to the agent that shall serve",
            )
        ]
    seen = f"nobody serves yet; an agent started here would host it: {role.why}"
    if names.loopback and not names.literal and names.host.casefold() != "localhost" and not bound:
        return [
            warn(
                SUBJECT,
                f"{seen}, but this name is loopback here, so an agent of several nodes refuses to",
                "give --rdzv-conf bind=0.0.0.0, or a literal address of this host as the endpoint",
            )
        ]
    return [note(SUBJECT, seen, f"start the agents; or `arendezvous serve {endpoint}` for a store that outlives them")]


async def judge_port(params: RendezvousParameters, host: str, port: int) -> Finding:
    """Whether the port could be bound here; tried by binding it for a moment, without listening."""
    bind = str(params.get("bind", None) or host)
    subject = f"port {port}"
    try:
        sockets = await open_sockets(bind, port)
    except RendezvousConnectionError as exc:
        if 0 < port < _PRIVILEGED and "ermission" in str(exc):
            return fail(subject, f"ports below {_PRIVILEGED} need privileges here", "use a port such as 29400")
        return fail(
            subject,
            f"nobody takes connections, yet it cannot be bound: {exc}",
            "see who has it (ss -tanp), or use another port on all nodes",
        )
    for sock in sockets:
        sock.close()
    return ok(
        subject, f"free to be bound on {bind}" if port else "0: a free one is taken, which the others must be told"
    )
