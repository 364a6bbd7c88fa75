"""Real agents, real workers, real signals: the main job on the command line."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from arendezvous import RendezvousParameters, create_handler
from arendezvous.agent import AgentConfig, ElasticAgent, ExitStatus
from arendezvous.agent.display import Lines
from tests.support import SLOW, fail_after

from .processes import Command, Stage, eventually, is_running

SLEEP = (
    "import os, time\n"
    "print('WORKER', os.environ['RANK'], os.environ['WORLD_SIZE'], os.getpid(), flush=True)\n"
    "time.sleep(600)\n"
)
STUBBORN = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "if pid := os.fork(): print('WORKER', os.getpid(), pid, flush=True)\n"
    "time.sleep(600)\n"
)
#: Rank 0 listens at MASTER_ADDR:MASTER_PORT, the others connect; whoever loses a peer fails, as a collective does.
COUPLED = (
    "import os, socket, sys, time\n"
    "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
    "where = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
    "if rank == 0:\n"
    "    server = socket.create_server(where)\n"
    "    peers = [server.accept()[0] for _ in range(size - 1)]\n"
    "else:\n"
    "    for _ in range(500):\n"
    "        try: peers = [socket.create_connection(where)]; break\n"
    "        except OSError: time.sleep(0.02)\n"
    "print('WORKER', rank, size, os.getpid(), flush=True)\n"
    "if peers: peers[0].recv(1); sys.exit(17)\n"
    "time.sleep(600)\n"
)


def two(stage: Stage, script: str, *options: str, **kwargs: str) -> tuple[Command, Command]:
    """Two agents in one round; the first one started the store."""
    first = stage.agent(script, *options, **kwargs)
    first.expect("started the store at")
    second = stage.agent(script, *options, **kwargs)
    first.expect(r"node \d of 2")
    second.expect(r"node \d of 2")
    if "'WORKER'" in script:
        for agent in (first, second):
            agent.expect("WORKER . 2")
    return first, second


def test_two_agents_agree_and_their_workers_get_the_environment(stage: Stage) -> None:
    script = (
        "import json, os\n"
        "names = 'MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE '\\\n"
        "    'ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT '\\\n"
        "    'TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE'\n"
        # One write: the workers of a node share a pipe.
        "os.write(1, json.dumps({name: os.environ[name] for name in names.split()}).encode() + b'\\n')\n"
    )
    one = stage.agent(script, "--nproc-per-node", "1", "--max-restarts", "4", nnodes="2")
    other = stage.agent(script, "--nproc_per_node", "2", "--max_restarts=4", nnodes="2")
    assert (one.wait(), other.wait()) == (0, 0)
    found = [json.loads(line) for agent in (one, other) for line in agent.lines if line.startswith("{")]
    assert sorted(int(env["RANK"]) for env in found) == [0, 1, 2]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"], env["WORLD_SIZE"]) for env in found}) == 1
    by_group = {env["GROUP_RANK"]: env["LOCAL_WORLD_SIZE"] for env in found}
    assert sorted(by_group.values()) == ["1", "2"]
    for env in found:
        assert int(env["RANK"]) == (0 if env["GROUP_RANK"] == "0" else int(by_group["0"])) + int(env["LOCAL_RANK"])
        assert (env["GROUP_WORLD_SIZE"], env["ROLE_NAME"], env["TORCHELASTIC_RUN_ID"]) == ("2", "default", "job")
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "4")
        assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    stage.expect_no_orphans()


@pytest.mark.parametrize("victim", [0, 1], ids=["the one that started the store", "the other"])
def test_a_killed_agent_leaves_no_worker_and_the_other_forms_a_new_round(stage: Stage, victim: int) -> None:
    agents = two(stage, SLEEP)
    workers = [int(agent.expect(r"WORKER \d 2 (\d+)")[1]) for agent in agents]
    survivor = agents[1 - victim]
    survivor.forget()
    agents[victim].send(signal.SIGKILL)
    survivor.expect(r"round \d: lost: .*joining again")
    survivor.expect("node 0 of 1, worker rank 0 of 1")
    survivor.expect("WORKER 0 1")
    eventually("the old workers are gone", lambda: not any(map(is_running, workers)))
    # And it grows again: whoever hosts has nothing to do with it.
    newcomer = stage.agent(SLEEP)
    newcomer.expect("WORKER . 2")
    survivor.expect(r"round \d: waiting: .*joining again")
    survivor.expect("WORKER . 2")
    for agent, status in ((survivor, 143), (newcomer, 143)):
        agent.send(signal.SIGTERM)
        assert agent.wait() == status
    stage.expect_no_orphans()


def test_a_killed_agent_takes_stubborn_workers_and_their_children_along(stage: Stage) -> None:
    agent = stage.agent(STUBBORN, "--shutdown-timeout", "0.3")
    worker, grandchild = map(int, agent.expect(r"WORKER (\d+) (\d+)").groups())
    agent.send(signal.SIGKILL)
    eventually("all of the group is gone", lambda: not is_running(worker) and not is_running(grandchild))
    stage.expect_no_orphans()


def test_workers_that_break_because_a_peer_was_killed_cost_no_restart(stage: Stage) -> None:
    agents = two(stage, COUPLED)
    agents[1].forget()
    agents[0].send(signal.SIGKILL)
    agents[1].expect("exited with status 17")
    agents[1].expect(r"round \d: lost: .*joining again")
    agents[1].expect("node 0 of 1.*failures 0")
    agents[1].expect("WORKER 0 1")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_makes_one_node_leave_and_the_other_goes_on(stage: Stage, number: int, status: int) -> None:
    script = (
        "import os, signal, sys, time\n"
        "def note(number, _): print('GOT', signal.Signals(number).name, flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, note); signal.signal(signal.SIGTERM, note)\n"
        "print('WORKER', os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True); time.sleep(600)\n"
    )
    leaver, stayer = two(stage, script)
    stayer.forget()
    leaver.send(number)
    assert leaver.wait() == status
    assert f"GOT {signal.Signals(number).name}" in leaver.output
    assert "Traceback" not in leaver.output
    stayer.expect(r"round \d: left: .*joining again")
    stayer.expect("WORKER 0 1")
    stayer.send(signal.SIGINT)
    assert stayer.wait() == 130
    stage.expect_no_orphans()


def test_a_second_interrupt_does_not_wait_for_the_grace(stage: Stage) -> None:
    agent = stage.agent(STUBBORN, "--shutdown-timeout", "500")
    agent.expect("WORKER")
    agent.send(signal.SIGINT)
    agent.expect("once more to stop at once")
    agent.send(signal.SIGINT)
    assert agent.wait() == 130
    stage.expect_no_orphans()


def test_an_interrupt_while_waiting_for_others_ends_at_once(stage: Stage) -> None:
    agent = stage.agent(SLEEP, nnodes="2")
    agent.expect("1/2 nodes joined.*at least 1 more must join")
    agent.send(signal.SIGINT)
    assert agent.wait() == 130


def test_a_worker_that_fails_restarts_everybody_and_all_count_the_same(stage: Stage) -> None:
    script = (
        "import os, sys, time\n"
        "print('ROUND', os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK'], flush=True)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    time.sleep(600) if os.environ['RANK'] == '1' else sys.exit(5)\n"
    )
    agents = [stage.agent(script, "--max-restarts", "1", nnodes="2") for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    for agent in agents:
        assert [line.split()[1] for line in agent.lines if line.startswith("ROUND")] == ["0", "1"]
    assert any("exited with status 5" in agent.output for agent in agents)
    assert any("joining again after failure 1 of at most 1" in agent.output for agent in agents)
    stage.expect_no_orphans()


def test_the_last_lines_of_a_worker_that_failed_are_shown_on_every_node(stage: Stage) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    time.sleep(600) if os.environ['RANK'] == '1' else sys.exit('it was the \\x1b[2J disk')\n"
    )
    agents = [stage.agent(script, "--max-restarts", "1", nnodes="2") for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0]
    for agent in agents:
        assert any(line.startswith("arendezvous:   | it was the \\x1b[2J disk") for line in agent.lines), agent.output
    assert sum("this node: worker 0 (rank 0" in agent.output for agent in agents) == 1
    stage.expect_no_orphans()


def test_logs_are_teed_with_a_prefix_and_kept_for_each_worker_and_round(stage: Stage) -> None:
    script = (
        "import os, sys, time\n"
        "print('out', os.environ['RANK'], flush=True)\n"
        "if os.environ['RANK'] == '0': open('zero', 'w').close()\n"
        "while not os.path.exists('zero'): time.sleep(0.01)\n"  # or the end of 1 might stop 0 before it prints
        "if os.environ['RANK'] == '1': sys.stderr.write('half'); sys.stderr.flush()\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1')\n"
    )
    logs = stage.where / "logs"
    options = ("--max-restarts", "1", "--nproc-per-node", "2", "--log-dir", str(logs), "-r", "0:1", "-t", "1:3")
    agent = stage.agent(script, *options, nnodes="1", run_id="../job")
    assert agent.wait() == 0
    assert agent.lines.count("[default1]:out 1") == 2
    assert "[default1]:half" in agent.lines
    assert "out 0" not in agent.output
    files = {str(path.relative_to(logs)).split("/", 2)[2]: path.read_text() for path in logs.rglob("*.log")}
    for number in (0, 1):
        assert files[f"round_{number}/0/stdout.log"] == "out 0\n"
        assert files[f"round_{number}/1/stdout.log"] == "out 1\n"
        assert files[f"round_{number}/1/stderr.log"] == "half"
    assert not any("0/stderr" in name for name in files)
    assert [path.name for path in logs.iterdir()] == ["..%2Fjob"]


def test_a_log_directory_that_cannot_be_made_is_status_2(stage: Stage) -> None:
    (stage.where / "file").write_text("")
    agent = stage.agent(SLEEP, "--log-dir", str(stage.where / "file"), nnodes="1")
    assert agent.wait() == 2
    assert "the log directory cannot be made" in agent.output
    assert "Traceback" not in agent.output


def test_output_that_nobody_reads_holds_up_no_signal(stage: Stage) -> None:
    """The pipe of the agent's standard output is full: the workers wait, the node leaves all the same."""
    ours, theirs = os.pipe()
    script = "import sys\nwhile True: print('x' * 1000, flush=True)"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "arendezvous", "run", "--standalone", "--shutdown-timeout", "1", "--tee", "1"),
            *("--", sys.executable, "-c", script),
        ],
        env=stage.env,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    try:
        os.close(theirs)
        eventually("the pipe is full", lambda: _is_full(ours))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20 * SLOW) == 143
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    stage.expect_no_orphans()


