"""The store that an agent starts for everybody: a process of its own, which outlives the agent (design.md 3, D34)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING

import anyio

from ..endpoint import format_endpoint, parse_rendezvous_endpoint
from ..errors import RendezvousConnectionError
from ..store.hosting import is_this_machine, loopback_only
from ..store.server import TCPStoreServer

if TYPE_CHECKING:
    from ..params import RendezvousParameters

__all__ = ("DYNAMIC_BACKENDS", "READY_PREFIX", "StoreProcess", "embedded_store", "host_store", "needs_endpoint")

DEFAULT_PORT = 29400
#: What ``arendezvous serve`` prints when it is ready, before the endpoint.
READY_PREFIX = "arendezvous: serving on "
#: The backends whose store an agent may start.
DYNAMIC_BACKENDS = frozenset({"p10d", "c10d", "core"})
#: Seconds that a store process has to come up.
_START_LIMIT = 30.0
#: Seconds in which somebody who serves this machine's own port accepts a connection.
_PROBE_LIMIT = 3.0
#: How often, ten times a second, the winner of a race for the port is looked for.
_RACE_LOOKS = 10
#: Seconds without any client after which the store process ends.
IDLE = 30


class StoreProcess:
    """``arendezvous serve`` in a session of its own.

    Args:
        pid: Its process id.
        endpoint: What it serves.
    """

    def __init__(self, pid: int, endpoint: str) -> None:
        self.pid = pid
        self.endpoint = endpoint


def needs_endpoint(params: RendezvousParameters) -> bool:
    """Whether the nodes of these parameters meet at a store that somebody serves over TCP."""
    return params.backend in DYNAMIC_BACKENDS and str(params.get("store_type", "tcp")).strip().lower() == "tcp"


async def host_store(params: RendezvousParameters, serve: Sequence[str]) -> StoreProcess | None:
    """Start the store at the endpoint of ``params`` if it is to be here and nobody serves it yet.

    Args:
        params: Backend, endpoint and the options ``store_type``, ``is_host`` and ``bind``.
        serve: The command that serves; the endpoint and options are added to it.

    Returns:
        StoreProcess: the process that was started, or None: somebody else serves, or should.

    Raises:
        RendezvousConnectionError: the store belongs here and cannot be started; the message says why.

    Cancellation:
        Safe: a store that is not ready yet is ended.
    """
    if not needs_endpoint(params):
        return None
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    asked = params.get_as_bool("is_host", None)
    if asked is False or (asked is None and not await is_this_machine(host)):
        return None
    if port and await _is_served(host, port):
        return None
    bind = params.get("bind", None)
    if bind is None and params.max_nodes > 1 and await loopback_only(host):
        raise RendezvousConnectionError(
            f"The endpoint host {host!r} resolves to a loopback address only, so no other host could reach a store "
            "there. Give --rdzv-conf bind=0.0.0.0, or a literal address of this host as the endpoint."
        )
    command = [*serve, format_endpoint(host, port), "--until-idle", str(IDLE), "--detached"]
    if bind is not None:
        command += ["--bind", str(bind)]
    try:
        return await _start(command)
    except RendezvousConnectionError:
        # A sibling on this machine may have won the race for the port, and then the store to use is there. It may also
        # have bound it a moment ago and not listen yet.
        for _ in range(_RACE_LOOKS if port else 0):
            if await _is_served(host, port):
                return None
            await anyio.sleep(0.1)
        raise


@asynccontextmanager
async def embedded_store() -> AsyncIterator[str]:
    """A store in this process, for a run that has no other node; yields its endpoint."""
    async with TCPStoreServer("127.0.0.1", 0) as server:
        yield server.endpoint


async def _is_served(host: str, port: int) -> bool:
    """Whether anybody accepts connections there; what they speak is for the client to find out."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    with anyio.move_on_after(_PROBE_LIMIT), suppress(OSError):
        stream = await anyio.connect_tcp(reach, port)
        await stream.aclose()
        return True
    return False


async def _start(command: Sequence[str]) -> StoreProcess:
    """Start the process and wait until it is ready.

    Plain ``subprocess``: an event loop's process object kills its process when the loop ends, and this one is to stay.
    """
    try:
        process = _spawn(command)
    except OSError as exc:
        raise RendezvousConnectionError(f"The store process {command[0]} cannot be started: {exc.strerror}.") from exc
    ready = False
    try:
        with anyio.move_on_after(_START_LIMIT):
            line = await _read(process.stdout, b"\n")
            if line.startswith(READY_PREFIX) and line.endswith("\n"):
                ready = True
                return StoreProcess(process.pid, line.removeprefix(READY_PREFIX).strip())
            problem = " ".join((await _read(process.stderr, None)).split())
            raise RendezvousConnectionError(
                f"The store cannot be served here: {problem or f'{command[0]} ended without a word'}"
            )
        raise RendezvousConnectionError(f"The store process was not ready within {_START_LIMIT:g} s.")
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if ready:
            # It is nobody's to wait for; without this Popen complains that it still runs.
            process.returncode = 0
        else:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return process


async def _read(pipe: IO[bytes] | None, until: bytes | None) -> str:
    """Read a pipe up to the end of a line, or to its end."""
    assert pipe is not None  # asked for
    fd = pipe.fileno()
    found = b""
    while until is None or until not in found:
        await anyio.wait_readable(fd)
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            continue
        if not data:
            break
        found += data
    return found.decode(errors="replace")
