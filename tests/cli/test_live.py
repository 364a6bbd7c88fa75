from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pexpect
import pytest

pyte = pytest.importorskip("pyte")

from arendezvous.cli.live import LiveLine, display  # noqa: E402
from tests.agent.processes import Stage  # noqa: E402
from tests.cli.runs import WORKER, at_terminal, has_nodes, serve  # noqa: E402
from tests.support import SLOW  # noqa: E402


class Shown:
    """What a command shows at its terminal."""

    def __init__(self, child: Any) -> None:
        self.child = child
        self.screen = pyte.Screen(120, 40)
        self._stream = pyte.Stream(self.screen)

    @property
    def text(self) -> str:
        """The lines; one that fills the screen's width goes on in the next."""
        lines = [line.rstrip() for line in self.screen.display]
        return "".join(line if len(line) == self.screen.columns else line + "\n" for line in lines).rstrip()

    def until(self, *words: str, without: tuple[str, ...] = ()) -> str:
        give_up = time.monotonic() + 20 * SLOW
        while time.monotonic() < give_up:
            self._stream.feed(self.child.read_nonblocking(65536, timeout=20 * SLOW))
            text = self.text
            if all(word in text for word in words) and not any(word in text for word in without):
                return text
        raise AssertionError(f"no {words} without {without} in:\n{self.text}")

    def end(self) -> int | None:
        self.child.expect(pexpect.EOF)
        self._stream.feed(self.child.before)
        self.child.close()
        status: int | None = self.child.exitstatus
        return status


@contextmanager
def agent_at_terminal(stage: Stage, nnodes: str, *more: str, last_call: float = 0.3, **env: str) -> Iterator[Shown]:
    where = ("--nnodes", nnodes, "--rdzv-endpoint", stage.endpoint, "--rdzv-id", "job")
    conf = ("--shutdown-timeout", "5", "--rdzv-conf", f"last_call_timeout={last_call}")
    worker = ("--no-python", "--", sys.executable, "-c", WORKER)
    child = at_terminal(stage, "run", *where, *conf, *more, *worker, **env)
    try:
        yield Shown(child)
    finally:
        child.close(force=True)


def test_one_line_tells_who_is_in_and_goes_when_the_round_has_formed(stage: Stage) -> None:
    serve(stage)
    with agent_at_terminal(stage, "2:2") as shown:
        text = shown.until("1 joined (min 2, max 2), gives up in ", stage.endpoint)
        assert text.count("joined") == 1
        shown.until("gives up in 598 s")
        assert shown.text.count("joined") == 1  # the line changes, none is added
        assert not shown.screen.cursor.hidden  # whatever kills the agent, the terminal is left as it was
        stage.agent(WORKER, nnodes="2:2")
        text = shown.until("round 0: node ", without=("gives up in",))
        assert "joined" not in text
        shown.child.sendintr()
        shown.until("SIGINT: stopping the workers")
        assert shown.end() == 130
        assert "gives up" not in shown.text
        assert not shown.screen.cursor.hidden


def test_who_was_in_the_last_round_and_is_missing_is_named(stage: Stage) -> None:
    serve(stage)
    with agent_at_terminal(stage, "2:2") as shown:
        other = stage.agent(WORKER, nnodes="2:2")
        shown.until("round 0: node ")
        other.send(signal.SIGKILL)
        text = shown.until("joining again", "missing: 127.0.0.1_")
        assert text.index("joining again") < text.index("missing: ")  # what stays is above
        shown.child.sendintr()
        assert shown.end() == 130
        assert "missing: " not in shown.text


def test_a_last_call_is_counted_down(stage: Stage) -> None:
    serve(stage)
    with agent_at_terminal(stage, "1:2", last_call=600) as shown:
        shown.until("1 joined (min 1, max 2), last call 59", "s, gives up in ")
        shown.child.sendintr()
        assert shown.end() == 130


@pytest.mark.parametrize("kind", ["dumb", "quiet"])
def test_no_line_changes_at_a_dumb_terminal_or_when_quiet(stage: Stage, kind: str) -> None:
    serve(stage)
    more = ("--quiet",) if kind == "quiet" else ()
    with agent_at_terminal(stage, "2:2", *more, TERM="dumb" if kind == "dumb" else "xterm") as shown:
        if kind == "dumb":
            shown.until("1/2 nodes joined round 0 (min 2, max 2); at least 1 more must join; gives up in")
        else:
            has_nodes(stage.endpoint, 1)
            stage.agent(WORKER, nnodes="2:2")
            has_nodes(stage.endpoint, 2, complete=True)
        shown.child.sendintr()
        assert shown.end() == 130, shown.text
        assert ("nodes joined" in shown.text) == (kind == "dumb")
        assert "gives up" not in shown.text or kind == "dumb"
        assert "round 0: node " not in shown.text
        assert "SIGINT: stopping the workers" in shown.text  # and that is what --quiet leaves


def test_a_silent_service_is_named_while_the_agent_waits_for_it(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        child = at_terminal(
            stage, "run", "--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-id", "job",
            "--rdzv-conf", "is_host=0", "--no-python", "--", "true",
        )  # fmt: skip
        shown = Shown(child)
        try:
            shown.until(f"connecting to the store at {endpoint} (2 s so far)")
            child.sendintr()
            assert shown.end() == 130
        finally:
            child.close(force=True)


def test_what_else_is_written_meanwhile_stands_above_the_line(stage: Stage) -> None:
    script = (
        "import logging, sys\n"
        "from arendezvous.cli.live import LiveLine\n"
        "logging.basicConfig(format='%(message)s')\n"
        "line = LiveLine()\n"
        "line.wait(lambda width: 'first')\n"
        "logging.warning('a warning')\n"
        "line.say('a message')\n"
        "line.news('some news')\n"
        "line.wait(lambda width: 'x' * width * 3)\n"
        "line.wait(None)\n"
        "logging.warning('a later warning')\n"
        "line.wait(None)\n"
    )
    env: dict[str, str] = {**stage.env, "TERM": "xterm"}
    child = pexpect.spawn(
        sys.executable, ["-c", script], env=env, timeout=20 * SLOW, dimensions=(40, 60), encoding="utf-8"
    )
    shown = Shown(child)
    assert shown.end() == 0
    lines = [line for line in shown.text.splitlines() if line]
    assert lines == ["a warning", "arendezvous: a message", "arendezvous: some news", "a later warning"]


def test_lines_stay_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(display(quiet=False), LiveLine)
    monkeypatch.setattr(os, "isatty", lambda number: True)
    assert not display(quiet=True).is_live
