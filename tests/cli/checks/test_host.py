from __future__ import annotations

import socket

import pytest

from arendezvous import RendezvousParameters
from arendezvous.cli.checks.finding import Level
from arendezvous.cli.checks.host import judge_port, who_hosts
from tests.support import fail_after


@pytest.mark.parametrize(("is_host", "hosts"), [("true", True), ("false", False)])
async def test_the_option_decides(is_host: str, hosts: bool) -> None:
    params = RendezvousParameters("p10d", "10.0.0.1:1", "job", 1, 2, config={"is_host": is_host})
    with fail_after(10):
        assert (await who_hosts(params, "10.0.0.1", 2)).hosts is hosts


async def test_loopback_is_this_machine() -> None:
    with fail_after(10):
        assert (await who_hosts(RendezvousParameters("p10d", "127.0.0.1:1", "job", 1, 2), "127.0.0.1", 2)).hosts


async def test_a_port_that_is_taken_cannot_be_bound_and_a_free_one_can() -> None:
    params = RendezvousParameters("p10d", "127.0.0.1:1", "job", 1, 2)
    with socket.create_server(("127.0.0.1", 0)) as server, fail_after(10):
        port = server.getsockname()[1]
        assert (await judge_port(params, "127.0.0.1", port)).level is Level.FAIL
    with fail_after(10):
        assert (await judge_port(params, "127.0.0.1", port)).level is Level.OK
