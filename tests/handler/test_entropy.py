"""Where clock and randomness come from."""

from __future__ import annotations

import math

import anyio

from arendezvous.handler.entropy import SystemEnvironment
from tests.support import VIRTUAL


@VIRTUAL
async def test_the_clock_is_the_event_loops() -> None:
    env = SystemEnvironment()
    began = env.now()
    await anyio.sleep(60)
    assert env.now() - began >= 60
    assert env.now() == anyio.current_time()
    assert env.deadline(12.5) == 12.5
    assert env.deadline(math.inf) == math.inf


def test_tokens_are_sixteen_bytes_and_never_the_same() -> None:
    env = SystemEnvironment()
    tokens = {env.token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}


def test_two_processes_do_not_draw_the_same_jitter() -> None:
    """D38: jitter that two nodes share spreads nothing."""
    draws = [[SystemEnvironment().random() for _ in range(5)] for _ in range(2)]
    assert draws[0] != draws[1]
    assert all(0 <= value < 1 for draw in draws for value in draw)
