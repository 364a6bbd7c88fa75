from __future__ import annotations

import pytest

from arendezvous.cli import main
from arendezvous.cli.lookup import READ_TIMEOUT, ask, find, say

COMMANDS = ("status", "close", "purge")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("PET_", "ARENDEZVOUS_EVENT_LOOP")):
            monkeypatch.delenv(name)


def test_the_options_become_the_place_of_the_run() -> None:
    params = find("host:1", "job", "c10d", "join_timeout=9,read_timeout=7")
    assert (params.backend, params.endpoint, params.run_id) == ("c10d", "host:1", "job")
    assert params.config == {"join_timeout": "9", "read_timeout": "7"}
    assert find("host:1", "job", "p10d", "").config["read_timeout"] == READ_TIMEOUT


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["host:1"], "--rdzv-id is missing"),
        (["--rdzv-id", "job"], "ENDPOINT"),
        (["host:99999", "--rdzv-id", "job"], "port number '99999'"),
        (["a b", "--rdzv-id", "job"], "'a b'"),
        (["/tmp/x", "--rdzv-id", "job"], "store_type=file"),
        (["host:1", "--rdzv-id", "a\x1bb"], "'a\\x1bb' must be printable"),
        (["host:1", "--rdzv-id", "job", "--rdzv-backend", "static"], "known are c10d, core, p10d"),
        (["host:1", "--rdzv-id", "job", "--rdzv-conf", "a"], "must have a value"),
        (["host:1", "--rdzv-id", "job", "--rdzv-conf", "store_type=tape"], "'tape'"),
        (
            ["host:1", "--rdzv-id", "job", "--rdzv-conf", "read_timeout=-1"],
            "'read_timeout' (-1 s) must not be negative",
        ),
    ],
)
def test_a_mistake_is_status_2_and_named(
    capsys: pytest.CaptureFixture[str], command: str, argv: list[str], words: str
) -> None:
    assert main([command, *argv]) == 2
    captured = capsys.readouterr()
    assert words in " ".join(captured.err.split())
    assert "\x1b" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_torchruns_variables_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name, value in {
        "PET_RDZV_ENDPOINT": "127.0.0.1:1",
        "PET_RDZV_ID": "job",
        "PET_RDZV_CONF": "read_timeout=0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert main([command]) == 3
    error = capsys.readouterr().err
    assert error.startswith("arendezvous: cannot reach the store at 127.0.0.1:1: ")
    assert "arendezvous serve" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_fits_a_screen_and_has_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  Example:" in lines
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("?", yes=True)
    monkeypatch.setattr("sys.stdin", None)
    assert ask("?", yes=False)


def test_text_that_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    say("né")
    stream.seek(0)
    assert stream.buffer.read() == b"n\\xe9\n"
