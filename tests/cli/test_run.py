from __future__ import annotations

import sys
from typing import Any

import click
import pytest

from arendezvous.agent import AgentConfig
from arendezvous.cli import main
from arendezvous.cli.run import make_config, parse_nodes, run
from tests.agent.processes import Stage

REST = ("--rdzv-endpoint", "127.0.0.1:29400", "--rdzv-id", "job", "--", "true")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("PET_", "ARENDEZVOUS_EVENT_LOOP")):
            monkeypatch.delenv(name)


def parse(*argv: str) -> AgentConfig:
    settings = {"token_normalize_func": lambda token: token.replace("_", "-")}
    options: dict[str, Any] = run.make_context("run", list(argv), **settings).params
    return make_config(options, options.pop("event_loop"))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The error of a command line that is a mistake: status 2, no traceback."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = parse("--rdzv-id", "job", "--", "true")
    params = config.params
    assert (params.backend, params.run_id, params.min_nodes, params.max_nodes) == ("p10d", "job", 1, 1)
    assert (params.local_world_size, params.node_rank, params.local_addr, params.config) == (1, None, None, {})
    assert (config.max_restarts, config.grace, config.argv) == (0, 30.0, ("true",))
    assert config.embedded


def test_every_option_reaches_the_agent_with_hyphens_or_underscores() -> None:
    for spelling in ("-", "_"):
        words = [
            *("--nnodes", "2:4", "--nproc-per-node=3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.0.0.1:1"),
            *("--rdzv-id", "a_b", "--rdzv-conf", "join_timeout=9,last_call_timeout=2", "--node-rank", "1"),
            *("--local-addr", "10.0.0.2", "--max-restarts", "5", "--monitor-interval", "0.1"),
            *("--shutdown-timeout", "2"),
        ]
        words = [f"--{w[2:].replace('-', spelling)}" if w.startswith("--") else w for w in words]
        config = parse(*words, "--", "true", "--nnodes", "9")
        params = config.params
        assert (params.min_nodes, params.max_nodes, params.local_world_size) == (2, 4, 3)
        assert (params.backend, params.endpoint, params.run_id) == ("c10d", "10.0.0.1:1", "a_b")
        assert params.config == {"join_timeout": "9", "last_call_timeout": "2"}
        assert (params.node_rank, params.local_addr) == (1, "10.0.0.2")
        assert (config.max_restarts, config.grace) == (5, 2.0)
        assert config.argv == ("true", "--nnodes", "9")
        assert not config.embedded


def test_options_of_the_command_are_the_commands_without_the_two_hyphens_too() -> None:
    assert parse("--rdzv-id", "job", "true", "-m", "--nnodes", "7").argv == ("true", "-m", "--nnodes", "7")


def test_variables_of_torchrun_are_read_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PET_NNODES": "2:3",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "10.0.0.1",
        "PET_RDZV_ID": "from-env",
        "PET_RDZV_CONF": "join_timeout=5",
        "PET_NODE_RANK": "2",
        "PET_LOCAL_ADDR": "10.0.0.9",
        "PET_MAX_RESTARTS": "6",
        "PET_MONITOR_INTERVAL": "5",
        "PET_MODULE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    config = parse("--rdzv-id", "mine", "--nproc-per-node", "1", "--", "json.tool")
    params = config.params
    assert (params.min_nodes, params.max_nodes, params.local_world_size, params.run_id) == (2, 3, 1, "mine")
    assert (params.backend, params.endpoint, params.config) == ("c10d", "10.0.0.1", {"join_timeout": "5"})
    assert (params.node_rank, params.local_addr, config.max_restarts) == (2, "10.0.0.9", 6)
    assert config.argv == (sys.executable, "-u", "-m", "json.tool")


@pytest.mark.parametrize(("value", "is_standalone"), [("1", True), ("0", False)])
def test_a_flag_in_the_environment_is_on_or_off(
    monkeypatch: pytest.MonkeyPatch, value: str, is_standalone: bool
) -> None:
    monkeypatch.setenv("PET_STANDALONE", value)
    assert (parse("--rdzv-id", "job", "--", "true").params.run_id != "job") is is_standalone


def test_standalone_takes_a_store_and_an_id_of_its_own() -> None:
    first, second = parse("--standalone", "--", "true"), parse("--standalone", *REST)
    assert first.embedded
    assert second.embedded
    assert first.params.run_id != second.params.run_id
    assert second.params.endpoint == ""


def test_a_file_store_needs_no_endpoint() -> None:
    config = parse("--nnodes", "2", "--rdzv-id", "job", "--rdzv-conf", "store_type=file", "--", "true")
    assert not config.embedded


