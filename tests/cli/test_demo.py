from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from arendezvous.cli import main
from tests.agent.processes import Command, Stage, eventually, marked, open_stage
from tests.support import SLOW

LINE = re.compile(r"^ *(\d+\.\d\d) s  (\w+) +(.*)$")
KINDS = [
    *("store", "started", "formed", "working"),
    *("killed", "noticed"),
    *("formed", "working"),
    *("started", "formed", "working"),
    *("finish", "done", "ended"),
]


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    """A stage on one event loop, for what does not depend on it."""
    with open_stage("asyncio", tmp_path) as opened:
        yield opened


def nothing_is_left(stage: Stage) -> None:
    """Neither an agent nor a worker nor a store; the demo itself has been waited for."""
    eventually("the end of every process, the store too", lambda: not marked(stage.mark))
    stage.expect_no_orphans()


def pid_of(demo: Command, pattern: str) -> int:
    return int(demo.expect(pattern)[1])


def test_the_story_has_five_acts_in_order_and_leaves_nothing_behind(stage: Stage) -> None:
    demo = stage.cli("demo")
    assert demo.wait(60) == 0
    lines = [found for line in demo.lines if (found := LINE.match(line)) and found[2] != "interim"]
    assert [line[2] for line in lines] == KINDS
    times = [float(line[1]) for line in lines]
    assert times == sorted(times)
    assert [re.findall(r"with (\d) nodes", line[3]) for line in lines if line[2] == "formed"] == [["3"], ["2"], ["3"]]
    assert [line[0] for line in demo.lines if re.match(r"\d\. ", line)] == ["1", "2", "3", "4", "5"]
    assert "\x1b" not in demo.output
    assert max(map(len, demo.lines)) <= 82  # 80, and process ids may be long
    nothing_is_left(stage)


def test_the_document_has_what_the_lines_have(stage: Stage) -> None:
    demo = stage.cli("demo", "--json")
    assert demo.wait(60) == 0
    document = json.loads(demo.output)  # standard error too: it is silent
    assert (document["format"], document["status"], document["problem"]) == (1, 0, None)
    assert document["versions"]["event loop"].startswith(stage.loop)
    assert set(document["versions"]) == {"arendezvous", "python", "anyio", "event loop", "platform"}
    events = [event for event in document["events"] if event["kind"] != "interim"]
    assert [event["kind"] for event in events] == KINDS
    assert [event["act"] for event in events] == sorted(event["act"] for event in events)
    times = [event["at"] for event in events]
    assert times == sorted(times)
    assert times[-1] <= document["total"]
    formed = [event for event in events if event["kind"] == "formed"]
    assert [event["nodes"] for event in formed] == [3, 2, 3]
    rounds = [event["round"] for event in formed]
    assert rounds == sorted(set(rounds))
    # A death is told by its connection, which gets a second to come back: earlier would be invented.
    killed, noticed = (next(event for event in events if event["kind"] == kind) for kind in ("killed", "noticed"))
    assert 0.5 < noticed["took"] <= noticed["at"] - killed["at"] + 0.002
    nothing_is_left(stage)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_ends_it_all(stage: Stage, number: int, status: int) -> None:
    demo = stage.cli("demo")
    demo.expect(" formed ")
    demo.send(number)
    assert demo.wait(5) == status
    assert "Traceback" not in demo.output
    assert "ended" not in demo.output
    nothing_is_left(stage)


def test_a_signal_counts_from_the_first_line_on(alone: Stage) -> None:
    demo = alone.cli("demo")
    demo.expect("Real processes")
    demo.send(signal.SIGTERM)
    assert demo.wait(5) == 143
    nothing_is_left(alone)


def test_ctrl_c_does_not_wait_for_an_agent_that_is_stopped(alone: Stage) -> None:
    demo = alone.cli("demo")
    pid = pid_of(demo, r"agents A, B and C \(pids (\d+)")
    demo.expect(" working ")
    os.kill(pid, signal.SIGSTOP)
    demo.send(signal.SIGINT)
    assert demo.wait(5) == 130
    nothing_is_left(alone)