def _is_full(reader: int) -> bool:
    """Whether a pipe has about as much in it as it takes."""
    return struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0] >= 60_000


def test_a_crash_loop_ends_after_max_restarts_with_status_1(stage: Stage) -> None:
    script = "import os; print('TRY', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True); os.kill(os.getpid(), 11)"
    agent = stage.agent(script, "--max-restarts", "2", nnodes="1")
    assert agent.wait() == 1
    assert [line for line in agent.lines if line.startswith("TRY")] == ["TRY 0", "TRY 1", "TRY 2"]
    assert "was killed by SIGSEGV, and --max-restarts 2 is used up; leaving" in agent.output
    stage.expect_no_orphans()


def test_in_a_job_of_fixed_size_a_final_failure_ends_every_node_with_status_1(stage: Stage) -> None:
    script = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '0' else time.sleep(600)"
    agents = [stage.agent(script, nnodes="2") for _ in range(2)]
    assert [agent.wait() for agent in agents] == [1, 1]
    outputs = [agent.output for agent in agents]
    assert sum("exited with status 3, and --max-restarts is 0; leaving" in output for output in outputs) == 1
    assert sum("fewer than 2 nodes remain, giving up" in output for output in outputs) == 1
    stage.expect_no_orphans()


def test_in_an_elastic_job_the_others_go_on_without_the_node_that_failed_for_good(stage: Stage) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['WORLD_SIZE'] == '2': sys.exit(3) if os.environ['RANK'] == '0' else time.sleep(600)\n"
        f"while not os.path.exists({str(stage.where / 'go')!r}): time.sleep(0.02)\n"
    )
    agents = two(stage, script)
    (stage.where / "go").touch()
    assert sorted(agent.wait() for agent in agents) == [0, 1]
    stage.expect_no_orphans()


