from __future__ import annotations

import pytest

from arendezvous.cli.checks.finding import Finding, Report, fail, note, ok, seconds, warn


def test_one_failure_is_status_3_and_the_rest_is_not() -> None:
    heard: list[Finding] = []
    report = Report(heard.append)
    report.add(ok("a", "fine"), note("b", "so", "nothing"), warn("c", "hm", "look"))
    assert report.status == 0
    report.add(fail("d", "no", "repair"))
    assert report.status == 3
    assert heard == report.findings
    assert [found["subject"] for found in report.document({"k": "v"})["findings"]] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("value", "shown"), [(0.00021, "0.21 ms"), (0.035, "35 ms"), (1.2, "1.2 s"), (7200, "7200 s")])
def test_durations_for_people(value: float, shown: str) -> None:
    assert seconds(value) == shown
