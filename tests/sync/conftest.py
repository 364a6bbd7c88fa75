from __future__ import annotations

from collections.abc import Iterator

import pytest

from arendezvous.sync import portal
from arendezvous.sync.portal import Portal


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def loop(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "uvloop":
        pytest.importorskip("uvloop")
    return name


@pytest.fixture
def own(loop: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Portal]:
    """A portal on each event loop, which is this process's one for the test."""
    made = Portal(loop)
    monkeypatch.setattr(portal, "_shared", made)
    yield made
    made.close()
