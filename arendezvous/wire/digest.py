"""Short stand-ins for long values, so that holding a value on the other side of a wire costs 20 bytes."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

__all__ = ("DIGEST_SIZE", "INLINE_LIMIT", "Digest", "Held", "digest_of", "matches", "summarize")

#: Values up to this many bytes travel as they are.
INLINE_LIMIT = 64
#: Bytes of BLAKE2b that stand for a longer value.
DIGEST_SIZE = 16


class Digest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Length and BLAKE2b of a value that is too long to be repeated."""

    size: int
    checksum: bytes


#: What a peer says it holds: nothing, the value itself, or a stand-in for a long one.
Held = bytes | Digest | None


def digest_of(value: bytes) -> Digest:
    """Return the stand-in for ``value``."""
    return Digest(len(value), blake2b(value, digest_size=DIGEST_SIZE).digest())


def summarize(value: bytes) -> bytes | Digest:
    """Return ``value`` itself while it is short and its stand-in otherwise."""
    return value if len(value) <= INLINE_LIMIT else digest_of(value)


def matches(value: bytes | None, held: Held) -> bool:
    """Whether ``held`` says ``value``; None stands for a missing key."""
    if isinstance(held, Digest):
        return value is not None and len(value) == held.size and digest_of(value) == held
    return value == held
