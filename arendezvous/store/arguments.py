"""Checks of keys and values, made before anything is sent or stored."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = (
    "COUNTER_MAX",
    "COUNTER_MIN",
    "check_amount",
    "check_keys",
    "check_pairs",
    "check_ttl",
    "check_value",
    "decode_key",
    "encode_key",
    "name_keys",
)

#: Counters are 64-bit on the wire, as every other client of such a store has them.
COUNTER_MIN = -(2**63)
COUNTER_MAX = 2**63 - 1


def encode_key(key: str) -> bytes:
    """Return the stored form of ``key``.

    Raises:
        TypeError: not a ``str``.
        ValueError: the text cannot be written as UTF-8 (a lone surrogate).
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    # surrogateescape, so that a key that another dialect wrote as raw bytes still has a name here.
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """Return the name of a stored key; the inverse of :func:`encode_key`."""
    return key.decode("utf-8", "surrogateescape")


def check_keys(keys: Sequence[str]) -> list[bytes]:
    """Return the stored form of several keys.

    Raises:
        TypeError: ``keys`` is one ``str``, which would silently mean one key per character, or holds something else.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"several keys are a list of str, not {type(keys).__name__}")
    return [encode_key(key) for key in keys]


def check_value(value: bytes) -> bytes:
    """Return ``value`` as immutable bytes.

    Raises:
        TypeError: not bytes-like.
    """
    if type(value) is bytes:
        return value
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"a value is bytes, not {type(value).__name__}")
    return bytes(value)


def check_pairs(keys: Sequence[str], values: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return ``(stored key, value)`` pairs.

    Raises:
        ValueError: the two sequences differ in length.
    """
    encoded = check_keys(keys)
    if len(encoded) != len(values):
        raise ValueError(f"{len(encoded)} keys but {len(values)} values")
    return [(key, check_value(value)) for key, value in zip(encoded, values, strict=True)]


def check_amount(amount: int) -> int:
    """Return ``amount`` if it fits a 64-bit counter.

    Raises:
        TypeError: not an ``int``.
        ValueError: outside 64 bits.
    """
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise TypeError(f"an amount is an int, not {type(amount).__name__}")
    if not COUNTER_MIN <= amount <= COUNTER_MAX:
        raise ValueError(f"the amount {amount} does not fit 64 bits")
    return amount


def check_ttl(ttl: float) -> float:
    """Return the time to live of a lease in seconds.

    Raises:
        ValueError: not a positive, finite number.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl < float("inf"):
        raise ValueError(f"ttl must be a positive number of seconds, not {ttl!r}")
    return float(ttl)


def name_keys(keys: Sequence[str], most: int = 8) -> str:
    """Return ``keys`` as text for a message, the first ``most`` of them by name."""
    named = ", ".join(repr(key) for key in keys[:most])
    return f"{named} and {len(keys) - most} more" if len(keys) > most else named