def test_a_node_that_finished_waits_until_the_others_have(stage: Stage) -> None:
    script = (
        "import os, time\n"
        f"flag = {str(stage.where / 'go')!r}\n"
        "print('WORKER', os.environ['RANK'], flush=True)\n"
        "while os.environ['RANK'] == '1' and not os.path.exists(flag): time.sleep(0.02)\n"
    )
    agents = [stage.agent(script, nnodes="2") for _ in range(2)]
    for agent in agents:
        agent.expect("WORKER")
    early = next(agent for agent in agents if "WORKER 0" in agent.output)
    early.expect("waiting for the other nodes")
    assert early.process.poll() is None
    (stage.where / "go").touch()
    assert [agent.wait() for agent in agents] == [0, 0]


def test_a_spare_that_nobody_needed_exits_with_status_0(stage: Stage) -> None:
    script = f"import os, time\nwhile not os.path.exists({str(stage.where / 'go')!r}): time.sleep(0.02)"
    member = stage.agent(script, nnodes="1")
    member.expect("node 0 of 1")
    spare = stage.agent(script, nnodes="1")
    spare.expect("spare")
    (stage.where / "go").touch()
    assert (member.wait(), spare.wait()) == (0, 0)
    assert "did not need this node" in spare.output


def test_a_worker_can_listen_on_the_master_port(stage: Stage) -> None:
    script = (
        "import os, socket; s = socket.socket(); s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
        "s.listen(); print('LISTENING', flush=True)"
    )
    agent = stage.agent(script, nnodes="1")
    assert agent.wait() == 0
    assert "LISTENING" in agent.output


