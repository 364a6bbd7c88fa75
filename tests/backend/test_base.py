"""The contract of a backend."""

from __future__ import annotations

from typing import get_type_hints

from arendezvous.backend import P10dRendezvousBackend, RendezvousBackend, Token


def test_a_token_is_an_integer() -> None:
    """design.md 3."""
    assert Token is int


def test_the_built_in_backend_has_everything_that_the_contract_names() -> None:
    for name in ("name", "get_state", "set_state", "changed"):
        assert hasattr(P10dRendezvousBackend, name)
        assert getattr(RendezvousBackend, name).__doc__ or name == "name"
    for name in ("get_state", "set_state", "changed"):
        theirs = get_type_hints(getattr(RendezvousBackend, name))
        assert get_type_hints(getattr(P10dRendezvousBackend, name)) == theirs
