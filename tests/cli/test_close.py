from __future__ import annotations

import signal

import pexpect
import pytest

from arendezvous.handler.keys import Keys
from tests.agent.processes import Command, Stage
from tests.cli.runs import WORKER, at_terminal, has_nodes, keys_of, on_store, serve


def close(stage: Stage, *options: str, run_id: str = "job") -> Command:
    return stage.cli("close", stage.endpoint, "--rdzv-id", run_id, *options)


def test_an_agent_that_waits_is_told_and_ends_with_status_3(stage: Stage) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="2:2")
    has_nodes(stage.endpoint, 1)
    command = close(stage)
    assert command.wait() == 0
    assert command.output == f"run 'job' at {stage.endpoint} is closed for ever"
    assert agent.wait() == 3
    agent.expect("was closed for ever")
    late = stage.agent(WORKER, nnodes="2:2")
    assert late.wait() == 3
    again = close(stage)
    assert again.wait() == 0
    assert again.output == f"run 'job' at {stage.endpoint} was closed already"
    stage.expect_no_orphans()


def test_a_job_that_is_done_was_done_already(stage: Stage) -> None:
    serve(stage)
    assert stage.agent("pass", nnodes="1:1").wait() == 0
    command = close(stage)
    assert command.wait() == 0
    assert "was done already" in command.output


def test_a_run_that_nobody_has_joined_is_status_3_and_not_made(stage: Stage) -> None:
    serve(stage)
    command = close(stage, run_id="jbo")
    assert command.wait() == 3
    assert "Nobody has ever joined run 'jbo'" in command.output
    assert "check --rdzv-id" in command.output
    assert on_store(stage.endpoint, lambda store: store.num_keys()) == 0


def test_a_store_that_nobody_serves_is_status_3_and_not_hosted(stage: Stage) -> None:
    command = close(stage, "--rdzv-conf", "read_timeout=0.3,is_host=true")
    assert command.wait() == 3
    assert "arendezvous serve" in command.output
    assert len(command.lines) == 1


def test_a_damaged_state_is_status_3_and_left_alone(stage: Stage) -> None:
    serve(stage)
    on_store(stage.endpoint, lambda store: store.set(Keys("job").state, b"rubbish" * 9))
    command = close(stage)
    assert command.wait() == 3
    assert "arendezvous purge" in command.output
    assert keys_of(stage.endpoint) == [(Keys("job").state, b"rubbish" * 9)]


@pytest.mark.parametrize("answer", ["n", "", "y"])
def test_at_a_terminal_it_shows_who_is_in_it_and_asks(stage: Stage, answer: str) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="2:2")
    has_nodes(stage.endpoint, 1)
    before = keys_of(stage.endpoint)
    child = at_terminal(stage, "close", stage.endpoint, "--rdzv-id", "job")
    child.expect(r"run 'job': 1/2 nodes joined round 0")
    child.expect(rf"1 live node: \S+_{agent.pid}_0")
    child.expect(r"for ever\? \[y/N\]: ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    if answer == "y":
        assert child.exitstatus == 0
        assert agent.wait() == 3
    else:
        assert child.exitstatus == 1
        assert "nothing was changed" in child.before
        assert keys_of(stage.endpoint) == before


def test_ctrl_c_at_the_question_changes_nothing(stage: Stage) -> None:
    serve(stage)
    stage.agent(WORKER, nnodes="2:2")
    has_nodes(stage.endpoint, 1)
    before = keys_of(stage.endpoint)
    child = at_terminal(stage, "close", stage.endpoint, "--rdzv-id", "job")
    child.expect(r"\[y/N\]: ")
    # CPython notices a Ctrl-C between prompt and read only when that read ends; people press it again.
    for _ in range(60):
        child.sendintr()
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=1) == 0:
            break
    child.close()
    assert child.exitstatus == 130
    assert keys_of(stage.endpoint) == before


def test_yes_at_a_terminal_asks_nothing(stage: Stage) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="2:2")
    has_nodes(stage.endpoint, 1)
    child = at_terminal(stage, "close", stage.endpoint, "--rdzv-id", "job", "--yes")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "[y/N]" not in child.before
    assert agent.wait() == 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_for_a_store(stage: Stage, number: int, status: int) -> None:
    import socket

    with socket.create_server(("127.0.0.1", stage.port)) as listener:
        command = close(stage, "--rdzv-conf", "read_timeout=100")
        listener.accept()[0].close()  # it is there, and the signals are received
        command.send(number)
        assert command.wait() == status
