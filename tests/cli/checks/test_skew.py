from __future__ import annotations

import math

from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.skew import Sample, estimate, judge


def test_the_quickest_answer_is_believed() -> None:
    assert estimate([Sample(1.0, 9.0), Sample(0.1, 5.0)]) == (5.0, 0.05)
    assert estimate([Sample(0.1, math.nan)]) is None
    assert estimate([]) is None


def test_a_second_is_notable_and_no_answer_is_no_fault() -> None:
    assert judge([Sample(0.01, 0.2)]).level is Level.OK
    found = judge([Sample(0.01, -3.0)])
    assert (found.level, "3.000 s behind" in found.seen) == (Level.WARN, True)
    assert judge([]).level is Level.NOTE
