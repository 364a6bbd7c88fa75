from __future__ import annotations

import socket

import pytest

from arendezvous.cli.checks.strangers import is_torch_store, recognise
from tests.support import fail_after


@pytest.mark.parametrize(
    ("words", "who"),
    [(b"SSH-2.0-x\r\n", "an SSH server"), (b"HTTP/1.1 400", "an HTTP server"), (b"-ERR unknown", "a Redis server")],
)
def test_known_by_their_words(words: bytes, who: str) -> None:
    assert recognise(words).endswith(f"as {who} does")


async def test_a_port_that_nobody_has_is_no_torch_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with fail_after(10):
        assert not await is_torch_store("127.0.0.1", port, 2)
