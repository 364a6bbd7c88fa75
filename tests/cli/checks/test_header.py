from __future__ import annotations

import pytest

from arendezvous import __version__
from arendezvous.cli.checks.header import gather


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_the_head_has_versions_the_loop_and_what_was_asked(loop: str) -> None:
    head = gather(loop, {"endpoint": "node0:1"})
    assert head["arendezvous"] == __version__
    assert head["event loop"].startswith(loop)
    assert head["endpoint"] == "node0:1"
