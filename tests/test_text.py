from __future__ import annotations

import pytest

from arendezvous.text import listed, printable


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, ""),
        (1, "n0"),
        (2, "n0 and n1"),
        (3, "n0, n1 and n2"),
        (8, "n0, n1, n2, n3, n4, n5, n6 and n7"),
        (10, "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"),
    ],
)
def test_a_list_stays_short(count: int, shown: str) -> None:
    assert listed([f"n{k}" for k in range(count)]) == shown


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x1b[2J", "a\\x1b[2J"), ("ok é", "ok é"), ("\udc80", "\\udc80"), ("a\nb", "a\\nb")]
)
def test_nothing_that_moves_a_cursor_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
