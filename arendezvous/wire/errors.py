"""The one error of the wire."""

from __future__ import annotations

__all__ = ("WireError",)


class WireError(Exception):
    """What came in is not what this protocol says, or what should go out does not fit it.

    Bytes from a peer raise this and nothing else. The rooms above translate it: the client to
    ``RendezvousConnectionError``, the server to the end of that one connection.
    """
