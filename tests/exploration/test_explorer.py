"""The explorer itself: its reductions lose nothing, its traces are true, its command line says what it found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from .__main__ import main
from .config import Config
from .explorer import explore
from .search import Search
from .space import Violation

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("config", [Config(2, 1, 2, 1, {"flight": 1}), Config(3, 2, 2, 1)], ids=str)
def test_exploring_one_of_equivalent_states_finds_all_of_them(config: Config) -> None:
    reduced, whole = explore(config), explore(replace(config, symmetry=False))
    assert reduced.clean
    assert whole.clean
    assert reduced.states < whole.states <= math.factorial(config.nodes) * reduced.states


@pytest.mark.parametrize("off", ["withdraw", "enter_seq", "hold"])
def test_a_flaw_is_found_with_and_without_the_reduction_in_equally_many_steps(off: str) -> None:
    config = Config(2, 1, 2, 1, off=frozenset({off}))
    reduced, whole = explore(config), explore(replace(config, symmetry=False))
    assert reduced.violation is not None
    assert whole.violation is not None
    assert len(reduced.violation[1]) == len(whole.violation[1])


def test_every_state_has_one_representative_whatever_its_nodes_are_called() -> None:
    search = Search(Config(3, 2, 3, 1))
    g, seen = search.first, 0
    todo, done = [g], {g}
    while todo and seen < 300:
        g = todo.pop(0)
        seen += 1
        for order in ((1, 0, 2), (2, 1, 0), (1, 2, 0)):
            renamed = search.space.rename(g, order)
            first, second = search.canonical(g), search.canonical(renamed)
            # Nodes that nothing tells apart may keep their order; they are equal in all that decides.
            assert search.space.states[first[0]] == search.space.states[second[0]]
            assert first[-2:] == second[-2:]

        def emit(h: tuple[int, ...], free: bool, label: str) -> None:
            if h not in done:
                done.add(h)
                todo.append(h)

        search.successors(g, emit)


def test_a_trace_can_be_replayed_step_by_step() -> None:
    config = Config(2, 1, 2, 1, off=frozenset({"withdraw"}))
    outcome = explore(config)
    assert outcome.violation is not None
    sentence, steps = outcome.violation
    search = Search(config)
    g = search.first
    for step in steps[:-1]:
        found: list[tuple[int, ...]] = []

        def emit(
            h: tuple[int, ...], free: bool, label: str, step: str = step, found: list[tuple[int, ...]] = found
        ) -> None:
            if label == step.removeprefix("! "):
                found.append(h)

        search.successors(g, emit)
        assert found, step
        g = found[0]
    with pytest.raises(Violation) as info:
        search.successors(g, lambda h, free, label: None)
    assert str(info.value) == sentence


def test_a_budget_is_never_exceeded() -> None:
    """Without faults nothing crashes, and whatever is spent is gone."""
    labels: set[str] = set()
    for faults in (0, 1):
        search = Search(Config(2, 1, 2, faults, {"crash": 2, "cancel": 2}))
        todo, done = [search.first], {search.first}

        def emit(
            h: tuple[int, ...],
            free: bool,
            label: str,
            search: Search = search,
            todo: list[tuple[int, ...]] = todo,
            done: set[tuple[int, ...]] = done,
            faults: int = faults,
        ) -> None:
            labels.add(label)
            dead = [x for x in h[2:-2] if search.space.nodes[x].phase == "D"]
            assert len(dead) <= faults
            if h not in done:
                done.add(h)
                todo.append(h)

        while todo:
            search.successors(todo.pop(), emit)
        assert any("crashes" in label for label in labels) is (faults > 0)


def test_the_command_line_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "2", "--min", "2", "--max", "2", "--faults", "1"]) == 0
    assert "clean" in capsys.readouterr().out
    assert main(["--nodes", "2", "--min", "1", "--max", "2", "--off", "withdraw"]) == 1
    out = capsys.readouterr().out
    assert "after its withdrawal was acknowledged" in out
    assert "1 is cancelled" in out


def test_a_rule_that_does_not_exist_cannot_be_switched_off() -> None:
    with pytest.raises(ValueError, match="no such rule: gravity"):
        Config(2, 1, 2, 1, off=frozenset({"gravity"}))
    with pytest.raises(ValueError, match="no such fault: meteor"):
        Config(2, 1, 2, 1, {"meteor": 1})
