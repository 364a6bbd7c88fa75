"""The command that replays simulations."""

from __future__ import annotations

import pytest

from arendezvous.testing import replay, simulate
from arendezvous.testing import simulator as module


def test_one_seed_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["4"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("seed 4: ")
    assert simulate(4).digest in line


def test_verbose_prints_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["4", "-v"]) == 0
    assert capsys.readouterr().out.startswith("\n".join(simulate(4).log))


def test_twice_verbose_prints_what_the_library_logs(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["4", "-vv"]) == 0
    assert "the first node creates the state" in capsys.readouterr().out


def test_several_seeds_print_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["4", "--count", "3", "--transport", "tcp", "--backend", "asyncio"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("3 simulations in ")
    assert line.endswith(" 0 with violations")


def test_a_violation_is_status_1_and_the_command_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Checker, "unrest", lambda self: ["somebody is restless"])
    assert replay.main(["4"]) == 1
    out = capsys.readouterr().out
    assert "no rest: somebody is restless" in out
    assert "replay: python -m arendezvous.testing.replay 4 --transport memory --backend trio -v" in out


def test_an_unknown_argument_is_status_2() -> None:
    with pytest.raises(SystemExit) as raised:
        replay.main(["4", "--transport", "pigeon"])
    assert raised.value.code == 2
