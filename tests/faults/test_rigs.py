"""The rigs really do harm, and only the harm that is asked for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import hosts
from tests.faults.clock_skew import skewed
from tests.faults.hosts import Hosts
from tests.faults.proc_faults import Harness, run_plan
from tests.faults.tcp_proxy import Proxy, parse_fault
from tests.support import SLOW

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Counter:
    """A server that adds one for each x and answers the sum in six digits; ``applied`` is what it has done."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        self.applied = 0
        self.ended = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(100):
                    self.applied += data.count(b"x")
                    client.sendall(b"%06d" % self.applied)
            except OSError:
                pass
        self.ended.release()


@pytest.fixture
def counter() -> Iterator[Counter]:
    server = Counter()
    yield server
    # Wakes the thread that accepts, which closing alone does not.
    server.socket.shutdown(socket.SHUT_RDWR)
    server.socket.close()


def ask(proxy: Proxy, times: int = 1, request: bytes = b"x") -> str:
    """Ask so many times on one connection; return the last answer, or what went wrong."""
    answer = b""
    try:
        with closing(socket.create_connection((proxy.host, proxy.port), 10)) as client:
            client.settimeout(1.0 * SLOW)
            for _ in range(times):
                client.sendall(request)
                answer = b""
                while len(answer) < 6:
                    more = client.recv(6 - len(answer))
                    if not more:
                        return f"end after {len(answer)}"
                    answer += more
    except TimeoutError:
        return "silence"
    except ConnectionError as exc:
        return type(exc).__name__
    return answer.decode()


