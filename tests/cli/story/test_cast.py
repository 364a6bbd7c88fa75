from __future__ import annotations

import pytest

from arendezvous.cli.story.cast import Unmet, open_cast
from tests.agent.processes import eventually, is_running
from tests.support import fail_after


async def test_actors_are_real_and_gone_when_the_block_is_left() -> None:
    with fail_after(40):
        async with open_cast("asyncio") as cast:
            store = await cast.start_store()
            await cast.until_ready([store])
            pid = store.pid
            assert is_running(pid)
    eventually("the store is gone", lambda: not is_running(pid))


async def test_an_actor_that_ends_by_itself_ends_the_wait_and_is_named() -> None:
    with fail_after(40):
        async with open_cast("asyncio") as cast:
            store = await cast.start_store()
            await cast.until_ready([store])
            store.kill()
            with pytest.raises(Unmet):
                await cast.until("something that never happens", lambda: False)
