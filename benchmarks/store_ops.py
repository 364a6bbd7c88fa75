"""Operations per second, latency and wake-ups of the network store; JSON lines on standard output.

The server has a process of its own, the clients share one event loop in this one.

    python benchmarks/store_ops.py --event-loop uvloop --clients 1 8 64 --seconds 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio

from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer

LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}
VALUE = b"x" * 64


async def serve() -> None:
    """Serve until standard input ends; print the port first."""
    async with TCPStoreServer() as server:
        print(server.port, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def emit(loop: str, what: str, clients: int, **numbers: float) -> None:
    """Print one result."""
    rounded = {name: round(number, 2) for name, number in numbers.items()}
    print(json.dumps({"bench": "store_ops", "loop": loop, "what": what, "clients": clients, **rounded}), flush=True)


async def rates(stores: list[TCPStore], what: str, seconds: float) -> tuple[float, list[float]]:
    """Have every client do one kind of call again and again; return calls per second and latencies in microseconds."""
    swapped = [b""] * len(stores)

    async def swap(store: TCPStore, number: int) -> None:
        done, value = await store.compare_and_swap(f"cas{number}", swapped[number], b"%d" % (len(latencies),))
        assert done
        swapped[number] = value

    calls: dict[str, Callable[[TCPStore, int], Awaitable[object]]] = {
        "set": lambda store, number: store.set(f"k{number}", VALUE),
        "get": lambda store, number: store.get("there"),
        "cas": swap,
        "add": lambda store, number: store.add(f"n{number}", 1),
    }
    call = calls[what]
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def client(store: TCPStore, number: int) -> None:
        await store.delete_key(f"cas{number}")
        while (began := time.perf_counter()) < end:
            await call(store, number)
            latencies.append((time.perf_counter() - began) * 1e6)

    await stores[0].set("there", VALUE)
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number, store in enumerate(stores):
            tasks.start_soon(client, store, number)
    return len(latencies) / (time.perf_counter() - began), latencies


async def wake_ups(stores: list[TCPStore], rounds: int) -> tuple[list[float], list[float]]:
    """Set a key that all clients wait for; return the times of the first and the last of them in milliseconds."""
    first: list[float] = []
    last: list[float] = []
    for turn in range(rounds):
        woken: list[float] = []

        async def waiter(store: TCPStore, key: str, woken: list[float] = woken) -> None:
            await store.watch(key, None)
            woken.append(time.perf_counter())

        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(waiter, store, f"wake{len(stores)}.{turn}")
            await anyio.sleep(0.05)
            began = time.perf_counter()
            await stores[0].set(f"wake{len(stores)}.{turn}", VALUE)
        first.append((min(woken) - began) * 1e3)
        last.append((max(woken) - began) * 1e3)
    return first, last


async def measure(loop: str, port: int, crowds: list[int], seconds: float, repeat: int) -> None:
    """Run everything for each number of clients."""
    for crowd in crowds:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(TCPStore("127.0.0.1", port)) for _ in range(crowd)]
            for what in ("set", "get", "cas", "add"):
                runs = [await rates(stores, what, seconds) for _ in range(repeat)]
                per_second = [rate for rate, _ in runs]
                latencies = [latency for _, run in runs for latency in run]
                emit(
                    loop,
                    what,
                    crowd,
                    ops_per_s=statistics.median(per_second),
                    ops_per_s_min=min(per_second),
                    ops_per_s_max=max(per_second),
                    p50_us=percentile(latencies, 0.5),
                    p99_us=percentile(latencies, 0.99),
                )
            first, last = await wake_ups(stores, 10)
            emit(loop, "wake", crowd, first_ms=statistics.median(first), last_ms=statistics.median(last))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event-loop", choices=LOOPS, default="asyncio")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        anyio.run(serve, **LOOPS[options.event_loop])
        return
    command = [sys.executable, __file__, "--serve", "--event-loop", options.event_loop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())
        try:
            anyio.run(
                measure,
                options.event_loop,
                port,
                options.clients,
                options.seconds,
                options.repeat,
                **LOOPS[options.event_loop],
            )
        finally:
            server.stdin.close()


if __name__ == "__main__":
    main()
