"""The same order of tasks each time."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.testing.clock import virtual_backend
from arendezvous.testing.simorder import in_order


def order(backend: str, seed: int) -> list[int]:
    """In which order tasks run that are all ready, and are cancelled."""
    seen: list[int] = []

    async def task(number: int, rounds: int) -> None:
        try:
            for _ in range(rounds):
                await anyio.sleep(1)
                seen.append(number)
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            seen.append(-number)
            raise

    async def nested(number: int) -> None:
        with anyio.CancelScope():
            await task(number, 1)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(1, 9):
                tasks.start_soon(task, number, 3)
                tasks.start_soon(nested, 100 + number)
            await anyio.sleep(3.5)
            tasks.cancel_scope.cancel()

    name, options = virtual_backend(backend)
    with in_order(name, options, seed):
        anyio.run(main, backend=name, backend_options=options)
    return seen


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_same_seed_gives_the_same_order(backend: str) -> None:
    assert len({tuple(order(backend, 1)) for _ in range(5)}) == 1


def test_trio_runs_its_tasks_in_another_order_for_another_seed() -> None:
    assert len({tuple(order("trio", seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_event_loop_is_as_it_was_afterwards(backend: str) -> None:
    import trio._core._run as run
    from anyio._backends import _asyncio

    before = (run._ALLOW_DETERMINISTIC_SCHEDULING, _asyncio.CancelScope.__init__, run._r.getstate())
    order(backend, 3)
    assert (run._ALLOW_DETERMINISTIC_SCHEDULING, _asyncio.CancelScope.__init__, run._r.getstate()) == before
