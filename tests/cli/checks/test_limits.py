from __future__ import annotations

import resource

from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.limits import judge_files, judge_ipv6, open_files
from tests.support import fail_after


def test_few_files_are_a_warning_with_the_number() -> None:
    found = judge_files(64)
    assert found.level is not Level.OK
    assert "ulimit -n is 64" in found.seen
    assert judge_files(None).level is Level.OK
    assert judge_files(1_000_000).level is Level.OK


def test_the_limit_is_this_process_s() -> None:
    assert open_files() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def test_ipv6_never_fails_a_checkup() -> None:
    with fail_after(10):
        assert (await judge_ipv6()).level in (Level.OK, Level.NOTE)
