from __future__ import annotations

import signal
import socket

import anyio
import pytest

from arendezvous import TCPStore
from arendezvous.cli import main
from tests.agent.processes import Stage, free_port
from tests.support import fail_after


async def _ask(host: str, port: int) -> bytes:
    with fail_after(15):
        async with TCPStore(host, port) as store:
            await store.set("k", b"v")
            return await store.get("k")


def test_it_prints_one_line_when_it_is_ready_and_serves(stage: Stage) -> None:
    server = stage.cli("serve", "127.0.0.1:0")
    port = int(server.expect(r"^arendezvous: serving on 127\.0\.0\.1:(\d+)$")[1])
    assert anyio.run(_ask, "127.0.0.1", port) == b"v"
    server.send(signal.SIGTERM)
    assert server.wait() == 143
    assert len(server.lines) == 1


def test_ctrl_c_is_status_130(stage: Stage) -> None:
    server = stage.cli("serve", "127.0.0.1:0")
    server.expect("serving on")
    server.send(signal.SIGINT)
    assert server.wait() == 130


def test_until_idle_ends_it_with_status_0_also_if_nobody_ever_came(stage: Stage) -> None:
    assert stage.cli("serve", "127.0.0.1:0", "--until_idle", "0.2").wait() == 0


def test_bind_listens_wider_than_the_name(stage: Stage) -> None:
    server = stage.cli("serve", f"localhost:{stage.port}", "--bind", "0.0.0.0")
    server.expect(f"serving on localhost:{stage.port}")
    assert anyio.run(_ask, "127.0.0.1", stage.port) == b"v"


def test_a_detached_server_outlives_the_readers_of_its_output(stage: Stage) -> None:
    server = stage.cli("serve", "127.0.0.1:0", "--detached")
    port = int(server.expect(r"serving on 127\.0\.0\.1:(\d+)$")[1])
    server._reader.join(10)  # end of file: nothing of it holds the pipe any more
    assert not server._reader.is_alive()
    assert anyio.run(_ask, "127.0.0.1", port) == b"v"


def test_a_taken_port_is_status_3_and_says_what_to_do(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = stage.cli("serve", f"127.0.0.1:{sock.getsockname()[1]}")
        assert server.wait() == 3
    assert "another process has the port, choose another one or 0" in server.output


@pytest.mark.parametrize("endpoint", ["127.0.0.1:x", "127.0.0.1:99999", "a b"])
def test_a_malformed_endpoint_is_status_2(capsys: pytest.CaptureFixture[str], endpoint: str) -> None:
    assert main(["serve", endpoint]) == 2
    assert repr(endpoint) in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_malformed_idle_time_is_status_2(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["serve", f"127.0.0.1:{free_port()}", "--until-idle", seconds]) == 2
    assert "--until-idle" in capsys.readouterr().err
