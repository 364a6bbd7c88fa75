from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pyte

from arendezvous.handler.keys import Keys
from tests.agent.processes import ROOT, Command, Stage
from tests.cli.runs import WORKER, at_terminal, has_nodes, keys_of, on_store, serve
from tests.support import SLOW


def read(command: Command) -> dict[str, Any]:
    assert command.wait() == 0, command.output
    return json.loads(command.output)  # type: ignore[no-any-return]


def look(stage: Stage, *options: str) -> Command:
    return stage.cli("status", stage.endpoint, "--rdzv-id", "job", *options)


# ---- one look ------------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_has_joined_is_shown_and_stays_unknown(stage: Stage) -> None:
    serve(stage)
    command = look(stage)
    assert command.wait() == 0
    assert "nobody has joined" in command.output
    assert read(look(stage, "--json"))["round"] is None
    assert on_store(stage.endpoint, lambda store: store.num_keys()) == 0


def test_a_round_that_forms_and_one_that_is_complete(stage: Stage) -> None:
    """Who is in it, who is missing and why; and the store is as it was."""
    serve(stage)
    agent = stage.agent(WORKER, nnodes="2:2", conf="keep_alive_interval=60")
    has_nodes(stage.endpoint, 1)
    before = keys_of(stage.endpoint)
    command = look(stage)
    assert command.wait() == 0
    assert "1/2 nodes joined round 0 (min 2, max 2)" in command.output
    assert "waits:    for at least 1 more node" in command.output
    assert f"_{agent.pid}_0" in command.output
    assert keys_of(stage.endpoint) == before
    stage.agent(WORKER, nnodes="2:2", conf="keep_alive_interval=60")
    has_nodes(stage.endpoint, 2, complete=True)
    stage.agent(WORKER, nnodes="2:2", conf="keep_alive_interval=60")
    has_nodes(stage.endpoint, 3)
    before = keys_of(stage.endpoint)
    found = read(look(stage, "--json"))
    assert keys_of(stage.endpoint) == before
    assert (found["format"], found["complete"], found["closed"]) == (1, True, "no")
    assert (found["min_nodes"], found["max_nodes"], found["failures"]) == (2, 2, 0)
    assert [(n["role"], n["rank"]) for n in found["nodes"]] == [("member", 0), ("member", 1), ("spare", None)]
    assert all(n["attached"] and n["heartbeat_age"] >= 0 and n["condition"] == "live" for n in found["nodes"])


def test_a_store_that_nobody_serves_is_status_3_with_advice_and_is_not_hosted(stage: Stage) -> None:
    command = look(stage, "--rdzv-conf", "read_timeout=0.3,is_host=true")
    assert command.wait() == 3
    assert command.output.startswith(f"arendezvous: cannot reach the store at {stage.endpoint}")
    assert "arendezvous serve" in command.output
    assert len(command.lines) == 1


