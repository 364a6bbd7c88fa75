from __future__ import annotations

from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.resolve import Names, family, judge, look_up
from tests.support import fail_after


def test_families() -> None:
    assert (family("127.0.0.1"), family("::1"), family("node0")) == (4, 6, 0)


async def test_a_literal_address_stands_for_itself() -> None:
    with fail_after(10):
        names = await look_up("127.0.0.1", 1, 5)
    assert (names.addresses, names.literal, names.loopback) == (("127.0.0.1",), True, True)


def test_a_name_that_leads_to_loopback_is_a_warning_and_one_that_leads_nowhere_a_failure() -> None:
    assert Level.WARN in [found.level for found in judge(Names("node0", ("127.0.1.1",)))]
    assert Level.FAIL in [found.level for found in judge(Names("node0", (), problem="Name or service not known"))]
