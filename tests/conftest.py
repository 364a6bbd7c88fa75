"""Every async test runs on asyncio, asyncio with uvloop, and trio; virtual-time tests on asyncio and trio."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import uvloop

from arendezvous.testing.clock import virtual_backend

# In CI the same examples every time: a new finding belongs to whoever runs the tests, not to an unrelated change.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {}), id="asyncio"),
        pytest.param(("asyncio", {"loop_factory": uvloop.new_event_loop}), id="asyncio+uvloop"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The event loops that every async test runs on; ``tests.support.VIRTUAL`` replaces them by virtual ones."""
    if isinstance(request.param, str):
        # Built here and not in the mark: every test needs a clock of its own.
        return virtual_backend(request.param.removeprefix("virtual-"))
    return request.param
