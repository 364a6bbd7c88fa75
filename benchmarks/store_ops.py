"""Operations per second, latency, CPU time and wake-ups of the network store; JSON lines on standard output.

    python benchmarks/store_ops.py
    python benchmarks/store_ops.py --event-loop asyncio uvloop trio --clients 1 8 64 --seconds 1
    python benchmarks/store_ops.py --what echo set --clients 64 --processes 4 --repeat 5

The server has a process of its own and the clients are spread over several, so that the server's capacity shows and
not theirs. ``set``, ``get``, ``cas`` and ``add`` are calls of which each client makes one at a time; ``echo`` is no
call but the floor: the same bytes to and fro over bare anyio streams. Per kind and number of clients a line has the
calls per second (median, least and most of the repetitions), the latency, and the CPU time per call of the server's
process and of the clients'. ``wake`` is the time from a ``set`` until the first and the last of all clients that
watched the key have it. On a shared machine compare lines of one run only; the CPU times move least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from arendezvous.store.client import TCPStore
from arendezvous.store.server import TCPStoreServer

LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}
KINDS = ("echo", "set", "get", "cas", "add", "wake")
VALUE = b"x" * 64
#: As long as the frame of a ``set`` of such a value.
ECHO = b"x" * 80


async def serve() -> None:
    """Serve the store and the echo until standard input ends; each line that comes asks for the CPU time used."""

    async def echo(stream: ByteStream) -> None:
        async with stream:
            try:
                while True:
                    await stream.send(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with TCPStoreServer() as server, listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        print(json.dumps({"port": server.port, "echo": listener.extra(SocketAttribute.local_port)}), flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            print(json.dumps({"cpu": time.process_time()}), flush=True)
        tasks.cancel_scope.cancel()


class Crowd:
    """The clients of one process.

    Args:
        port: Where the store is.
        echo: Where the echo is.
    """

    def __init__(self, port: int, echo: int) -> None:
        self._port = port
        self._echo = echo
        self._stores: list[TCPStore] = []
        self._streams: list[ByteStream] = []
        self._first = 0
        self._over = anyio.Event()
        self._gone = anyio.Event()
        self._gone.set()

    async def obey(self) -> None:
        """Do what the lines on standard input say; one line of answer each."""
        async with anyio.create_task_group() as self._tasks:
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                command = json.loads(line)
                do: Callable[..., Awaitable[object]] = getattr(self, "do_" + command.pop("do"))
                print(json.dumps(await do(**command)), flush=True)
            self._over.set()

    async def do_open(self, clients: int, first: int) -> None:
        """Connect ``clients`` clients, the numbers from ``first``, instead of those there are."""
        self._over.set()
        await self._gone.wait()
        self._over, self._gone = anyio.Event(), anyio.Event()
        self._first = first
        self._stores.clear()
        self._streams.clear()
        await self._tasks.start(self._generation, clients)

    async def _generation(self, clients: int, *, task_status: TaskStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(clients):
                # A task each, as clients have: within one they would nest, and every call would pay for the depth.
                await tasks.start(self._client)
            task_status.started()
        self._gone.set()

    async def _client(self, *, task_status: TaskStatus[None]) -> None:
        async with (
            TCPStore("127.0.0.1", self._port) as store,
            await anyio.connect_tcp("127.0.0.1", self._echo) as stream,
        ):
            self._stores.append(store)
            self._streams.append(stream)
            task_status.started()
            await self._over.wait()

    async def do_run(self, what: str, seconds: float) -> dict[str, Any]:
        """Have every client do one kind of call again and again."""
        stores, streams, first = self._stores, self._streams, self._first
        swapped = [b""] * len(stores)
        latencies: list[float] = []

        async def swap(number: int) -> None:
            new = b"%d" % len(latencies)
            done, _ = await stores[number].compare_and_swap(f"cas{first + number}", swapped[number], new)
            assert done
            swapped[number] = new

        async def echo(number: int) -> None:
            await streams[number].send(ECHO)
            await streams[number].receive()

        calls: dict[str, Callable[[int], Awaitable[object]]] = {
            "echo": echo,
            "set": lambda number: stores[number].set(f"k{first + number}", VALUE),
            "get": lambda number: stores[number].get(f"k{first + number}"),
            "cas": swap,
            "add": lambda number: stores[number].add(f"n{first + number}", 1),
        }
        call = calls[what]

        async def client(number: int) -> None:
            while (started := time.perf_counter()) < end:
                await call(number)
                latencies.append((time.perf_counter() - started) * 1e6)

        for number, store in enumerate(stores):
            await store.delete_key(f"cas{first + number}")
            await store.set(f"k{first + number}", VALUE)
        cpu = time.process_time()
        began = time.perf_counter()
        end = began + seconds
        async with anyio.create_task_group() as tasks:
            for number in range(len(stores)):
                tasks.start_soon(client, number)
        return {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu,
            "latencies": [round(latency, 1) for latency in latencies],
        }

    async def do_wake(self, key: str, sets: bool) -> dict[str, Any]:
        """Have every client watch ``key``; one process sets it once all of them are sure to wait."""
        woken: list[float] = []
        began = 0.0

        async def watch(store: TCPStore) -> None:
            await store.watch(key, None)
            woken.append(time.perf_counter())

        async with anyio.create_task_group() as tasks:
            for store in self._stores:
                tasks.start_soon(watch, store)
            if sets:
                await anyio.sleep(0.1)
                began = time.perf_counter()
                await self._stores[0].set(key, VALUE)
        return {"began": began, "woken": woken}


class Child:
    """Another process of this program, which answers lines by lines.

    Args:
        stack: Ends the process when it is left.
        arguments: What the process is to be.
    """

    def __init__(self, stack: ExitStack, *arguments: str) -> None:
        command = [sys.executable, __file__, *arguments]
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        stack.callback(self._in.close)

    def tell(self, **command: object) -> None:
        """Say something."""
        self._in.write(json.dumps(command) + "\n")
        self._in.flush()

    def hear(self) -> Any:
        """Return what it says next."""
        line = self._out.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended with status {self._process.wait()}")
        return json.loads(line)


def ask_all(children: list[Child], **command: object) -> list[Any]:
    """Have all processes do the same at the same time; return their answers."""
    for child in children:
        child.tell(**command)
    return [child.hear() for child in children]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of the sorted ``values`` lie."""
    return values[min(len(values) - 1, int(len(values) * share))]


