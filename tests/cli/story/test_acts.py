from __future__ import annotations

from arendezvous.cli.story.acts import Story
from arendezvous.cli.story.cast import open_cast
from arendezvous.cli.story.timeline import Timeline
from tests.support import fail_after


async def test_the_story_has_its_acts_in_order_and_sizes_3_2_3() -> None:
    timeline = Timeline()
    with fail_after(60):
        async with open_cast("asyncio") as cast:
            await Story(cast, timeline).play()
    assert [event.at for event in timeline.events] == sorted(event.at for event in timeline.events)
    sizes = [event.facts["nodes"] for event in timeline.events if event.kind == "formed"]
    assert sizes == [3, 2, 3]
