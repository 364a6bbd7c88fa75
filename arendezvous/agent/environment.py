"""What a worker is started with: its command line and its environment (api.md A.3). Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RendezvousError

if TYPE_CHECKING:
    from ..handler.info import RendezvousInfo
    from ..handler.rounds import Round

__all__ = ("WorkerSpec", "worker_argv", "worker_specs")

#: There is one role; torch's launchers call it so when they are not told otherwise.
_ROLE = "default"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of this node.

    Attributes:
        local_rank: Its rank on this node.
        rank: Its rank in the world.
        argv: Its command line.
        env: Its whole environment.
    """

    local_rank: int
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


def worker_argv(command: Sequence[str], *, module: bool = False, no_python: bool = False) -> tuple[str, ...]:
    """The command line of a worker.

    Args:
        command: What the user gave: a program, a ``.py`` file or (``module``) a module, and its arguments.
        module: The first word is a module for ``python -m``.
        no_python: A first word ending in ``.py`` is a program like any other.

    Raises:
        ValueError: the command is empty, or both flags are given.
    """
    if not command or not command[0]:
        raise ValueError("There is no command to run.")
    if module and no_python:
        raise ValueError("-m runs a Python module and --no-python runs no Python: give one of them.")
    if module:
        return (sys.executable, "-u", "-m", *command)
    if command[0].endswith(".py") and not no_python:
        return (sys.executable, "-u", *command)
    return tuple(command)


def worker_specs(
    world: RendezvousInfo | Round,
    argv: Sequence[str],
    base: Mapping[str, str],
    *,
    run_id: str,
    max_restarts: int,
) -> tuple[WorkerSpec, ...]:
    """The workers that this node runs in a round.

    Ranks are dense over all workers, in the order of the nodes: a node's first worker follows the last one of the node
    before, however many workers each of them runs.

    Args:
        world: The round, with a bootstrap address.
        argv: Their command line.
        base: The environment that they add to.
        run_id: The run.
        max_restarts: As the agent was told.

    Raises:
        RendezvousError: the round has no bootstrap address.
    """
    bootstrap = world.bootstrap_store_info
    if bootstrap is None:
        raise RendezvousError(f"Round {world.round} of {run_id!r} has no bootstrap address; use another backend.")
    sizes = [node.local_world_size for node in world.participants]
    mine, first, total = sizes[world.rank], sum(sizes[: world.rank]), sum(sizes)
    common = {
        **base,
        "MASTER_ADDR": bootstrap.master_addr,
        "MASTER_PORT": str(bootstrap.port),
        "WORLD_SIZE": str(total),
        "LOCAL_WORLD_SIZE": str(mine),
        "GROUP_RANK": str(world.rank),
        "GROUP_WORLD_SIZE": str(world.world_size),
        "ROLE_WORLD_SIZE": str(total),
        "ROLE_NAME": _ROLE,
        "TORCHELASTIC_RUN_ID": run_id,
        # Failures of the whole run, not of this node: every node tells its workers the same number (R10).
        "TORCHELASTIC_RESTART_COUNT": str(world.failures),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        # Rank 0's worker listens at the bootstrap address itself.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return tuple(
        WorkerSpec(
            local_rank,
            first + local_rank,
            tuple(argv),
            {
                **common,
                "RANK": str(first + local_rank),
                "LOCAL_RANK": str(local_rank),
                "ROLE_RANK": str(first + local_rank),
            },
        )
        for local_rank in range(mine)
    )
