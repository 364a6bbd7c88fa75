from __future__ import annotations

import sys

import pytest

from arendezvous import RendezvousError
from arendezvous.agent.environment import worker_argv, worker_specs
from arendezvous.handler.info import RendezvousInfo, RendezvousStoreInfo
from arendezvous.node import NodeDesc
from arendezvous.store.memory import MemoryStore


def world(rank: int, *sizes: int, failures: int = 0, bootstrap: bool = True) -> RendezvousInfo:
    return RendezvousInfo(
        store=MemoryStore(),
        rank=rank,
        world_size=len(sizes),
        bootstrap_store_info=RendezvousStoreInfo("10.0.0.1", 1234) if bootstrap else None,
        participants=tuple(NodeDesc(f"10.0.0.{k}", 1, 0, local_world_size=size) for k, size in enumerate(sizes, 1)),
        round=4,
        failures=failures,
    )


def specs(info: RendezvousInfo) -> list[dict[str, str]]:
    made = worker_specs(info, ["prog", "x"], {"HOME": "/root", "RANK": "99"}, run_id="job", max_restarts=3)
    assert all(spec.argv == ("prog", "x") for spec in made)
    assert [spec.rank for spec in made] == [int(spec.env["RANK"]) for spec in made]
    return [dict(spec.env) for spec in made]


def test_a_worker_gets_the_whole_environment_of_torchrun() -> None:
    assert specs(world(1, 1, 1, failures=2)) == [
        {
            "HOME": "/root",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "1234",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": "1",
            "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
    ]


def test_ranks_are_dense_over_nodes_with_unequal_numbers_of_workers() -> None:
    ranks = [[env["RANK"] for env in specs(world(node, 2, 1, 3))] for node in range(3)]
    assert ranks == [["0", "1"], ["2"], ["3", "4", "5"]]
    assert [env["LOCAL_RANK"] for env in specs(world(2, 2, 1, 3))] == ["0", "1", "2"]
    assert {env["WORLD_SIZE"] for env in specs(world(1, 2, 1, 3))} == {"6"}
    assert {env["LOCAL_WORLD_SIZE"] for env in specs(world(2, 2, 1, 3))} == {"3"}


def test_a_round_without_a_bootstrap_address_is_refused() -> None:
    with pytest.raises(RendezvousError, match=r"Round 4 of 'job' has no bootstrap address"):
        specs(world(0, 1, bootstrap=False))


@pytest.mark.parametrize(
    ("command", "flags", "argv"),
    [
        (["train.py", "--lr", "1"], {}, [sys.executable, "-u", "train.py", "--lr", "1"]),
        (["./train.py"], {"no_python": True}, ["./train.py"]),
        (["pkg.train", "a"], {"module": True}, [sys.executable, "-u", "-m", "pkg.train", "a"]),
        (["bash", "train.py"], {}, ["bash", "train.py"]),
    ],
)
def test_the_command_is_run_as_given_except_for_python_files(
    command: list[str], flags: dict[str, bool], argv: list[str]
) -> None:
    assert worker_argv(command, **flags) == tuple(argv)


@pytest.mark.parametrize(("command", "flags"), [([], {}), ([""], {}), (["x"], {"module": True, "no_python": True})])
def test_a_command_that_cannot_be_meant_is_refused(command: list[str], flags: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=r"command to run|one of them"):
        worker_argv(command, **flags)
