from __future__ import annotations

import pexpect
import pytest

from arendezvous.handler.keys import Keys
from tests.agent.processes import Command, Stage, eventually
from tests.cli.runs import WORKER, at_terminal, has_nodes, keys_of, on_store, serve


def purge(stage: Stage, *options: str, run_id: str = "job") -> Command:
    return stage.cli("purge", stage.endpoint, "--rdzv-id", run_id, *options)


def done(stage: Stage, run_id: str = "job") -> None:
    """A job that has come and gone."""
    assert stage.agent("pass", nnodes="1:1", run_id=run_id).wait() == 0


def test_a_job_that_is_done_is_removed_and_its_neighbours_stay(stage: Stage) -> None:
    serve(stage)
    for run_id in ("job", "job/", "job1", "jo"):
        done(stage, run_id)
    before = keys_of(stage.endpoint)
    count = sum(key.startswith(Keys("job").prefix) for key, _ in before)
    command = purge(stage)
    assert command.wait() == 0
    assert f"{count} key{'s' * (count != 1)} of run 'job' at {stage.endpoint} removed" in command.output
    assert keys_of(stage.endpoint) == [pair for pair in before if not pair[0].startswith(Keys("job").prefix)]
    again = purge(stage)
    assert again.wait() == 0
    assert again.output.startswith("0 keys removed: there is nothing of run 'job'")
    done(stage)  # the run id is free again


def test_a_run_with_live_nodes_is_refused_and_names_them(stage: Stage) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="1:1", conf="keep_alive_interval=60")
    has_nodes(stage.endpoint, 1, complete=True)
    before = keys_of(stage.endpoint)
    for options in ([], ["--force"]):
        command = purge(stage, *options)
        assert command.wait() == 3
        assert f"_{agent.pid}_0; close it first (`arendezvous close`)" in command.output
        assert len(command.lines) == 1
    assert keys_of(stage.endpoint) == before


def test_a_run_whose_nodes_are_dead_needs_force(stage: Stage) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="1:1")
    has_nodes(stage.endpoint, 1, complete=True)
    agent.send(9)
    agent.wait()
    refused = purge(stage)
    while refused.wait() == 3 and "live node:" in refused.output:  # its lease ends a moment after its death
        refused = purge(stage)
    assert refused.wait() == 3
    assert "--force" in refused.output
    assert purge(stage, "--force").wait() == 0
    assert on_store(stage.endpoint, lambda store: store.num_keys()) == 0


def test_a_damaged_state_is_thrown_away_and_said(stage: Stage) -> None:
    serve(stage)
    on_store(stage.endpoint, lambda store: store.multi_set([Keys("job").state, "x"], [b"rubbish" * 9, b"1"]))
    command = purge(stage)
    assert command.wait() == 0
    assert command.lines == [
        f"the state of run 'job' at {stage.endpoint} was damaged and has been thrown away",
        f"1 key of run 'job' at {stage.endpoint} removed",
    ]
    assert keys_of(stage.endpoint) == [("x", b"1")]


def test_over_a_damaged_state_nodes_that_wait_go_on(stage: Stage) -> None:
    serve(stage)
    stage.agent("print('up', flush=True)", nnodes="2:2")
    has_nodes(stage.endpoint, 1)
    on_store(stage.endpoint, lambda store: store.set(Keys("job").state, b"rubbish" * 9))
    command = purge(stage)
    assert command.wait() == 0
    assert "attached nodes form a new round" in command.output
    assert stage.agent("pass", nnodes="2:2").wait() == 0


def test_a_store_that_nobody_serves_is_status_3_and_not_hosted(stage: Stage) -> None:
    command = purge(stage, "--rdzv-conf", "read_timeout=0.3,is_host=true")
    assert command.wait() == 3
    assert "arendezvous serve" in command.output


@pytest.mark.parametrize("answer", ["n", "y"])
def test_at_a_terminal_it_asks(stage: Stage, answer: str) -> None:
    serve(stage)
    done(stage)
    before = keys_of(stage.endpoint)
    child = at_terminal(stage, "purge", stage.endpoint, "--rdzv-id", "job")
    child.expect(r"run 'job' at \S+ has \d+ keys?; it is done\. Remove them\? \[y/N\]: ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == (0 if answer == "y" else 1)
    assert keys_of(stage.endpoint) == ([] if answer == "y" else before)


def test_the_question_names_members_that_may_still_be_at_work(stage: Stage) -> None:
    serve(stage)
    agent = stage.agent(WORKER, nnodes="1:1")
    has_nodes(stage.endpoint, 1, complete=True)
    assert stage.cli("close", stage.endpoint, "--rdzv-id", "job").wait() == 0
    eventually("its member beats no longer", lambda: not keys_of(stage.endpoint, "/hb/"))
    child = at_terminal(stage, "purge", stage.endpoint, "--rdzv-id", "job")
    child.expect(rf"may still be at work: \S+_{agent.pid}_0\. Remove them\? \[y/N\]: ")
    child.sendline("n")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
