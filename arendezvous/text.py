"""Words for people: lists that stay short, and nothing in them that a terminal obeys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("LISTED", "listed", "printable")

#: Most items that a sentence lists by name; the rest are counted.
LISTED = 8


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, or the first few ``and 3 more``; empty for none."""
    shown = list(names[:LISTED])
    if len(names) > LISTED:
        return f"{', '.join(shown)} and {len(names) - LISTED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def printable(text: str) -> str:
    """The text with everything escaped that does not show as itself: some of it came from strangers."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