@pytest.mark.parametrize("count", [2])
def test_standalone_jobs_at_once_have_ports_and_ids_of_their_own(stage: Stage, count: int) -> None:
    script = "import os; print('AT', os.environ['MASTER_PORT'], os.environ['TORCHELASTIC_RUN_ID'], flush=True)"
    jobs = [stage.cli("run", "--standalone", "--", "python3", "-c", script) for _ in range(count)]
    assert [job.wait() for job in jobs] == [0] * count
    assert len({line for job in jobs for line in job.lines if line.startswith("AT")}) == count
    stage.expect_no_orphans()
    assert "serve" not in "".join(job.output for job in jobs)


def test_a_killed_supervisor_is_a_failure_without_orphans(stage: Stage) -> None:
    agent = stage.agent(SLEEP, nnodes="1")
    worker = int(agent.expect(r"WORKER 0 1 (\d+)")[1])
    supervisor = os.getpgid(worker)
    os.kill(supervisor, signal.SIGKILL)
    assert agent.wait() == 1
    assert f"supervisor (pid {supervisor}) died" in agent.output
    stage.expect_no_orphans()


def test_a_closed_run_id_is_status_3_and_says_to_use_another(stage: Stage) -> None:
    server = stage.cli("serve", stage.endpoint)
    server.expect("serving on")

    async def close() -> None:
        with fail_after(15):
            params = RendezvousParameters("p10d", stage.endpoint, "job", is_host=False)
            async with create_handler(params) as handler:
                await handler.set_closed()

    import anyio

    anyio.run(close)
    agent = stage.agent(SLEEP)
    assert agent.wait() == 3
    assert "'job'" in agent.output
    assert "use a fresh run id" in agent.output
    assert "Traceback" not in agent.output


