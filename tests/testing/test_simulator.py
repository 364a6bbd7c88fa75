"""Hundreds of simulations of the real handlers, and proof that the simulator would notice a mistake in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from arendezvous.core.ops import Decision, View, decide
from arendezvous.handler import executor, heartbeat
from arendezvous.testing import SimulationError, SimulationReport, simplan, simulate

#: ``ARENDEZVOUS_SIM_SEEDS=5000 pytest tests/testing/test_simulator.py`` runs more, ``ARENDEZVOUS_SIM_FIRST`` others.
SEEDS = int(os.environ.get("ARENDEZVOUS_SIM_SEEDS", "500"))
FIRST = int(os.environ.get("ARENDEZVOUS_SIM_FIRST", "0"))
#: Simulations in one test.
_CHUNK = 25
#: Of ten seeds: which transport and which event loop.
_KINDS = [("memory", "trio")] * 4 + [("memory", "asyncio")] * 3 + [("tcp", "trio")] * 2 + [("tcp", "asyncio")]


def kind_of(seed: int) -> tuple[str, str]:
    return _KINDS[seed % len(_KINDS)]


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, _CHUNK))
def test_real_handlers_keep_their_promises_whatever_a_seed_does_to_them(first: int) -> None:
    for seed in range(first, min(first + _CHUNK, FIRST + SEEDS)):
        transport, backend = kind_of(seed)
        simulate(seed, transport=transport, backend=backend).check()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_the_same_seed_gives_the_same_log(transport: str, backend: str) -> None:
    for seed in (3, 10, 17):
        first = simulate(seed, transport=transport, backend=backend)
        again = simulate(seed, transport=transport, backend=backend)
        assert first.log == again.log
        assert first == again


def test_another_seed_gives_another_log() -> None:
    assert len({simulate(seed).digest for seed in range(5)}) == 5


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_a_replay_in_another_process_gives_the_same_log(transport: str) -> None:
    # Another process hashes bytes differently, so whatever iterates over a set of them would show here.
    report = simulate(23, transport=transport, backend="asyncio")
    command = report.replay.split()
    assert command[:3] == ["python", "-m", "arendezvous.testing.replay"]
    done = subprocess.run(
        [sys.executable, *command[1:]],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert tuple(done.stdout.splitlines()[: len(report.log)]) == report.log
    assert report.digest in done.stdout


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ValueError, match="pigeon"):
        simulate(1, transport="pigeon")


def test_the_number_of_nodes_can_be_given() -> None:
    report = simulate(1, nodes=2)
    assert "2 nodes" in report.log[0]
    assert "--nodes 2" in report.replay


def test_simulations_exercise_what_they_are_for() -> None:
    seen = "\n".join(line for seed in range(40) for line in simulate(seed).log)
    for what in (
        "dies",
        "cut off",
        "was cancelled",
        "is told",
        "does: leave",
        "does: fail",
        "finishes",
        "lost",
        "queue n",
    ):
        assert what in seen, what


# ---- the checker can fail ----------------------------------------------------------------------------------------


def first_violation(seeds: range, words: str = "", transport: str = "memory") -> SimulationReport:
    for seed in seeds:
        report = simulate(seed, transport=transport)
        if any(words in sentence for sentence in report.violations):
            return report
    raise AssertionError(f"nothing of the kind was noticed in {len(seeds)} simulations")


def without(rule: str) -> Callable[[View, float], Decision]:
    return lambda view, now: decide(replace(view, rules=view.rules - {rule}), now)


@pytest.mark.parametrize(
    ("rule", "seeds", "words"),
    [
        ("withdraw", range(100), "withdraw"),
        ("seq", range(60), "is listed"),
        ("enter_seq", range(60), "was handed round"),
        ("hold", range(100), "with its successor"),
    ],
)
def test_a_rule_that_is_switched_off_is_noticed(
    rule: str, seeds: range, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "decide", without(rule))
    first_violation(seeds, words)


def test_a_violation_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "decide", without("enter_seq"))
    report = first_violation(range(60))
    with pytest.raises(SimulationError) as raised:
        report.check()
    assert report.replay in str(raised.value)
    assert f"replay {report.seed} --transport memory --backend trio" in report.replay


def test_a_handler_that_never_watches_its_neighbours_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.Observer, "follow", lambda self, targets, tg: None)
    first_violation(range(60), "listed and not alive")


def test_a_node_whose_clock_lies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its seconds are ten times as long as those of the others: it beats too seldom for them.
    make = simplan.NodeClock
    monkeypatch.setattr(simplan, "NodeClock", lambda origin, rate, pauses: make(origin, rate / 10, pauses))
    first_violation(range(60), "no rest")
