"""What a node is told when its wish does not come true: run, store, counts, who and how long (D52)."""

from __future__ import annotations

import os

import pytest

from arendezvous.core.fold import Fresh, create
from arendezvous.core.ops import Action
from arendezvous.core.state import AgreedSettings, Kind, Record
from arendezvous.errors import (
    RendezvousClosedError,
    RendezvousExhaustedError,
    RendezvousGracefulExitError,
    RendezvousSettingsError,
    RendezvousTimeoutError,
)
from arendezvous.handler.endings import Ending, leaf
from arendezvous.node import NodeDesc


def ending(least: int, endpoint: str = "10.0.0.5:29400") -> Ending:
    inc = os.urandom(16)
    settings = AgreedSettings(least, 4)
    other = NodeDesc("node7", 71, 0, inc)
    state = create(
        Record(inc, 1, Kind.JOIN, other, settings), epoch=b"e" * 16, fresh=Fresh(os.urandom(16), os.urandom(16))
    )
    return Ending("job", endpoint, NodeDesc("node8", 5, 0), settings, 600.0, 12.34, "1/4 nodes joined", state)


@pytest.mark.parametrize(
    ("action", "least", "kind"),
    [
        (Action.CLOSED, 1, RendezvousClosedError),
        (Action.GRACEFUL, 1, RendezvousGracefulExitError),
        (Action.MISMATCH, 1, RendezvousSettingsError),
        (Action.TIMEOUT, 1, RendezvousTimeoutError),
        (Action.TIMEOUT, 2, RendezvousExhaustedError),
    ],
)
def test_every_end_names_the_run_and_the_store(action: Action, least: int, kind: type[Exception]) -> None:
    error = ending(least).error(action)
    assert type(error) is kind
    assert "'job'" in str(error)
    assert "10.0.0.5:29400" in str(error)


def test_a_timeout_names_who_is_there_and_how_long_it_took() -> None:
    text = str(ending(2).error(Action.TIMEOUT))
    for part in ("min_nodes=2", "1/4 nodes joined", "waited 12.3 s", "node8_5_0", "here: node7_71_0"):
        assert part in text


@pytest.mark.parametrize(
    ("endpoint", "hint"), [("localhost:29400", True), ("[::1]:29400", True), ("10.0.0.5:1", False), ("/tmp/x", False)]
)
def test_a_loopback_endpoint_is_called_one(endpoint: str, hint: bool) -> None:
    """R49."""
    assert ("loopback" in str(ending(2, endpoint).error(Action.TIMEOUT))) is hint


def test_the_leaf_of_nested_groups_is_the_first_error() -> None:
    first = ValueError("first")
    assert leaf(ExceptionGroup("a", [ExceptionGroup("b", [first, KeyError()]), OSError()])) is first
    assert leaf(first) is first
