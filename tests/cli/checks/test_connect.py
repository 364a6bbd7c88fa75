from __future__ import annotations

import socket

from arendezvous.cli.checks.connect import Attempt, judge, knock, knock_all, reach
from arendezvous.cli.checks.finding import Level
from tests.support import fail_after


def test_a_wildcard_is_dialled_through_loopback() -> None:
    assert (reach("0.0.0.0"), reach("::"), reach("10.0.0.1")) == ("127.0.0.1", "::1", "10.0.0.1")


async def test_a_listener_answers_and_a_closed_port_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, fail_after(10):
        port = server.getsockname()[1]
        (attempt,) = await knock_all(["127.0.0.1"], port, 5)
        assert (attempt.trouble, attempt.own) == ("", "127.0.0.1")
    with fail_after(10):
        assert (await knock("127.0.0.1", port, 5)).trouble == "refused"


def test_a_refusal_is_a_failure_unless_this_node_would_serve() -> None:
    refused = [Attempt("127.0.0.1", 1, 0.0, "refused", "Connection refused")]
    assert [found.level for found in judge(refused, may_host=False)] == [Level.FAIL]
    assert Level.FAIL not in [found.level for found in judge(refused, may_host=True)]
