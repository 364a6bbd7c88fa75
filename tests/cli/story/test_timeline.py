from __future__ import annotations

import time

from arendezvous.cli.story.timeline import Event, Timeline


def test_times_are_measured_from_what_they_are_said_to_be() -> None:
    heard: list[Event] = []
    line = Timeline(heard.append, time.monotonic() - 10)
    began = line.add("kill", "killed")
    line.add("noticed", "noticed after {took}", since=began - 2, round=1)
    assert heard == line.events
    assert heard[0].took is None
    assert heard[0].at >= 10
    assert heard[1].took is not None
    assert heard[1].took >= 2
    assert heard[1].text.startswith("noticed after 2.")
    assert heard[1].document()["round"] == 1