@pytest.mark.parametrize("moment", ["Real processes", " store ", " started ", " formed ", " killed ", "newcomer"])
def test_a_sigkill_leaves_no_process_behind(alone: Stage, moment: str) -> None:
    demo = alone.cli("demo")
    demo.expect(moment)
    demo.send(signal.SIGKILL)
    assert demo.wait(5) == -signal.SIGKILL
    nothing_is_left(alone)


def test_a_sigkill_leaves_no_process_behind_on_any_loop(stage: Stage) -> None:
    demo = stage.cli("demo")
    demo.expect(" noticed ")
    demo.send(signal.SIGKILL)
    assert demo.wait(5) == -signal.SIGKILL
    nothing_is_left(stage)


@pytest.mark.parametrize(
    ("pattern", "who"),
    [(r"store .*\(pid (\d+)\)", "store"), (r"agents A, B and C \(pids (\d+)", "agent A")],
    ids=["store", "agent"],
)
def test_what_does_not_happen_is_named_with_the_last_words_of_everybody(alone: Stage, pattern: str, who: str) -> None:
    demo = alone.cli("demo")
    pid = pid_of(demo, pattern)
    demo.expect(" working ")
    os.kill(pid, signal.SIGKILL)
    assert demo.wait() == 1
    problem = demo.expect(r"^arendezvous: (.*)$")[1]
    assert problem.startswith(f"{who} ended with status -9 while waiting for") or "The store" in problem
    demo.expect(r"^  agent C: arendezvous: round 0: node \d of 3")
    assert "Traceback" not in demo.output
    nothing_is_left(alone)


def test_a_failure_is_a_document_too(alone: Stage) -> None:
    # Whatever a process of the story says or does, this one is broken: it ends before it is ready.
    (alone.where / "sitecustomize.py").write_text(
        "import os, sys\nif 'arendezvous.cli.story.leash' in sys.orig_argv: print('no leash'); os._exit(7)\n"
    )
    demo = alone.cli("demo", "--json", PYTHONPATH=f"{alone.where}{os.pathsep}{alone.env['PYTHONPATH']}")
    assert demo.wait() == 1
    document = json.loads(demo.output[demo.output.index("{") :])
    assert document["status"] == 1
    assert document["problem"].startswith("store ended with status 7 while waiting for")
    demo.expect("^  store: no leash$")
    nothing_is_left(alone)


def test_variables_of_the_launcher_do_not_disturb_it(alone: Stage) -> None:
    demo = alone.cli("demo", PET_STANDALONE="1", PET_NODE_RANK="7", PET_MODULE="1", PET_RDZV_BACKEND="static")
    assert demo.wait(60) == 0


def test_a_reader_that_goes_away_is_no_traceback(alone: Stage) -> None:
    program = f"{sys.executable} -m arendezvous demo | head -n 4; exit ${{PIPESTATUS[0]}}"
    shell = alone.command("bash", "-c", program)
    assert shell.wait(60) == 1
    assert "Traceback" not in shell.output
    nothing_is_left(alone)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_it_has_colours_unless_they_are_unwanted(alone: Stage, no_color: str) -> None:
    env = {**alone.env, "NO_COLOR": no_color, "TERM": "xterm"}
    terminal = pexpect.spawn(
        sys.executable, ["-m", "arendezvous", "demo"], env=env, cwd=str(alone.where), encoding="utf-8"
    )
    terminal.timeout = 20 * SLOW
    try:
        terminal.expect("formed.*\n")
        said = str(terminal.before) + str(terminal.after)
        assert ("\x1b[" in said) is (not no_color)
        terminal.sendintr()  # the terminal's Ctrl-C goes to everything in its foreground
        terminal.expect(pexpect.EOF)
        assert "Traceback" not in terminal.before
        terminal.close()
        assert terminal.exitstatus == 130
    finally:
        terminal.close(force=True)
    nothing_is_left(alone)


def test_the_help_fits_a_screen_and_loads_little(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example:\n" in text
    assert len(text.splitlines()) <= 24


def test_arguments_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "now"]) == 2
    assert "unexpected extra argument" in capsys.readouterr().err