@pytest.mark.parametrize(("text", "nodes"), [("1", (1, 1)), ("3", (3, 3)), ("1:4", (1, 4)), (" 2 : 2 ", (2, 2))])
def test_nodes_are_a_number_or_a_range(text: str, nodes: tuple[int, int]) -> None:
    assert parse_nodes(None, None, text) == nodes


@pytest.mark.parametrize("text", ["", "a", "1:", ":2", "1:2:3", "-1", "1.5", "1-2", "0", "0:2", "3:1", "١"])
def test_nodes_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_nodes(None, None, text)


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["--nnodes", "3:1", *REST], "'3:1': the minimum is greater than the maximum; did you mean 1:3?"),
        (["--nnodes", "two", *REST], "'two' is neither a number of nodes (4) nor a range MIN:MAX (1:4)"),
        (["--nproc-per-node", "gpu", *REST], "'gpu': this launcher does not count devices"),
        (["--nproc-per-node", "0", *REST], "'0': a positive number of workers"),
        (["--nnode", "2", *REST], "'--nnodes'"),
        (["--rdzv_idd", "x", *REST], "rdzv-id"),
        (["--max-restarts", "-1", *REST], "--max-restarts"),
        (["--max-restarts", "many", *REST], "'many'"),
        (["--monitor-interval", "soon", *REST], "'soon'"),
        (["--event-loop", "curio", *REST], "'curio'"),
        (["--node-rank", "-3", *REST], "--node-rank"),
        (["--", "true"], "--rdzv-id is missing"),
        (["--nnodes", "2", "--rdzv-id", "x", "--", "true"], "--rdzv-endpoint HOST:PORT is missing: 2 nodes"),
        (["--standalone", "--nnodes", "1:2", "--", "true"], "--standalone is a job of one node"),
        (["--standalone", "--rdzv-backend", "static", "--", "true"], "contradicts --rdzv-backend static"),
        (["--standalone"], "There is no command to run. Put it after --"),
        (["--standalone", "--", "no-such-program"], "'no-such-program': no such program on PATH"),
        (["--standalone", "--", "./no-such-program"], "'./no-such-program': no such executable file"),
        (["--standalone", "--", "no_such.py"], "'no_such.py': no such file"),
        (["--standalone", "-m", "--no-python", "--", "x"], "give one of them"),
        (["--standalone", "--rdzv-conf", "a", "--", "true"], "'a' in 'a' must have a value"),
        (["--standalone", "--rdzv-conf", "join_timeot=3", "--", "true"], "did you mean 'join_timeout'"),
        (["--standalone", "--rdzv-conf", "join_timeout=soon", "--", "true"], "'soon'"),
        (["--standalone", "--rdzv-conf", "join_timeout=-1", "--", "true"], "join timeout"),
        (["--rdzv-endpoint", "127.0.0.1:99999", "--rdzv-id", "x", "--", "true"], "'99999'"),
        (["--rdzv-endpoint", "a b:1", "--rdzv-id", "x", "--", "true"], "'a b'"),
        (["--rdzv-backend", "p10", *REST], "Did you mean 'p10d'"),
        (["--rdzv-backend", "static", *REST], "rank"),
        (["--rdzv-conf", "is_host=maybe", *REST], "'maybe'"),
        (["--rdzv-conf", "bootstrap_port=any", *REST], "'bootstrap_port'"),
        (["--rdzv-conf", "store_type=ftp", *REST], "ftp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_status_2_and_names_the_value_and_the_way_out(
    capsys: pytest.CaptureFixture[str], argv: list[str], advice: str
) -> None:
    assert advice in refused(capsys, "run", *argv)


def test_a_python_file_and_a_module_run_under_this_python(stage: Stage) -> None:
    (stage.where / "hello.py").write_text("import sys; print('HELLO', sys.argv[1:], sys.executable, flush=True)")
    for words in (["hello.py", "--x"], ["-m", "hello", "--x"]):
        flags, words = (words[:1], words[1:]) if words[0] == "-m" else ([], words)
        agent = stage.cli("run", "--standalone", *flags, "--", *words)
        assert agent.wait() == 0
        assert f"HELLO ['--x'] {sys.executable}" in agent.output


def test_the_event_loop_is_chosen_by_option_or_variable(stage: Stage) -> None:
    agent = stage.cli("run", "--event-loop", "uvloop", "--standalone", "--", "true")
    assert agent.wait() == 0
    agent = stage.cli("run", "--standalone", "--", "true", ARENDEZVOUS_EVENT_LOOP="curio")
    assert agent.wait() == 2
    assert "'curio'" in agent.output
