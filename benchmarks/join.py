"""How long N agents take to form a round over TCP, and what they ask of the store for it.

    python benchmarks/join.py -n 2 16 64 256
    python benchmarks/join.py -n 64 --processes 8 --event-loop trio --repeat 5

The store server runs in a process of its own. The clock runs from the first ``next_rendezvous()`` after all agents have
connected until the last one has returned. One JSON line per measurement: seconds, messages, bytes and compare-and-swap
attempts per agent (both directions, counted on the agents' streams).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import ByteStream

import arendezvous
from arendezvous import DynamicRendezvousHandler, RendezvousParameters, TCPStore, TCPStoreServer


class CountingStream(ByteStream):
    """Counts what passes through a stream."""

    def __init__(self, stream: ByteStream, count: dict[str, int]) -> None:
        self._stream, self._count = stream, count

    async def send(self, item: bytes) -> None:
        self._count["sends"] += 1
        self._count["bytes_sent"] += len(item)
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._count["receives"] += 1
        self._count["bytes_received"] += len(data)
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Any:
        return self._stream.extra_attributes


async def serve() -> None:
    """Serve until standard input ends; the port is the first line of output."""
    async with TCPStoreServer("127.0.0.1", 0) as server:
        print(server.port, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


async def agents(port: int, count: int, total: int, run_id: str) -> None:
    """Connect ``count`` agents, wait for the word, join, report as one JSON line."""
    counts: dict[str, int] = dict.fromkeys(("sends", "receives", "bytes_sent", "bytes_received"), 0)

    async def dial() -> ByteStream:
        return CountingStream(await anyio.connect_tcp("127.0.0.1", port), counts)

    params = RendezvousParameters("p10d", f"127.0.0.1:{port}", run_id, total, total)
    async with AsyncExitStack() as stack:
        handlers = []
        for _ in range(count):
            store = await stack.enter_async_context(TCPStore("127.0.0.1", port, connect=dial))
            handler = DynamicRendezvousHandler.from_store(store, params)
            handlers.append(await stack.enter_async_context(handler))
        print("connected", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        before, spent = dict(counts), time.process_time()
        begin = time.monotonic()
        infos: list[arendezvous.RendezvousInfo] = []

        async def join(handler: DynamicRendezvousHandler) -> None:
            infos.append(await handler.next_rendezvous())

        async with anyio.create_task_group() as tg:
            for handler in handlers:
                tg.start_soon(join, handler)
        report = {
            "begin": begin,
            "end": time.monotonic(),
            "cpu": time.process_time() - spent,
            "ranks": sorted(info.rank for info in infos),
            "sizes": sorted({info.world_size for info in infos}),
            "swaps": sum(h.counters.swaps for h in handlers),
            "lost_swaps": sum(h.counters.lost_swaps for h in handlers),
            **{key: counts[key] - before[key] for key in counts},
        }
        print(json.dumps(report), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


def spawn(*words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise SystemExit(f"a process of the benchmark ended with status {process.wait()}")
    return text.strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def measure(total: int, processes: int, loop: str, port: int, run_id: str) -> dict[str, Any]:
    """One formation of ``total`` agents."""
    processes = min(processes, total)
    shares = [total // processes + (k < total % processes) for k in range(processes)]
    workers = [spawn("--agents", f"{port},{share},{total},{run_id}", "--event-loop", loop) for share in shares]
    try:
        for worker in workers:
            assert line(worker) == "connected"
        for worker in workers:
            tell(worker, "go\n")
        reports = [json.loads(line(worker)) for worker in workers]
    finally:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in workers:
            worker.wait(60)
    ranks = sorted(rank for report in reports for rank in report["ranks"])
    if ranks != list(range(total)) or any(report["sizes"] != [total] for report in reports):
        raise SystemExit(f"the agents did not agree: ranks {ranks}")

    def sums(key: str) -> float:
        return sum(report[key] for report in reports)

    return {
        "benchmark": "join",
        "n": total,
        "processes": processes,
        "event_loop": loop,
        "seconds": round(max(r["end"] for r in reports) - min(r["begin"] for r in reports), 4),
        "agent_cpu_seconds": round(sums("cpu"), 3),
        "messages_per_agent": round((sums("sends") + sums("receives")) / total, 1),
        "bytes_per_agent": round((sums("bytes_sent") + sums("bytes_received")) / total),
        "swaps_per_agent": round(sums("swaps") / total, 3),
        "lost_swaps": int(sums("lost_swaps")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, nargs="+", default=[2, 16, 64, 256], help="numbers of agents")
    parser.add_argument("--processes", type=int, default=2, help="processes that the agents are spread over (2)")
    parser.add_argument("--repeat", type=int, default=3, help="measurements per number (3)")
    parser.add_argument("--event-loop", default="asyncio", choices=["asyncio", "uvloop", "trio"])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--agents", help=argparse.SUPPRESS)
    args = parser.parse_args()
    backend = "trio" if args.event_loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if args.event_loop == "uvloop" else {}
    if args.serve:
        anyio.run(serve, backend=backend, backend_options=options)
        return
    if args.agents:
        port, count, total, run_id = args.agents.split(",")
        anyio.run(agents, int(port), int(count), int(total), run_id, backend=backend, backend_options=options)
        return
    server = spawn("--serve", "--event-loop", args.event_loop)
    try:
        port = int(line(server))
        for total in args.n:
            results = []
            for k in range(args.repeat):
                print(f"joining {total} agents, {k + 1} of {args.repeat}", file=sys.stderr, flush=True)
                result = measure(total, args.processes, args.event_loop, port, f"join-{total}-{k}")
                results.append(result["seconds"])
                print(json.dumps(result), flush=True)
            median = statistics.median(results)
            print(json.dumps({"benchmark": "join", "n": total, "median_seconds": median}), flush=True)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)


if __name__ == "__main__":
    main()
