"""The nodes of a simulation live, crash and come back as their plan says, and the log tells it."""

from __future__ import annotations

import pytest

from arendezvous.testing.simplan import make_plan
from arendezvous.testing.simulator import simulate


def planned(crashing: bool) -> int:
    """The first seed whose plan has crashes, or none of any kind."""
    plans = map(make_plan, range(1000))
    if crashing:
        return next(plan.seed for plan in plans if any(node.crashes for node in plan.nodes))
    return next(plan.seed for plan in plans if not plan.ambushes and not any(node.crashes for node in plan.nodes))


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_a_planned_crash_kills_a_process_and_the_others_go_on(transport: str) -> None:
    report = simulate(planned(True), transport=transport)
    assert not report.violations
    assert any(" dies" in line for line in report.log)


def test_without_crashes_nobody_dies() -> None:
    report = simulate(planned(False))
    assert not report.violations
    assert not any(" dies" in line for line in report.log)