def test_a_foreign_service_on_the_port_is_status_3_and_names_the_endpoint(stage: Stage) -> None:
    script = (
        "import http.server, sys\n"
        f"http.server.HTTPServer(('127.0.0.1', {stage.port}), http.server.BaseHTTPRequestHandler).serve_forever()"
    )
    stage.command("python3", "-c", script)
    eventually("the service is up", lambda: _answers(stage.port))
    agent = stage.agent(SLEEP, conf="read_timeout=2")
    assert agent.wait() == 3
    assert stage.endpoint in agent.output
    assert "Traceback" not in agent.output


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_an_endpoint_that_nobody_hosts_is_status_3(stage: Stage) -> None:
    agent = stage.agent(SLEEP, conf="is_host=false,read_timeout=1")
    assert agent.wait() == 3
    assert stage.endpoint in agent.output
    assert "Traceback" not in agent.output


def test_a_join_that_times_out_is_status_3_with_counts(stage: Stage) -> None:
    agent = stage.agent(SLEEP, nnodes="2", conf="join_timeout=1")
    assert agent.wait() == 3
    assert "1/2 nodes joined" in agent.output
    assert "min_nodes=2" in agent.output
    advice = "the endpoint is a loopback address, which nodes on other hosts cannot reach"  # R49
    assert agent.lines[-1].count(advice) == 1
    assert "Traceback" not in agent.output


def test_a_run_id_that_is_done_is_status_0_and_says_that_nothing_ran(stage: Stage) -> None:
    assert stage.agent("pass", nnodes="1").wait() == 0
    late = stage.agent("print('RAN')", nnodes="1")
    assert late.wait() == 0
    assert "RAN" not in late.output
    assert "the job 'job' is over and did not need this node; a new job needs a new --rdzv-id" in late.output


def test_agents_that_start_together_share_one_store(stage: Stage) -> None:
    agents = [stage.agent("pass", nnodes="4") for _ in range(4)]
    assert [agent.wait(40) for agent in agents] == [0] * 4
    assert sum("started the store at" in agent.output for agent in agents) == 1


def test_settings_that_differ_are_status_3_and_name_both(stage: Stage) -> None:
    first = stage.agent(SLEEP, nnodes="1:2")
    first.expect("WORKER")
    second = stage.agent(SLEEP, nnodes="1:3")
    assert second.wait() == 3
    assert "same settings" in second.output


def test_a_store_that_is_killed_is_status_3_without_orphans(stage: Stage) -> None:
    agent = stage.agent(SLEEP, nnodes="1", conf="read_timeout=2,keep_alive_interval=0.3")
    store = int(agent.expect(r"started the store at .* \(pid (\d+)\)")[1])
    agent.expect("WORKER")
    os.kill(store, signal.SIGKILL)
    assert agent.wait() == 3
    assert stage.endpoint in agent.output
    stage.expect_no_orphans()


async def test_an_agent_in_this_process_returns_its_status() -> None:
    lines: list[str] = []
    params = RendezvousParameters("p10d", "", "job")
    with fail_after(20):
        config = AgentConfig(params=params, argv=("true",), embedded=True, display=Lines(lines.append))
        assert await ElasticAgent(config).run() is ExitStatus.DONE
        config = AgentConfig(params=params, argv=("false",), embedded=True, display=Lines(lines.append))
        assert await ElasticAgent(config).run() is ExitStatus.FAILED
    assert any("exited with status 1, and --max-restarts is 0" in line for line in lines)


@pytest.mark.parametrize("heard", [True, False])
async def test_a_supervisor_that_dies_at_birth_is_named_unless_a_signal_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text(f"import os, signal\n{heard} and os.kill(os.getppid(), signal.SIGINT)\nos._exit(1)\n")
    monkeypatch.setattr("arendezvous.agent.workers._SUPERVISOR", script)
    lines: list[str] = []
    params = RendezvousParameters("p10d", "", "job")
    config = AgentConfig(params=params, argv=("true",), embedded=True, display=Lines(lines.append))
    with fail_after(20):
        status = await ElasticAgent(config).run()
    assert status is (ExitStatus.INTERRUPTED if heard else ExitStatus.FAILED)
    assert any("did not come up" in line for line in lines) != heard
    assert any("SIGINT: stopping" in line for line in lines) == heard
