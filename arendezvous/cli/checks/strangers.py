"""Services that are no store of ours, known by what they answer."""

from __future__ import annotations

from typing import Final

import anyio

from .connect import reach

__all__ = ("is_torch_store", "recognise")

#: What is shown of a stranger's words.
_SHOWN: Final = 60
_SIGNS: Final = (
    (b"SSH-", "an SSH server"),
    (b"HTTP/", "an HTTP server"),
    (b"<!DOCTYPE", "an HTTP server"),
    (b"<html", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
    (b"-ERR", "a Redis server"),
    (b"220 ", "a mail or FTP server"),
    (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "an HTTP/2 server, such as gRPC"),
)
#: The first words of a client of torch's TCPStore: VALIDATE with its magic number, then PING with a number that comes
#: back. Neither changes anything.
_TORCH_HELLO: Final = bytes.fromhex("00cef7853c") + b"\x0d"
_TORCH_NONCE: Final = b"rdzv"


def recognise(words: bytes) -> str:
    """Who says these words, and the words, as the end of a sentence."""
    quoted = repr(words[:_SHOWN].splitlines()[0] if words.strip() else words[:_SHOWN])[1:]
    for sign, who in _SIGNS:
        if words.lower().startswith(sign.lower()):
            return f"it answered {quoted} as {who} does"
    return f"it answered {quoted}"


async def is_torch_store(address: str, port: int, limit: float) -> bool:
    """Whether torch's own TCPStore listens there: asked on a connection of its own, in torch's words.

    Args:
        address: A literal address.
        port: Its port.
        limit: Longest wait in seconds.

    Cancellation:
        Safe.
    """
    with anyio.move_on_after(limit):
        try:
            async with await anyio.connect_tcp(reach(address), port) as stream:
                # In one piece: a server that gets the first words in two closes the connection.
                await stream.send(_TORCH_HELLO + _TORCH_NONCE)
                answer = b""
                while len(answer) < len(_TORCH_NONCE):
                    answer += await stream.receive(64)
                return answer == _TORCH_NONCE
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
    return False
