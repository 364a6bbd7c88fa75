from __future__ import annotations

from arendezvous.cli.checks.address import own_address, route_to
from tests.support import fail_after


async def test_the_route_to_loopback_is_loopback_and_a_name_has_none() -> None:
    with fail_after(10):
        assert await route_to("127.0.0.1") == "127.0.0.1"
        assert await route_to("300.300.300.300") == ""


async def test_what_the_user_said_comes_before_the_connection() -> None:
    with fail_after(10):
        told = await own_address("10.1.2.3", "127.0.0.1", ("127.0.0.1",))
        assert (told.address, told.source) == ("10.1.2.3", "--local-addr")
        assert (await own_address(None, "127.0.0.9", ("127.0.0.1",))).address == "127.0.0.9"
        assert (await own_address(None, "", ("127.0.0.1",))).address == "127.0.0.1"
