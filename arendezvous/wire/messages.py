"""What client and server say after the hello: typed records in MessagePack, one per frame.

Every request carries an id that its answer repeats, so any number of calls share a connection and answers come in any
order. A waiting request (:class:`Get`, :class:`Watch`) is answered when there is news, or never if it is taken back
with :class:`Cancel`, which itself has no answer. Keys and values are bytes, durations seconds. Instants never travel,
but for the answer to :class:`Clock`, from which nothing follows but what a person is told.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .digest import DIGEST_SIZE, Digest
from .errors import WireError

__all__ = (
    "MAX_KEYS",
    "Add",
    "Append",
    "Cancel",
    "Check",
    "Clock",
    "CompareAndSwap",
    "Delete",
    "Done",
    "Failed",
    "Get",
    "LeaseClose",
    "LeaseList",
    "LeaseOpen",
    "LeaseSet",
    "Leases",
    "MultiSet",
    "NumKeys",
    "Number",
    "Pairs",
    "Peek",
    "Ping",
    "Reply",
    "Request",
    "Scan",
    "Set",
    "Swapped",
    "Time",
    "Value",
    "Values",
    "Watch",
    "decode_reply",
    "decode_request",
    "encode",
)

#: Most keys in one request.
MAX_KEYS: Final = 2**17

Id = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
#: Bounded, because a list takes up to twenty times the memory of the frame that it came in.
Keys = Annotated[list[bytes], msgspec.Meta(max_length=MAX_KEYS)]
Ttl = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class Request(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of what a client says."""

    id: Id


class Set(Request, tag=1):
    """Write a value. Answer: :class:`Done`."""

    key: bytes
    value: bytes


class Peek(Request, tag=2):
    """Read a value now. Answer: :class:`Value`."""

    key: bytes


class Get(Request, tag=3):
    """Wait until all keys exist. Answer: :class:`Values` in the order of the keys, empty unless ``want`` is set."""

    keys: Keys
    want: bool


class Check(Request, tag=4):
    """Which of these keys are missing? Answer: :class:`Values`, the missing keys."""

    keys: Keys


class CompareAndSwap(Request, tag=5):
    """Replace ``expected``, which may be a stand-in, by ``desired``. Answer: :class:`Swapped`."""

    key: bytes
    expected: bytes | Digest
    desired: bytes


class Add(Request, tag=6):
    """Add to a counter. Answer: :class:`Number` or :class:`Failed`."""

    key: bytes
    amount: int


class Append(Request, tag=7):
    """Append to a value. Answer: :class:`Number`, the new length."""

    key: bytes
    value: bytes


class Delete(Request, tag=8):
    """Remove a key. Answer: :class:`Number`, 1 if it existed, else 0."""

    key: bytes


class NumKeys(Request, tag=9):
    """Count the keys. Answer: :class:`Number`."""


class MultiSet(Request, tag=10):
    """Write several values at one moment. Answer: :class:`Done`."""

    pairs: Annotated[list[tuple[bytes, bytes]], msgspec.Meta(max_length=MAX_KEYS)]


class Scan(Request, tag=11):
    """List the keys that start with ``prefix`` in the order of their creation. Answer: :class:`Pairs`."""

    prefix: bytes


class Watch(Request, tag=12):
    """Wait until a key differs from ``held``, which may be a stand-in. Answer: :class:`Value`."""

    key: bytes
    held: bytes | Digest | None


class LeaseOpen(Request, tag=13):
    """Open a lease of this session, or refresh it. Answer: :class:`Done`."""

    lease: Id
    ttl: Ttl


class LeaseSet(Request, tag=14):
    """Write a value under a lease of this session and refresh it. Answer: :class:`Done`."""

    lease: Id
    ttl: Ttl
    key: bytes
    value: bytes


class LeaseClose(Request, tag=15):
    """End a lease of this session and remove its keys. Answer: :class:`Number`, 1 if it was open, else 0."""

    lease: Id


class Leases(Request, tag=16):
    """List the leased keys that start with ``prefix``. Answer: :class:`LeaseList`."""

    prefix: bytes


class Cancel(Request, tag=17):
    """Take back the waiting request ``id``, which gets no answer any more. No answer."""


class Ping(Request, tag=18):
    """Are you there? Answer: :class:`Done`."""


class Clock(Request, tag=19):
    """What does your wall clock say? For diagnosis only. Answer: :class:`Time`."""


class Reply(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of what a server says."""

    id: Id


class Done(Reply, tag=1):
    """It is done."""


class Value(Reply, tag=2):
    """A value; None when the key is missing."""

    value: bytes | None


class Values(Reply, tag=3):
    """Several values, or several keys."""

    values: list[bytes]


class Swapped(Reply, tag=4):
    """Whether the swap happened. If not, the value that is stored, None when the key is missing; else nothing."""

    swapped: bool
    value: bytes | None


class Number(Reply, tag=5):
    """A number."""

    number: int


class Pairs(Reply, tag=6):
    """Keys and values."""

    pairs: list[tuple[bytes, bytes]]


class LeaseList(Reply, tag=7):
    """Key, age and time to live in seconds, and whether the owner is connected, per leased key."""

    leases: list[tuple[bytes, float, float, bool]]


class Failed(Reply, tag=8):
    """The request is refused for what it asks: the caller's mistake, so its ``ValueError``."""

    text: str


class Time(Reply, tag=9):
    """The server's wall clock in seconds since 1970. Never to be used for anything but to show that clocks differ."""

    wall: float


_REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(
    Set
    | Peek
    | Get
    | Check
    | CompareAndSwap
    | Add
    | Append
    | Delete
    | NumKeys
    | MultiSet
    | Scan
    | Watch
    | LeaseOpen
    | LeaseSet
    | LeaseClose
    | Leases
    | Cancel
    | Ping
    | Clock
)
_REPLIES: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(
    Done | Value | Values | Swapped | Number | Pairs | LeaseList | Failed | Time
)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(message: Request | Reply) -> bytes:
    """Return the content of the frame that says ``message``."""
    return _ENCODER.encode(message)


def decode_request(content: bytes) -> Request:
    """Return what a client says.

    Raises:
        WireError: ``content`` is no request.
    """
    try:
        request = _REQUESTS.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise WireError(f"not a request: {exc}") from exc
    if isinstance(request, (Watch, CompareAndSwap)):
        _check_digest(request.held if isinstance(request, Watch) else request.expected)
    return request


def decode_reply(content: bytes) -> Reply:
    """Return what a server says.

    Raises:
        WireError: ``content`` is no reply.
    """
    try:
        return _REPLIES.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise WireError(f"not a reply: {exc}") from exc


def _check_digest(held: bytes | Digest | None) -> None:
    if isinstance(held, Digest) and (held.size < 0 or len(held.checksum) != DIGEST_SIZE):
        raise WireError(f"not a request: a stand-in has {DIGEST_SIZE} bytes and a size")
