"""Commands as subprocesses, on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Stage, open_stage


@pytest.fixture(params=["asyncio", "trio"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Starts real commands and leaves none behind."""
    with open_stage(request.param, tmp_path) as opened:
        yield opened
