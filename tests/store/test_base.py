"""What all stores share."""

from __future__ import annotations

import math

import anyio
import pytest

from arendezvous.errors import StoreTimeoutError
from arendezvous.store.base import DEFAULT_TIMEOUT, DISCONNECT_GRACE, Capabilities, StoreBase, check_seconds
from tests.support import VIRTUAL, fail_after


def test_the_defaults_are_the_documented_ones() -> None:
    """design.md 4."""
    assert (DEFAULT_TIMEOUT, DISCONNECT_GRACE) == (300, 1)
    assert StoreBase().timeout == 300
    assert StoreBase(timeout=None).timeout is None
    assert Capabilities() == Capabilities(watch=True, lease=True, scan=True)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, True, "1", -math.inf])
def test_a_limit_that_is_none_is_refused(seconds: object) -> None:
    with pytest.raises(ValueError, match="positive number of seconds"):
        StoreBase(timeout=seconds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit"), StoreBase().limit(seconds):  # type: ignore[arg-type]
        pass


def test_an_infinite_limit_is_no_limit() -> None:
    assert check_seconds("x", math.inf) is None
    assert check_seconds("x", 2) == 2.0
    assert check_seconds("x", None) is None


def test_a_limit_holds_for_its_block_and_for_its_store_only() -> None:
    one, two = StoreBase(5), StoreBase(6)
    with one.limit(1):
        assert (one.timeout, two.timeout) == (1, 6)
        with two.limit(2), one.limit(None):
            assert (one.timeout, two.timeout) == (None, 2)
        assert (one.timeout, two.timeout) == (1, 6)
    assert (one.timeout, two.timeout) == (5, 6)


async def test_a_limit_holds_for_its_task_only() -> None:
    """R55: nobody else's calls get shorter."""
    store = StoreBase(5)
    seen = []
    inside, looked = anyio.Event(), anyio.Event()

    async def other() -> None:
        await inside.wait()
        seen.append(store.timeout)
        looked.set()

    async with anyio.create_task_group() as tg:
        tg.start_soon(other)
        with fail_after(5), store.limit(1):
            inside.set()
            await looked.wait()
            seen.append(store.timeout)
    assert seen == [5, 1]


@VIRTUAL
async def test_the_stores_own_limit_is_an_error_that_describes_itself() -> None:
    store = StoreBase(3)
    began = anyio.current_time()
    with pytest.raises(StoreTimeoutError, match="waited 3 s for k"):
        with store.bounded(lambda seconds: f"waited {seconds:g} s for k"):
            await anyio.sleep_forever()
    assert anyio.current_time() - began == pytest.approx(3)


@VIRTUAL
async def test_a_callers_own_scope_stays_anonymous() -> None:
    """design.md 4."""
    store = StoreBase(3)
    with anyio.move_on_after(1) as scope:
        with store.bounded(lambda seconds: "not this one"):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(TimeoutError) as caught, anyio.fail_after(1):
        with store.bounded(lambda seconds: "not this one"):
            await anyio.sleep_forever()
    assert not isinstance(caught.value, StoreTimeoutError)


@VIRTUAL
async def test_without_a_limit_nothing_ends_the_wait() -> None:
    with anyio.move_on_after(1e6) as scope:
        with StoreBase(None).bounded(lambda seconds: ""):
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_store_is_a_context_manager_and_closes_twice() -> None:
    async with StoreBase() as store:
        assert isinstance(store, StoreBase)
    await store.aclose()
