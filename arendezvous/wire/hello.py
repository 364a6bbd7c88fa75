"""The first words of both sides.

Client: the byte 0xA7, ``rdzv``, version (u16), session (16 bytes), token length (u16), token.
Server: the byte 0xA7, ``rdzv``, version (u16), status (u8), epoch (16 bytes). All integers are little-endian.

No other dialect that may share a port begins with 0xA7. The prefix is checked byte by byte, so a stranger is known at
the first byte that is wrong, and neither side ever holds more than a few hundred bytes of somebody who has not said
hello. The session names a client across its connections: when it comes back, the server drops what is left of the old
connection first, so that nothing sent there can still take effect, and hands the new one its leases. The epoch names
the data of one server: another epoch is another, empty store.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import WireError

__all__ = (
    "EPOCH_SIZE",
    "FIRST_BYTE",
    "MAX_TOKEN",
    "SESSION_SIZE",
    "VERSION",
    "ClientHello",
    "ClientHelloDecoder",
    "ServerHello",
    "ServerHelloDecoder",
    "Status",
)

#: What the first byte of every native connection is, in both directions.
FIRST_BYTE = 0xA7
#: Version of everything that follows the hello.
VERSION = 1
SESSION_SIZE = 16
EPOCH_SIZE = 16
#: Longest token in bytes.
MAX_TOKEN = 256

_MAGIC = bytes([FIRST_BYTE]) + b"rdzv"
_CLIENT = struct.Struct("<5sH16sH")
_SERVER = struct.Struct("<5sHB16s")


class Status(enum.IntEnum):
    """What the server says to a hello."""

    OK = 0
    #: The server speaks another version; it names it and closes.
    WRONG_VERSION = 1
    #: The token is not the one that the server asks for; it closes.
    WRONG_TOKEN = 2


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client says first.

    Attributes:
        session: Names the client across reconnects; random.
        token: What the server may ask for before it serves.
        version: The protocol version that the client speaks.
    """

    session: bytes
    token: bytes = b""
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the bytes to send.

        Raises:
            ValueError: the session or the token has a wrong length.
        """
        if len(self.session) != SESSION_SIZE:
            raise ValueError(f"a session has {SESSION_SIZE} bytes, not {len(self.session)}")
        if len(self.token) > MAX_TOKEN:
            raise ValueError(f"a token has at most {MAX_TOKEN} bytes, not {len(self.token)}")
        return _CLIENT.pack(_MAGIC, self.version, self.session, len(self.token)) + self.token


@dataclass(frozen=True, slots=True)
class ServerHello:
    """What a server answers.

    Attributes:
        epoch: Names the data behind the server; random.
        status: Whether it serves this client.
        version: The protocol version that the server speaks.
    """

    epoch: bytes
    status: Status = Status.OK
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the bytes to send.

        Raises:
            ValueError: the epoch has a wrong length.
        """
        if len(self.epoch) != EPOCH_SIZE:
            raise ValueError(f"an epoch has {EPOCH_SIZE} bytes, not {len(self.epoch)}")
        return _SERVER.pack(_MAGIC, self.version, self.status, self.epoch)


_H = TypeVar("_H", ClientHello, ServerHello)


class _HelloDecoder(Generic[_H]):
    """Takes bytes until the hello is complete; failure is sticky."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._failure: str | None = None
        self._done = False

    def feed(self, data: bytes) -> tuple[_H, bytes] | None:
        """Take ``data``; return the hello and what follows it, or None while it is incomplete.

        Raises:
            WireError: these bytes are no hello of this protocol, now or at an earlier call.
        """
        if self._done:
            raise WireError("the hello is complete already")
        if self._failure is not None:
            raise WireError(self._failure)
        self._buffer += data
        start = bytes(self._buffer[: len(_MAGIC)])
        if not _MAGIC.startswith(start):
            self._fail(f"the first bytes {start!r} are not those of the arendezvous store protocol")
        hello, used = self._parse(self._buffer)
        if hello is None:
            return None
        self._done = True
        rest = bytes(self._buffer[used:])
        self._buffer.clear()
        return hello, rest

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._buffer = bytearray()
        raise WireError(reason)

    def _parse(self, buffer: bytearray) -> tuple[_H | None, int]:
        raise NotImplementedError


class ClientHelloDecoder(_HelloDecoder[ClientHello]):
    """Reads a client's hello, on the server's side.

    The layout up to the token is the same in every version, so that a server can refuse another version by its name.
    """

    def _parse(self, buffer: bytearray) -> tuple[ClientHello | None, int]:
        if len(buffer) < _CLIENT.size:
            return None, 0
        _, version, session, length = _CLIENT.unpack_from(buffer)
        if version != VERSION:
            return ClientHello(session, b"", version), len(buffer)
        if length > MAX_TOKEN:
            self._fail(f"a token claims {length} bytes; at most {MAX_TOKEN} are taken")
        end = _CLIENT.size + length
        if len(buffer) < end:
            return None, 0
        return ClientHello(session, bytes(buffer[_CLIENT.size : end]), version), end


class ServerHelloDecoder(_HelloDecoder[ServerHello]):
    """Reads a server's hello, on the client's side."""

    def _parse(self, buffer: bytearray) -> tuple[ServerHello | None, int]:
        if len(buffer) < _SERVER.size:
            return None, 0
        _, version, status, epoch = _SERVER.unpack_from(buffer)
        if version != VERSION:
            return ServerHello(epoch, Status.WRONG_VERSION, version), len(buffer)
        if status not in Status._value2member_map_:
            self._fail(f"the store answers the hello with the unknown status {status}")
        return ServerHello(epoch, Status(status), version), _SERVER.size