def emit(loop: str, what: str, clients: int, processes: int, **numbers: float) -> None:
    """Print one result."""
    line: dict[str, object] = {
        "bench": "store_ops",
        "loop": loop,
        "what": what,
        "clients": clients,
        "processes": processes,
    }
    print(json.dumps(line | {name: round(number, 2) for name, number in numbers.items()}), flush=True)


def measure_calls(server: Child, children: list[Child], what: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one kind of call."""
    rates: list[float] = []
    server_cpu: list[float] = []
    client_cpu: list[float] = []
    latencies: list[float] = []
    for _ in range(options.repeat):
        (before,) = ask_all([server])
        results = ask_all(children, do="run", what=what, seconds=options.seconds)
        (after,) = ask_all([server])
        done = sum(len(result["latencies"]) for result in results)
        rates.append(done / max(result["seconds"] for result in results))
        server_cpu.append((after["cpu"] - before["cpu"]) / done * 1e6)
        client_cpu.append(sum(result["cpu"] for result in results) / done * 1e6)
        for result in results:
            latencies += result["latencies"]
    latencies.sort()
    return {
        "ops_per_s": statistics.median(rates),
        "ops_per_s_min": min(rates),
        "ops_per_s_max": max(rates),
        "p50_us": percentile(latencies, 0.5),
        "p99_us": percentile(latencies, 0.99),
        "server_cpu_us": statistics.median(server_cpu),
        "client_cpu_us": statistics.median(client_cpu),
    }


def measure_wakes(children: list[Child], key: str) -> dict[str, float]:
    """Return the times from a set to the first and the last of those who watch."""
    first: list[float] = []
    last: list[float] = []
    for turn in range(10):
        for child in children:
            child.tell(do="wake", key=f"{key}.{turn}", sets=child is children[0])
        results = [child.hear() for child in children]
        # One clock for all processes of a machine.
        times = [moment - results[0]["began"] for result in results for moment in result["woken"]]
        first.append(min(times) * 1e3)
        last.append(max(times) * 1e3)
    return {"first_ms": statistics.median(first), "last_ms": statistics.median(last)}


def measure(loop: str, options: argparse.Namespace) -> None:
    """Run everything on one event loop."""
    with ExitStack() as stack:
        server = Child(stack, "--serve", "--event-loop", loop)
        ports = server.hear()
        places = ["--drive", str(ports["port"]), str(ports["echo"]), "--event-loop", loop]
        pool = [Child(stack, *places) for _ in range(min(options.processes, max(options.clients)))]
        for crowd in options.clients:
            children = pool[:crowd]
            for number, child in enumerate(pool):
                share = crowd // len(children) + (number < crowd % len(children)) if number < len(children) else 0
                child.tell(do="open", clients=share, first=number * crowd)
                child.hear()
            for what in options.what:
                if what == "wake":
                    numbers = measure_wakes(children, f"wake{crowd}")
                else:
                    numbers = measure_calls(server, children, what, options)
                emit(loop, what, crowd, len(children), **numbers)


def positive(text: str) -> int:
    """Read a number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def duration(text: str) -> float:
    """Read a number of seconds."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text}")
    return seconds


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event-loop", choices=LOOPS, nargs="+", default=["asyncio"], help="which one (asyncio)")
    parser.add_argument("--clients", type=positive, nargs="+", default=[1, 8, 64], help="numbers of clients (1 8 64)")
    parser.add_argument("--processes", type=positive, default=2, help="that the clients are spread over (2)")
    parser.add_argument("--what", choices=KINDS, nargs="+", default=list(KINDS), help="what to measure (everything)")
    parser.add_argument("--seconds", type=duration, default=1.0, help="for each measurement (1)")
    parser.add_argument("--repeat", type=positive, default=3, help="measurements of each kind of call (3)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--drive", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    loop = LOOPS[options.event_loop[0]]
    if options.serve:
        anyio.run(serve, **loop)
    elif options.drive is not None:
        anyio.run(Crowd(*options.drive).obey, **loop)
    else:
        for name in options.event_loop:
            measure(name, options)


if __name__ == "__main__":
    main()
