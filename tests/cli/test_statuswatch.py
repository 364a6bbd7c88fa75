from __future__ import annotations

import json

import pytest

from arendezvous.cli.statusnews import Change, Watcher
from arendezvous.cli.statuswatch import Documents, Lines
from arendezvous.handler.status import RendezvousStatus

NOBODY = RendezvousStatus("run", "h:1", None, False, "no", 1, 1, 0, (), (), "nobody has joined")


def test_lines_are_the_status_once_and_then_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher()
    with Lines() as lines:
        for _ in range(3):
            lines.show(1.0, watcher.see(NOBODY), watcher)
        lines.show(2.5, [Change("lost", "lost: \x1b[2Ja")], watcher)
    out = capsys.readouterr().out
    assert out.count("nobody has joined") == 1
    assert out.endswith("\n+2.5 s  lost: \\x1b[2Ja\n")


def test_lines_show_the_status_when_the_store_answers_for_the_first_time(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher()
    lines = Lines()
    lines.show(0.0, watcher.miss("refused"), watcher)
    lines.show(1.0, watcher.see(NOBODY), watcher)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "+0.0 s  refused; trying again",
        "+1.0 s  the store answers",
        "run:      run",
    ]


def test_documents_are_a_line_for_the_start_and_for_each_look_with_news(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher()
    documents = Documents()
    for _ in range(3):
        documents.show(1.0, watcher.see(NOBODY), watcher)
    documents.show(2.0, watcher.miss("refused"), watcher)
    documents.show(3.0, watcher.miss("refused"), watcher)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["changes"], first["status"]["round"], first["error"]) == ([], None, None)
    assert (second["changes"][0]["kind"], second["status"], second["error"]) == ("unreachable", None, "refused")