class TestProxy:
    @pytest.mark.parametrize(
        ("faults", "times", "answer", "applied"),
        [
            ([], 2, "000002", 2),
            (["delay:0.02-0.05"], 2, "000002", 2),
            (["drop_reply:2"], 2, "end after 0", 2),
            (["reset_reply:1"], 1, "ConnectionResetError", 1),
            (["cut_reply:9"], 2, "end after 3", 2),
            (["cut_reply:0"], 1, "end after 0", 1),
            (["blackhole:1"], 2, "silence", 1),
            (["reset:2"], 2, "ConnectionResetError", 1),
            (["refuse"], 1, "ConnectionResetError", 0),
        ],
        ids=str,
    )
    def test_a_fault_strikes_where_it_should(
        self, counter: Counter, faults: list[str], times: int, answer: str, applied: int
    ) -> None:
        with Proxy(counter.address, faults) as proxy:
            assert ask(proxy, times) == answer
        if faults != ["refuse"]:
            assert counter.ended.acquire(timeout=10)
        assert counter.applied == applied

    def test_a_cut_request_arrives_up_to_its_byte(self, counter: Counter) -> None:
        with Proxy(counter.address, ["cut:3"]) as proxy:
            assert ask(proxy, request=b"xxxxx") in ("end after 0", "ConnectionResetError", "000003")
            assert counter.ended.acquire(timeout=10)
        assert counter.applied == 3

    def test_delays_add_up(self, counter: Counter) -> None:
        began = time.monotonic()
        with Proxy(counter.address, ["delay:0.1"]) as proxy:
            assert ask(proxy) == "000001"
        assert time.monotonic() - began >= 0.2

    def test_one_seed_makes_one_choice_of_connections(self, counter: Counter) -> None:
        def run(seed: int) -> list[str]:
            with Proxy(counter.address, ["reset_reply:1"], seed=seed, prob=0.5) as proxy:
                for _ in range(12):
                    ask(proxy)
                return [note.detail for note in proxy.events("open")]

        assert run(7) == run(7)
        assert set(run(7)) == {"armed", "clean"}

    def test_connections_are_spared_at_first_and_after_the_limit(self, counter: Counter) -> None:
        with Proxy(counter.address, ["refuse"], skip=1, limit=2) as proxy:
            answers = [ask(proxy) for _ in range(5)]
        assert [answer.isdigit() for answer in answers] == [True, False, False, True, True]

    def test_faults_change_on_an_open_connection(self, counter: Counter) -> None:
        with (
            Proxy(counter.address) as proxy,
            closing(socket.create_connection((proxy.host, proxy.port), 10)) as client,
        ):
            client.sendall(b"x")
            assert client.recv(6) == b"000001"
            proxy.set_faults(["drop_reply:1"])
            client.sendall(b"x")
            assert client.recv(6) == b""
            assert [note.event for note in proxy.log][:2] == ["open", "drop_reply"]

    def test_a_target_that_is_not_there_is_a_reset(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = free.getsockname()
        with Proxy(address) as proxy:
            assert ask(proxy) == "ConnectionResetError"
            assert proxy.events("no target")

    def test_an_address_that_cannot_be_bound_is_reported(self, counter: Counter) -> None:
        with pytest.raises(OSError, match="address"), Proxy(counter.address, port=counter.address[1]):
            pass

    def test_an_unknown_fault_is_refused(self) -> None:
        with pytest.raises(ValueError, match="explode"):
            parse_fault("explode:1")

    def test_it_runs_as_a_process(self, counter: Counter) -> None:
        command = [sys.executable, "-m", "tests.faults.tcp_proxy", "--to", f"127.0.0.1:{counter.address[1]}"]
        with subprocess.Popen(
            [*command, "--fault", "drop_reply:1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            listening = json.loads(process.stdout.readline())["listening"]
            with closing(socket.create_connection(("127.0.0.1", int(listening.rpartition(":")[2])), 10)) as client:
                client.sendall(b"x")
                assert client.recv(6) == b""
            out, _ = process.communicate()
        assert [json.loads(line)[2] for line in out.splitlines()] == ["open", "drop_reply", "closed"]


BEATING = """
import json, signal, sys, time
def say(event): print(json.dumps({"event": event}), flush=True)
for number, name in ((signal.SIGTERM, "term"), (signal.SIGINT, "int")):
    signal.signal(number, lambda *_, name=name: (say(name), sys.exit(3)))
print("plain text", flush=True)
say("joined")
while True:
    time.sleep(0.02)
    say("beat")
"""


class TestProcesses:
    def test_a_killed_process_dies_of_it(self) -> None:
        with Harness() as harness:
            harness.start("A", [sys.executable, "-c", BEATING])
            harness.wait_event("A", "joined", 20)
            harness.signal("A", "kill")
            assert harness.wait_exit("A", 20) == -signal.SIGKILL
        assert {"src": "A", "text": "plain text"}.items() <= harness.log[1].items()

    @pytest.mark.parametrize("do", ["term", "int"])
    def test_a_process_that_is_asked_to_end_may_say_so(self, do: str) -> None:
        with Harness() as harness:
            harness.start("A", [sys.executable, "-c", BEATING])
            harness.wait_event("A", "joined", 20)
            harness.signal("A", do)
            harness.wait_event("A", do, 20)
            assert harness.wait_exit("A", 20) == 3

    def test_a_stopped_process_is_silent_until_it_is_continued(self) -> None:
        with Harness() as harness:
            harness.start("A", [sys.executable, "-c", BEATING])
            process = harness.processes["A"]
            harness.wait_event("A", "beat", 20)
            harness.signal("A", "stop")
            while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T":
                time.sleep(0.01)
            time.sleep(0.1)
            before = len(harness.events("A", "beat"))
            time.sleep(0.2)
            assert len(harness.events("A", "beat")) == before
            harness.signal("A", "cont")
            harness.wait_event("A", "beat", 20, count=before + 3)

    def test_children_are_signalled_with_the_tree(self) -> None:
        parent = (
            "import subprocess, sys, json\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print(json.dumps({'event': 'child', 'pid': child.pid}), flush=True)\n"
            "child.wait()\n"
        )
        with Harness() as harness:
            harness.start("A", [sys.executable, "-c", parent])
            pid = harness.wait_event("A", "child", 20)["line"]["pid"]
            harness.signal("A", "kill", tree=True)
            harness.wait_exit("A", 20)
            deadline = time.monotonic() + 20
            while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def test_waiting_ends_with_an_error_that_names_what_is_missing(self) -> None:
        with Harness() as harness:
            harness.start("A", [sys.executable, "-c", BEATING])
            with pytest.raises(TimeoutError, match="A gave no 'other' number 1"):
                harness.wait_event("A", "other", 0.05)
            with pytest.raises(TimeoutError, match="A did not end"):
                harness.wait_exit("A", 0.05)

    def test_a_plan_runs_by_the_clock_and_by_events(self) -> None:
        beating = [sys.executable, "-c", BEATING]
        plan: dict[str, Any] = {
            "agents": {"A": beating, "B": {"cmd": beating, "start": 0.1, "env": {"X": "1"}}},
            "steps": [
                {"after": "beat", "of": "A", "count": 2, "do": "stop", "to": "A", "for": 0.1},
                {"after": "joined", "of": "B", "wait": 0.1, "do": "kill", "to": "B"},
                {"at": 0.0, "do": "kill", "to": "nobody"},
                {"at": 1.5, "do": "term", "to": "A", "tree": True},
            ],
            "end": 30 * SLOW,
        }
        record = run_plan(plan)
        assert {entry["src"]: entry["exit"] for entry in record if "exit" in entry} == {"A": 3, "B": -9}
        assert [entry["did"] for entry in record if entry.get("to") == "A"] == ["start", "stop", "cont", "term"]
        assert [entry["failed"] for entry in record if "failed" in entry] == ["'nobody'"]
        assert [entry["s"] for entry in record] == sorted(entry["s"] for entry in record)

    def test_a_plan_runs_as_a_process(self, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        agent = [sys.executable, "-c", 'print(\'{"event": "hello"}\')']
        plan.write_text(json.dumps({"agents": {"A": agent}, "steps": [], "end": 20}))
        command = [sys.executable, "-m", "tests.faults.proc_faults", str(plan)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        assert '"line": {"event": "hello"}' in done.stdout


def clocks(env: dict[str, str]) -> tuple[float, float]:
    """How far a process's wall and monotonic clocks are ahead of this one's."""
    code = (
        "import time\n"
        "before = time.monotonic(); time.sleep(0.1); slept = time.monotonic() - before\n"
        "assert 0.09 < slept < 5, slept\n"
        "import threading; threading.Event().wait(0.05)\n"
        "print(time.time(), time.monotonic())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    wall, monotonic = map(float, done.stdout.split())
    return wall - time.time(), monotonic - time.monotonic()


class TestClock:
    @pytest.mark.parametrize("offset", [20.0, -3600.0, 0.0])
    def test_only_the_wall_clock_is_wrong(self, offset: float) -> None:
        wall, monotonic = clocks(skewed(offset))
        assert wall == pytest.approx(offset, abs=5)
        assert monotonic == pytest.approx(0, abs=5)

    def test_the_clock_jumps_while_the_process_runs(self, tmp_path: Path) -> None:
        file = tmp_path / "offset"
        file.write_text("0")
        code = "import sys, time\nfor line in sys.stdin: time.sleep(0.1); print(time.time(), flush=True)"
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env=skewed(file=file),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for offset in (0, 1000, -1000):
                file.write_text(str(offset))
                process.stdin.write("\n")
                process.stdin.flush()
                assert float(process.stdout.readline()) - time.time() == pytest.approx(offset, abs=5)
            process.stdin.close()

    def test_any_command_can_be_run_so(self) -> None:
        command = [sys.executable, "-m", "tests.faults.clock_skew", "5000", "--", "date", "+%s"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        assert float(done.stdout) - time.time() == pytest.approx(5000, abs=5)


SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
client, _ = server.accept()
while data := client.recv(100):
    client.sendall(data)
print("end", flush=True)
"""
CLIENT = """
import socket, sys
client = socket.create_connection((sys.argv[1], 5000), 10, source_address=(sys.argv[2], 0))
client.settimeout(float(sys.argv[3]))
for line in sys.stdin:
    try:
        client.sendall(b"x")
        print(client.recv(10), flush=True)
    except Exception as exc:
        print(type(exc).__name__, flush=True)
"""


class TestHosts:
    @pytest.mark.parametrize("namespaces", [True, False])
    def test_a_connection_to_a_host_that_vanished_stays_half_open_and_silent(self, namespaces: bool) -> None:
        with Hosts(["a", "b"], namespaces=namespaces) as net:
            server = net.popen("a", [sys.executable, "-c", SERVER, net.address("a")], stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
            arguments = [net.address("a"), net.address("b"), "1"]
            client = net.popen(
                "b",
                [sys.executable, "-c", CLIENT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert client.stdin is not None
            assert client.stdout is not None

            def said() -> str:
                assert client.stdin is not None
                assert client.stdout is not None
                client.stdin.write("\n")
                client.stdin.flush()
                return str(client.stdout.readline().strip())

            assert said() == "b'x'"
            net.cut("a")
            # Neither an end nor a reset: nobody knows.
            assert said() == "TimeoutError"
            # Without namespaces there may be left-overs of earlier connections.
            for name in ("a", "b"):
                assert set(net.tcp_states(name)) - {"TIME_WAIT"} == {"ESTABLISHED"}
            assert server.poll() is None
            net.heal("a")
            for _ in range(20):
                if (answer := said()) != "TimeoutError":
                    break
            assert answer.startswith("b'x")

    def test_where_namespaces_are_not_possible_the_processes_are_stopped_instead(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with Hosts(["a"]) as net:
            assert not net.namespaces
            process = net.popen("a", [sys.executable, "-c", "import time; time.sleep(60)"])
            net.cut("a")
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            net.heal("a")
            os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert process.poll() is not None

    def test_nothing_is_left_behind(self) -> None:
        with Hosts(["a"]) as net:
            namespaces = net.namespaces
            net.popen("a", [sys.executable, "-c", "import time; time.sleep(60)"])
        if namespaces:
            listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
            assert f"ardzv{os.getpid()}-" not in listed

    def test_what_a_killed_test_left_is_cleaned_up(self) -> None:
        with Hosts(["a"]) as net:
            if not net.namespaces:
                return
            gone = subprocess.Popen(["true"])
            gone.wait()
            subprocess.run(["ip", "netns", "add", f"ardzv{gone.pid}-a"], check=True)
            assert f"ardzv{gone.pid}-a" in hosts.clean()
            assert net.tcp_states("a") == []