def test_a_store_file_is_read_and_none_is_made(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = stage.cli("status", str(path), "--rdzv-id", "job", "--rdzv-conf", "store_type=file")
    assert command.wait() == 3
    assert str(path) in command.output
    assert not path.exists()
    stage.cli(
        *("run", "--rdzv-endpoint", str(path), "--rdzv-id", "job", "--rdzv-conf", "store_type=file"),
        *("--", sys.executable, "-uc", f"print('up'); {WORKER}"),
    ).expect("up")
    found = read(stage.cli("status", str(path), "--rdzv-id", "job", "--rdzv-conf", "store_type=file", "--json"))
    assert (found["complete"], len(found["nodes"])) == (True, 1)


def test_a_damaged_state_is_status_3_with_advice(stage: Stage) -> None:
    serve(stage)
    on_store(stage.endpoint, lambda store: store.set(Keys("job").state, b"\x1b[2J" * 20))
    command = look(stage)
    assert command.wait() == 3
    assert "arendezvous purge" in command.output
    assert "\x1b" not in command.output


def test_at_a_terminal_it_is_a_table(stage: Stage) -> None:
    serve(stage)
    stage.agent(WORKER, nnodes="1:1")
    has_nodes(stage.endpoint, 1, complete=True)
    for term, ruled in (("xterm", True), ("dumb", False)):
        child = at_terminal(stage, "status", stage.endpoint, "--rdzv-id", "job", TERM=term)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
        assert ("─" in child.before) is ruled
        for words in ("round 0 is complete with 1 nodes", "RANK", "member", "live"):
            assert words in child.before


def test_help_imports_neither_an_event_loop_nor_rich() -> None:
    script = (
        "import sys; from arendezvous.cli import main\n"
        "for c in 'status', 'close', 'purge': main([c, '--help'])\n"
        "print(sorted({'anyio', 'asyncio', 'trio', 'rich', 'arendezvous.handler'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == "[]\n"


# ---- watching ------------------------------------------------------------------------------------------------------


def test_a_watch_tells_what_changes_until_ctrl_c(stage: Stage) -> None:
    serve(stage)
    watch = look(stage, "--watch", "--interval", "0.1")
    watch.expect("nobody has joined")
    conf = "keep_alive_interval=0.5"
    first = stage.agent(WORKER, nnodes="1:2", conf=conf)
    watch.expect(rf"^\+[\d.]+ s  joined: \S+_{first.pid}_0")
    watch.expect(r"^\+[\d.]+ s  round 0 is complete with 1 node$")
    second = stage.agent(WORKER, nnodes="1:2", conf=conf)
    watch.expect(r"round 1 is complete with 2 nodes")
    watch.forget()
    second.send(signal.SIGKILL)
    watch.expect(rf"(lost|gone|silent): \S+_{second.pid}_0")
    watch.expect("round 2 is complete with 1 node$")
    first.send(signal.SIGTERM)
    watch.expect(rf"(left|gone): \S+_{first.pid}_0")
    assert stage.cli("close", stage.endpoint, "--rdzv-id", "job").wait() == 0
    watch.expect("the rendezvous is closed in round")
    watch.send(signal.SIGINT)
    assert watch.wait() == 130
    assert "Traceback" not in watch.output


def test_a_watch_ends_with_143_on_sigterm(stage: Stage) -> None:
    serve(stage)
    watch = look(stage, "--watch")
    watch.expect("nobody has joined")
    watch.send(signal.SIGTERM)
    assert watch.wait() == 143


def test_a_watch_goes_on_while_the_store_is_away(stage: Stage) -> None:
    server = stage.cli("serve", stage.endpoint)
    server.expect("serving on")
    watch = look(stage, "--watch", "--interval", "0.1", "--rdzv-conf", "read_timeout=0.3")
    watch.expect("nobody has joined")
    server.send(signal.SIGKILL)
    server.wait()
    watch.expect(r"^\+[\d.]+ s  cannot reach the store at .*; trying again$")
    serve(stage)
    watch.expect("the store answers again")
    watch.send(signal.SIGINT)
    assert watch.wait() == 130
    assert sum("trying again" in line for line in watch.lines) == 1


def test_a_watch_waits_for_a_store_that_is_not_up_yet(stage: Stage) -> None:
    watch = look(stage, "--watch", "--interval", "0.1", "--rdzv-conf", "read_timeout=0.3")
    watch.expect("trying again")
    serve(stage)
    watch.expect("the store answers$")
    watch.expect("nobody has joined")
    watch.send(signal.SIGINT)
    assert watch.wait() == 130


def test_a_watch_with_json_is_a_document_on_each_line(stage: Stage) -> None:
    serve(stage)
    watch = look(stage, "--watch", "--json", "--interval", "0.1")
    watch.expect('"changes": \\[\\]')
    stage.agent(WORKER, nnodes="1:1")
    watch.expect('"complete"')
    watch.expect("round 0 is complete")
    watch.send(signal.SIGINT)
    assert watch.wait() == 130
    documents = [json.loads(line) for line in watch.lines]
    assert all((found["format"], found["status"]["format"]) == (1, 1) for found in documents)
    kinds = [change["kind"] for found in documents for change in found["changes"]]
    assert kinds[0] == "joined"
    assert "complete" in kinds
    assert documents[0]["elapsed"] < documents[-1]["elapsed"]


def test_a_watch_ends_quietly_when_nobody_reads_it_any_more(stage: Stage) -> None:
    """Without news too, when there is nothing to write that would tell."""
    serve(stage)
    ours, theirs = os.pipe()
    with open(stage.where / "err", "wb") as err, os.fdopen(ours, "rb") as reader:
        process = subprocess.Popen(
            [sys.executable, "-m", "arendezvous", "status", stage.endpoint, "--rdzv-id", "job", "--watch"],
            env=stage.env,
            stdout=theirs,
            stderr=err,
        )
        os.close(theirs)
        assert reader.readline()
        reader.close()
        process.wait(20 * SLOW)
    assert (stage.where / "err").read_bytes() == b""


def test_a_watch_at_a_terminal_draws_the_table_again_below_the_changes(stage: Stage) -> None:
    serve(stage)
    child = at_terminal(stage, "status", stage.endpoint, "--rdzv-id", "job", "--watch", "--interval", "0.1")
    screen = pyte.Screen(120, 40)
    stream = pyte.Stream(screen)

    def until(*words: str) -> None:
        for _ in range(600):
            stream.feed(child.read_nonblocking(65536, timeout=20 * SLOW))
            text = "\n".join(screen.display)
            if all(word in text for word in words):
                return
        raise AssertionError("\n".join(screen.display))

    until("nobody has joined")
    stage.agent(WORKER, nnodes="1:1")
    until("joined: ", "round 0 is complete with 1 node\u0020", "RANK", "member")
    assert sum("store:" in line for line in screen.display) == 1
    assert not any("nobody has joined" in line for line in screen.display)
    child.sendintr()
    child.expect(pexpect.EOF)
    stream.feed(child.before)
    child.close()
    assert child.exitstatus == 130
    assert not screen.cursor.hidden
