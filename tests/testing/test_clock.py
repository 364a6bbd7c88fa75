"""Virtual time."""

from __future__ import annotations

import subprocess
import sys
import time

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute

from arendezvous.testing import VirtualTimeLoop, virtual_backend, virtual_backends
from arendezvous.testing.clock import VirtualSelector
from tests.support import VIRTUAL


@VIRTUAL
async def test_a_day_passes_at_once_and_exactly() -> None:
    real, began = time.monotonic(), anyio.current_time()
    await anyio.sleep(86400 * 30)
    assert anyio.current_time() - began == pytest.approx(86400 * 30)
    assert time.monotonic() - real < 60


@VIRTUAL
async def test_every_test_starts_at_the_same_time() -> None:
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 5)
    first = anyio.current_time() - began
    assert first == pytest.approx(5)


@VIRTUAL
async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 0.001, 700.0, 2.5, 1e-5):
            group.start_soon(sleeper, seconds)
    assert woken == [1e-5, 0.001, 2.5, 3.0, 700.0]


@VIRTUAL
async def test_a_limit_ends_what_it_bounds() -> None:
    began = anyio.current_time()
    with pytest.raises(TimeoutError), anyio.fail_after(40):
        await anyio.sleep_forever()
    assert anyio.current_time() - began == pytest.approx(40)


@VIRTUAL
async def test_loopback_sockets_answer_within_a_virtual_millisecond() -> None:
    async def echo(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for chunk in stream:
                await stream.send(chunk)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo)
        port = listener.extra(SocketAttribute.local_port)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            for _ in range(100):
                with anyio.fail_after(0.001):
                    await stream.send(b"x")
                    assert await stream.receive() == b"x"
        group.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["asyncio", "trio"])
def test_a_threshold_gives_threads_time_to_answer(name: str) -> None:
    async def main() -> None:
        with anyio.fail_after(1):
            await anyio.to_thread.run_sync(lambda: None)

    backend, options = virtual_backend(name, threshold=0.05)
    anyio.run(main, backend=backend, backend_options=options)


def test_each_call_gives_a_fresh_clock() -> None:
    async def main() -> float:
        began = anyio.current_time()
        await anyio.sleep(100)
        return began

    for backend, options in virtual_backends() + virtual_backends():
        if backend == "asyncio":
            assert anyio.run(main, backend=backend, backend_options=options) == 0.0
        else:
            assert options["clock"].current_time() == 0.0
            anyio.run(main, backend=backend, backend_options=options)
            assert options["clock"].current_time() >= 100.0


def test_the_clock_still_moves_when_it_shows_a_very_large_number() -> None:
    loop = VirtualTimeLoop()
    try:
        loop._selector.now = 1e9  # type: ignore[attr-defined]

        async def main() -> float:
            await anyio.sleep(1)
            return loop.time()

        assert loop.run_until_complete(main()) == pytest.approx(1e9 + 1)
    finally:
        loop.close()


def test_the_selector_does_not_move_while_something_is_ready() -> None:
    with VirtualSelector() as selector:
        assert selector.select(0) == []
        assert selector.now == 0.0
        assert selector.select(12.5) == []
        assert selector.now == 12.5


def test_another_backend_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="uvloop"):
        virtual_backend("uvloop")


def test_importing_the_kit_loads_no_event_loop() -> None:
    code = (
        "import sys, arendezvous.testing, arendezvous.testing.clock; "
        "print([name for name in ('asyncio', 'trio', 'uvloop') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
