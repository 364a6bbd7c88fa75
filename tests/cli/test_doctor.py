from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from arendezvous.cli import main
from arendezvous.cli.doctor import doctor
from tests.agent.processes import Command, Stage, eventually
from tests.faults.clock_skew import skewed

from .runs import WORKER, on_store


def read(command: Command, status: int = 0) -> dict[str, Any]:
    """The document that a doctor with ``--json`` printed."""
    assert command.wait() == status, command.output
    document = json.loads(command.output)
    assert document["status"] == status
    return document  # type: ignore[no-any-return]


def find(document: dict[str, Any], subject: str) -> dict[str, str]:
    """The finding about a subject; there is one."""
    (found,) = [finding for finding in document["findings"] if finding["subject"] == subject]
    return found  # type: ignore[no-any-return]


def serve(stage: Stage, where: str = "127.0.0.1:0", **env: str) -> str:
    return stage.cli("serve", where, **env).expect(r"serving on (\S+)$")[1]


@contextmanager
def talker(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A service of its own kind; yields its endpoint."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, ExitStack() as opened:

        def handle(client: socket.socket) -> None:
            try:
                answer(client)
            except OSError:
                pass

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                opened.callback(client.close)
                threading.Thread(target=handle, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


# ---- a store that is there -----------------------------------------------------------------------------------------


def test_a_good_store_passes_and_has_the_same_keys_afterwards(stage: Stage) -> None:
    endpoint = serve(stage)
    on_store(endpoint, lambda store: store.multi_set(["a", "b"], [b"1", b"2"]))
    before = on_store(endpoint, lambda store: store.scan(""))
    command = stage.cli("doctor", endpoint, "--rdzv-id", "job7")
    assert command.wait() == 0, command.output
    assert on_store(endpoint, lambda store: store.scan("")) == before == [("a", b"1"), ("b", b"2")]
    for line in (
        r"^python: +CPython 3",
        rf"^event loop: +{stage.loop}",
        r"^ok    connect 127\.0\.0\.1 127\.0\.0\.1:\d+ took the connection in [\d.]+ ms$",
        r"^ok    protocol     an arendezvous store, protocol version 1, epoch [0-9a-f]{8}, ",
        r"^ok    round trip   median [\d.]+ ms, worst .* of 20 pings",
        r"^ok    clock        the store's wall clock is 0\.\d{3} s (behind|ahead of) this one \(± [\d.]+ ms\)$",
        r"^note  run job7     nobody has joined$",
        r"^      → start agents with this --rdzv-id",
        r"^ok    host         somebody serves already; .*127\.0\.0\.1 is this machine",
        r"^note  own address  127\.0\.0\.1 would be published .* connection to the store",
        r"^\d note, \d+ ok$",
    ):
        assert re.search(line, command.output, re.MULTILINE), (line, command.output)


def test_a_run_that_waits_is_explained(stage: Stage) -> None:
    stage.agent(WORKER, nnodes="2:3")

    def joined() -> bool:
        command = stage.cli("doctor", stage.endpoint, "--rdzv-id", "job", "--json")
        command.wait()
        runs = [f for f in json.loads(command.output)["findings"] if f["subject"] == "run job"]
        return (
            bool(runs)
            and "1/3 nodes joined round 0 (min 2, max 3); here: " in runs[0]["seen"]
            and ("start 1 more agents" in runs[0]["todo"])
        )

    eventually("the run has one node", joined, 30)


@pytest.mark.parametrize("offset", [-7200.5, 120.0])
def test_a_clock_that_is_off_is_shown_and_harms_nothing(stage: Stage, offset: float) -> None:
    env = {name: value for name, value in skewed(offset, env={}).items() if name in ("LD_PRELOAD", "WALLSKEW")}
    document = read(stage.cli("doctor", serve(stage, **env), "--json"))
    clock = find(document, "clock")
    assert clock["level"] == "warn"
    found = re.search(r"clock is (\d+) s (ahead of|behind)", clock["seen"])
    assert found is not None
    assert abs(int(found[1]) * (1 if found[2] == "ahead of" else -1) - offset) < 2
    assert "NTP" in clock["todo"]
    assert find(document, "round trip")["level"] == "ok"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_an_ipv6_literal(stage: Stage) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no ::1 here")
    endpoint = serve(stage, "[::1]:0")
    document = read(stage.cli("doctor", endpoint, "--json"))
    assert find(document, "resolve")["seen"].startswith("::1 is an IPv6 address")
    assert find(document, "connect ::1")["level"] == "ok"
    assert find(document, "protocol")["level"] == "ok"
    assert find(document, "own address")["seen"].startswith("::1 would be published")


def test_a_store_that_is_stopped_is_said_to_hang(stage: Stage) -> None:
    server = stage.cli("serve", "127.0.0.1:0")
    endpoint = server.expect(r"serving on (\S+)$")[1]
    server.send(signal.SIGSTOP)
    try:
        document = read(stage.cli("doctor", endpoint, "--timeout", "0.5", "--json"), 3)
    finally:
        server.send(signal.SIGCONT)
    assert "it is a store that hangs" in find(document, "protocol")["seen"]
    assert not [f for f in document["findings"] if f["subject"] in ("clock", "host")]


# ---- nobody is there -----------------------------------------------------------------------------------------------


def test_nobody_listens_says_who_would_host(stage: Stage) -> None:
    own = stage.cli("doctor", stage.endpoint, "--json")
    other = stage.cli("doctor", stage.endpoint, "--rdzv-conf", "is_host=false", "--json")
    document = read(own)
    assert find(document, "connect 127.0.0.1")["level"] == "note"
    assert "an agent started here would host it: 127.0.0.1 is this machine" in find(document, "host")["seen"]
    assert find(document, f"port {stage.port}")["level"] == "ok"
    document = read(other, 3)
    refused = find(document, "connect 127.0.0.1")
    assert refused["level"] == "fail"
    assert "refused" in refused["seen"]
    assert "nobody listens there" in refused["todo"]
    hosts = find(document, "host")
    assert "is_host=false says so" in hosts["seen"]
    assert f"`arendezvous serve {stage.endpoint}`" in hosts["todo"]
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", stage.port))  # nobody was left listening


def test_a_name_that_does_not_resolve(stage: Stage) -> None:
    document = read(stage.cli("doctor", "nowhere.invalid:29400", "--json"), 3)
    found = find(document, "resolve")
    assert found["level"] == "fail"
    assert "nowhere.invalid does not resolve here: " in found["seen"]
    assert "/etc/hosts" in found["todo"]
    assert find(document, "open files")


MUTE_RESOLVER = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
mute = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mute.bind(("127.0.0.1", 53))
os.set_inheritable(mute.fileno(), True)
os.execv(sys.executable, [sys.executable, "-m", "arendezvous", *sys.argv[2:]])
"""


def test_a_resolver_that_never_answers_is_given_up_on(stage: Stage, tmp_path: Path) -> None:
    """In a network of its own, whose only name server is deaf for longer than this test waits."""
    unshare = ["unshare", "--mount", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("needs root and unshare")
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    arguments = ["doctor", "far.away.example:29400", "--timeout", "0.5", "--json"]
    command = stage.command(*unshare, sys.executable, "-c", MUTE_RESOLVER, str(resolv), *arguments)
    document = read(command, 3)
    assert "no answer within 0.5 s" in find(document, "resolve")["seen"]
    assert find(document, "open files")


def test_dropped_packets_are_a_time_out(stage: Stage) -> None:
    """Linux drops what a full backlog has no room for."""
    with socket.socket() as listener, ExitStack() as opened:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        commands = [
            stage.cli("doctor", *arguments, "--timeout", "0.5", "--json")
            for arguments in ((endpoint,), ("--dial", endpoint))
        ]
        for command, subject in zip(commands, ("connect 127.0.0.1", "dial 127.0.0.1"), strict=True):
            found = find(read(command, 3), subject)
            assert "timed out, nothing answered within" in found["seen"]
            assert "packets are dropped: look at firewalls" in found["todo"]


# ---- somebody else is there ----------------------------------------------------------------------------------------


def banner(client: socket.socket) -> None:
    client.sendall(b"SSH-2.0-Open\x1b[31mSSH_9.2\r\n")


def silent(client: socket.socket) -> None:
    while client.recv(100):
        pass


def hang_up(client: socket.socket) -> None:
    client.recv(100)
    client.close()


def torch_store(client: socket.socket) -> None:
    """As torch's TCPStore: the first words are VALIDATE and its magic, or it hangs up; PING gives its number back."""
    words = client.recv(100)
    if words.startswith(b"\x00\xce\xf7\x85\x3c\x0d"):
        client.sendall(words[6:10])
    client.close()


def liar(client: socket.socket) -> None:
    """A store's hello, and then no store."""
    client.recv(100)
    client.sendall(b"\xa7rdzv\x01\x00\x00" + b"e" * 16 + b"\xff" * 64)
    silent(client)


def another_release(client: socket.socket) -> None:
    client.recv(100)
    client.sendall(b"\xa7rdzv\x09\x00\x00" + b"e" * 16)
    silent(client)


def test_services_that_are_no_store_are_recognised(stage: Stage) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    web_thread = threading.Thread(target=web.serve_forever, daemon=True)
    web_thread.start()
    expected = [
        (banner, "protocol", "it answered 'SSH-2.0-Open\\x1b[31mSSH_9.2' as an SSH server does"),
        (silent, "protocol", "accepted the connection and said nothing"),
        (hang_up, "protocol", "closed the connection without a word"),
        (torch_store, "protocol", "it is a TCPStore of torch"),
        (another_release, "protocol", "it speaks protocol version 9"),
        (liar, "round trip", "said hello and then no more"),
    ]
    options = ("--timeout", "1", "--json")
    try:
        with ExitStack() as opened:
            endpoints = [opened.enter_context(talker(answer)) for answer, *_ in expected]
            commands = [stage.cli("doctor", endpoint, *options) for endpoint in endpoints]
            commands.append(stage.cli("doctor", f"127.0.0.1:{web.server_port}", *options))
            expected.append((silent, "protocol", "as an HTTP server does"))
            for command, (_, subject, words) in zip(commands, expected, strict=True):
                document = read(command, 3)
                assert words in find(document, subject)["seen"]
                assert "\x1b" not in command.output
                assert not [f for f in document["findings"] if f["subject"] == "host"]
    finally:
        web.shutdown()
        web.server_close()
        web_thread.join(5)


# ---- reaching each other -------------------------------------------------------------------------------------------


def test_a_listener_and_a_dialer_both_say_that_it_works(stage: Stage) -> None:
    listener = stage.cli("doctor", stage.endpoint, "--listen", "--timeout", "60")
    place = listener.expect(r"arendezvous doctor --dial (127\.0\.0\.1:\d+)$")[1]
    with closing(socket.create_connection(place.rsplit(":", 1))) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n" + b"x" * 10_000)
        listener.expect(r"^note  listen       127\.0\.0\.1 connected to 127\.0\.0\.1 and said 'GET / HTTP")
    document = read(stage.cli("doctor", "--dial", place, "--json"))
    assert find(document, "dial 127.0.0.1")["seen"].startswith(f"reached {place}: connected in ")
    assert find(document, "seen as")["seen"].startswith("the other node sees this one as 127.0.0.1, ")
    listener.expect("127.0.0.1 reached this machine, from this machine itself")
    listener.send(signal.SIGINT)
    assert listener.wait() == 0


def test_listening_with_nobody_coming_fails_and_gives_the_port_back(stage: Stage) -> None:
    free = stage.port
    bounded = stage.cli("doctor", "--listen", "--timeout", "0.3", "--json")
    interrupted = stage.cli("doctor", "--listen", str(free))
    interrupted.expect(rf"arendezvous doctor --dial \S+:{free}$")
    interrupted.send(signal.SIGINT)
    assert interrupted.wait() == 3
    assert "FAIL  listen       nobody reached this machine" in interrupted.output
    assert bounded.wait() == 3
    assert "arendezvous doctor --dial" in bounded.output  # also while the document is not there yet
    with closing(socket.socket(socket.AF_INET)) as sock:
        sock.bind(("127.0.0.1", free))


def test_dialling_nobody_a_store_and_a_name_without_address(stage: Stage) -> None:
    store = serve(stage)
    commands = [
        stage.cli("doctor", "--dial", target, "--json") for target in (stage.endpoint, store, "nowhere.invalid:1")
    ]
    found = find(read(commands[0], 3), "dial 127.0.0.1")
    assert "refused" in found["seen"]
    assert "does not run there" in found["todo"]
    found = find(read(commands[1], 3), "dial 127.0.0.1")
    assert "it is no `arendezvous doctor --listen`" in found["seen"]
    assert find(read(commands[2], 3), "resolve")["level"] == "fail"


# ---- other stores, the report itself -------------------------------------------------------------------------------


def test_a_file_store_is_looked_at_and_no_file_is_made(stage: Stage, tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    options = ("--rdzv-conf", "store_type=file", "--rdzv-id", "job", "--json")
    fresh = stage.cli("doctor", str(directory / "store"), *options)
    lost = stage.cli("doctor", str(directory / "nowhere" / "store"), *options)
    document = read(fresh)
    assert "does not exist yet" in find(document, "file")["seen"]
    assert find(document, "locks")["level"] == "ok"
    assert find(document, "file system")["seen"].startswith(f"{directory} is on ")
    assert "does not exist" in find(read(lost, 3), "file")["seen"]
    assert list(directory.iterdir()) == []


def test_the_report_holds_no_secrets(stage: Stage) -> None:
    command = stage.cli(
        *("doctor", "http://eve:hunter2@node0:29400", "--rdzv-conf", "password=hunter2,keep_alive_interval=1"),
        TOKEN="hunter2",
        http_proxy="http://eve:hunter2@proxy:1",
    )
    assert command.wait() == 3
    assert "hunter2" not in command.output
    assert "eve:" not in command.output
    assert "eve@" not in command.output
    assert "http://***:***@node0:29400" in command.output
    assert re.search(r"^options: +password=\*\*\*,keep_alive_interval=1$", command.output, re.MULTILINE)


def test_it_prints_in_ascii_where_the_terminal_has_nothing_else(stage: Stage) -> None:
    command = stage.cli("doctor", "knöten:29400", "--timeout", "2", PYTHONIOENCODING="ascii")
    assert command.wait() == 3
    assert command.output.isascii()
    assert re.search("^      -> ", command.output, re.MULTILINE)


def test_memory_and_plug_ins_are_not_guessed_at() -> None:
    run = CliRunner().invoke(doctor, ["any", "--rdzv-backend", "memory", "--json"], standalone_mode=False)
    assert run.return_value == 0
    assert "within one process" in find(json.loads(run.stdout), "backend")["seen"]
    run = CliRunner().invoke(doctor, ["any", "--rdzv-backend", "etcdd", "--json"], standalone_mode=False)
    assert run.return_value == 3
    assert "'etcdd' is not registered" in find(json.loads(run.stdout), "backend")["seen"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--listen", "--dial", "h:1"], "one for each node"),
        (["--listen", "70000"], "a port is 0 to 65535"),
        (["--dial", "node0"], "HOST:PORT that --listen printed"),
        (["--dial", "a b:1"], "hostname"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["h:1", "--rdzv-conf", "is_host=perhaps"], "is_host"),
        (["h:1", "--rdzv-conf", "is_host"], "is_host"),
        (["h:1", "--rdzv-id", "a\nb"], "run id"),
    ],
)
def test_mistakes_are_status_2(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert main(["doctor", *argv]) == 2
    assert words in capsys.readouterr().err


def test_the_endpoint_is_read_from_the_variable_of_torchs_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "a b")
    run = CliRunner().invoke(doctor, ["--json"], standalone_mode=False)
    assert run.return_value == 3
    assert "'a b'" in find(json.loads(run.stdout), "endpoint")["seen"]


def test_the_help_fits_a_small_terminal_and_has_an_example(stage: Stage) -> None:
    command = stage.cli("doctor", "--help", COLUMNS="80")
    assert command.wait() == 0
    assert len(command.lines) <= 24
    assert max(map(len, command.lines)) <= 80
    assert "Example:" in command.output


def test_a_closed_pipe_is_no_traceback(stage: Stage) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m arendezvous doctor | true"],
        capture_output=True,
        text=True,
        env={**os.environ, **stage.env},
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
