"""The one error of the wire."""

from __future__ import annotations

from arendezvous.errors import RendezvousError
from arendezvous.wire.errors import WireError


def test_the_wires_error_is_translated_by_the_rooms_above_and_is_none_of_theirs() -> None:
    """A user who catches ``RendezvousError`` never meets it; nor does ``except ValueError`` hide it."""
    assert issubclass(WireError, Exception)
    assert not issubclass(WireError, (RendezvousError, ValueError, OSError))
