"""A store server in a process of its own that tells how it fares: ``python -m tests.store.serving LOOP PORT [NOFILE]``.

It prints its port, and then for each line of its standard input how it fares; when the input ends it closes and prints
how long that took.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import anyio

from arendezvous.store.server import TCPStoreServer


def status(server: TCPStoreServer) -> dict[str, float]:
    """How much processor time the process has used, when that was, and whom it serves."""
    return {
        "cpu": time.process_time(),
        "clock": time.perf_counter(),
        "clients": server.clients,
        "connections": server.service.connections,
        "waiting": server.service.table.waiting,
    }


async def serve(port: int) -> None:
    """Serve until the standard input ends."""
    server = TCPStoreServer("127.0.0.1", port)
    async with server:
        print(json.dumps({"port": server.port}), flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps(status(server)), flush=True)
        began = time.perf_counter()
        await server.aclose()
        closed = time.perf_counter() - began
    whole = time.perf_counter() - began
    print(json.dumps({"closed": closed, "whole": whole, "connections": server.service.connections}), flush=True)


def main() -> None:
    """Run the server."""
    loop, port = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
    options = {"use_uvloop": loop == "uvloop"} if loop != "trio" else {}
    anyio.run(serve, port, backend="trio" if loop == "trio" else "asyncio", backend_options=options)


if __name__ == "__main__":
    main()
