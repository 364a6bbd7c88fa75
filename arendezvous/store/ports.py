"""A free port that stays ours until somebody is ready to listen on it (defects.md D59, R71)."""

from __future__ import annotations

import socket
from typing import Any

import anyio

from ..errors import RendezvousConnectionError

__all__ = ("PortReservation", "reserve_port")


class PortReservation:
    """A bound socket that does not listen: the kernel gives its port to nobody else.

    Both it and the later listener set ``SO_REUSEADDR``, so a server may also bind while the reservation is held.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock: socket.socket | None = sock
        self.port: int = sock.getsockname()[1]

    def close(self) -> None:
        """Give the port up; idempotent."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def __del__(self) -> None:
        self.close()


async def reserve_port(addr: str) -> PortReservation:
    """Bind a free port of ``addr``.

    Args:
        addr: A literal address or a name of this host.

    Raises:
        RendezvousConnectionError: ``addr`` does not resolve, or is no address of this host.

    Cancellation:
        Safe; nothing stays bound.
    """
    try:
        found = await _resolve(addr)
    except (OSError, TimeoutError, UnicodeError) as exc:
        raise RendezvousConnectionError(
            f"Rank 0 cannot offer a bootstrap port: its own address {addr!r} does not resolve ({exc}). "
            "Set local_addr to an address that the other nodes can reach."
        ) from exc
    problem: OSError | None = None
    for family, kind, proto, _, where in found:
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
        except OSError as exc:
            sock.close()
            problem = exc
        else:
            return PortReservation(sock)
    raise RendezvousConnectionError(
        f"Rank 0 cannot offer a bootstrap port: {addr!r} is no address of this host ({problem}). "
        "Set local_addr to an address of this host that the other nodes can reach."
    ) from problem


async def _resolve(addr: str) -> list[Any]:
    """The socket addresses of ``addr``; a literal one is read here and asks neither a resolver nor a thread."""
    try:
        return socket.getaddrinfo(addr, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        with anyio.fail_after(10):
            return await anyio.getaddrinfo(addr, 0, type=socket.SOCK_STREAM)
