from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from arendezvous import RendezvousConnectionError, RendezvousParameters, TCPStore
from arendezvous.agent.hosting import StoreProcess, embedded_store, host_store
from tests.support import fail_after

from .processes import free_port

SERVE = (sys.executable, "-m", "arendezvous", "serve")


@contextlib.contextmanager
def ended(store: StoreProcess | None) -> Iterator[StoreProcess]:
    assert store is not None
    try:
        yield store
    finally:
        os.kill(store.pid, signal.SIGKILL)
        os.waitpid(store.pid, 0)


def params(endpoint: str, backend: str = "p10d", nodes: int = 2, **options: object) -> RendezvousParameters:
    return RendezvousParameters(backend, endpoint, "job", nodes, nodes, **options)


async def test_the_store_is_a_process_of_its_own_session_and_serves() -> None:
    with fail_after(30), ended(await host_store(params(f"127.0.0.1:{free_port()}"), SERVE)) as store:
        assert os.getsid(store.pid) == store.pid
        host, port = store.endpoint.split(":")
        async with TCPStore(host, int(port)) as client:
            await client.set("k", b"v")
            assert await client.get("k") == b"v"


async def test_port_zero_takes_a_free_port_and_says_which() -> None:
    with fail_after(30), ended(await host_store(params("127.0.0.1:0"), SERVE)) as store:
        assert int(store.endpoint.rpartition(":")[2]) > 0


async def test_a_port_that_somebody_serves_is_left_to_him() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock, fail_after(30):
        assert await host_store(params(f"127.0.0.1:{sock.getsockname()[1]}"), SERVE) is None


@pytest.mark.parametrize(
    "given",
    [
        params("192.0.2.1:29400"),
        params("127.0.0.1:29400", is_host="false"),
        params("/tmp/x", store_type="file"),
        params("127.0.0.1:29400", "memory"),
    ],
)
async def test_a_store_that_belongs_elsewhere_is_not_hosted(given: RendezvousParameters) -> None:
    with fail_after(10):
        assert await host_store(given, ("/no/such/program",)) is None


async def test_a_port_that_is_taken_and_silent_is_an_error_that_says_so() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers, nobody else can have it
        with fail_after(30), pytest.raises(RendezvousConnectionError, match=r"cannot be served here.*another process"):
            await host_store(params(f"127.0.0.1:{sock.getsockname()[1]}"), SERVE)


async def test_a_serve_command_that_does_not_exist_is_an_error() -> None:
    with fail_after(10), pytest.raises(RendezvousConnectionError, match="/no/such/program cannot be started"):
        await host_store(params(f"127.0.0.1:{free_port()}"), ("/no/such/program",))


async def test_an_embedded_store_is_on_loopback() -> None:
    with fail_after(10):
        async with embedded_store() as endpoint:
            host, port = endpoint.split(":")
            assert host == "127.0.0.1"
            async with TCPStore(host, int(port)) as client:
                await client.set("k", b"v")
