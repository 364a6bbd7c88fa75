from __future__ import annotations

import io
import sys

import pytest

from arendezvous.agent.display import Lines, say


def test_lines_show_everything_and_quiet_ones_what_goes_wrong() -> None:
    loud: list[str] = []
    quiet: list[str] = []
    for display in (Lines(loud.append), Lines(quiet.append, quiet=True)):
        display.news("well")
        display.say("ill")
        display.wait(lambda width: "waits" * width)
        display.wait(None)
        assert not display.is_live
    assert loud == ["well", "ill"]
    assert quiet == ["ill"]


def test_a_line_on_standard_error_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    say("so it is")
    assert capsys.readouterr().err == "arendezvous: so it is\n"


def test_an_agent_whose_standard_error_is_gone_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    say("to nobody")
