"""What the tests of ``status``, ``close`` and ``purge`` share: stores, runs and what is in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import anyio
import pexpect

from arendezvous import TCPStore
from tests.agent.processes import Stage, eventually
from tests.support import SLOW, fail_after

__all__ = ("WORKER", "at_terminal", "has_nodes", "keys_of", "on_store", "serve")

WORKER = "import time; time.sleep(600)"


def serve(stage: Stage) -> str:
    """A store that outlives every agent; its endpoint, which is the stage's."""
    stage.cli("serve", stage.endpoint).expect("serving on")
    return stage.endpoint


def on_store(endpoint: str, what: Callable[[TCPStore], Any]) -> Any:
    """Ask a store."""

    async def run() -> Any:
        with fail_after(15):
            host, _, port = endpoint.rpartition(":")
            async with TCPStore(host.strip("[]"), int(port)) as store:
                return await what(store)

    return anyio.run(run)


def keys_of(endpoint: str, part: str = "") -> list[tuple[str, bytes]]:
    """Everything in a store but heartbeats, whose values change by themselves; or what has ``part`` in its key."""
    pairs: list[tuple[str, bytes]] = on_store(endpoint, lambda store: store.scan(""))
    return [pair for pair in pairs if (part in pair[0] if part else "/hb/" not in pair[0])]


def has_nodes(endpoint: str, count: int, run_id: str = "job", *, complete: bool = False) -> None:
    """Wait until so many nodes are in a run."""
    from arendezvous import RendezvousParameters, inspect

    def enough() -> bool:
        status = anyio.run(inspect, RendezvousParameters("p10d", endpoint, run_id, read_timeout=20))
        return len(status.nodes) == count and (status.complete or not complete)

    eventually(f"{count} nodes in {run_id}", enough, 30)


def at_terminal(stage: Stage, *args: str, **env: str) -> Any:
    """The command at a terminal of 120 columns, with the output collected in ``logfile_read``."""
    return pexpect.spawn(
        sys.executable,
        ["-m", "arendezvous", *args],
        env={**stage.env, "TERM": "xterm", **env},
        cwd=str(stage.where),
        timeout=20 * SLOW,
        dimensions=(40, 120),
        encoding="utf-8",
    )
