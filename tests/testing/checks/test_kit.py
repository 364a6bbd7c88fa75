"""What the checks are made of."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from arendezvous.store.base import Capabilities, Store
from arendezvous.store.memory import MemoryStore
from arendezvous.testing import ConformanceError
from arendezvous.testing.checks.kit import Kit, check, equal, raises
from tests.support import VIRTUAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def memory() -> AsyncIterator[Store]:
    yield MemoryStore()


def test_equal_tells_bytes_from_bytearrays_and_true_from_one() -> None:
    equal(b"x", b"x", "same")
    for got, wanted in ((bytearray(b"x"), b"x"), (1, True), (b"", None)):
        with pytest.raises(ConformanceError, match="differs"):
            equal(got, wanted, "it differs")


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ConformanceError) as caught:
        equal(b"x" * 10**6, b"", "it differs")
    assert len(str(caught.value)) < 500


def test_raises_tells_the_wrong_error_from_none() -> None:
    with pytest.raises(ConformanceError, match="got KeyError"), raises(ValueError, "it raises"):
        raise KeyError
    with pytest.raises(ConformanceError, match="nothing was raised"), raises(ValueError, "it raises"):
        pass


@VIRTUAL
async def test_a_failure_names_check_and_sentence_and_what_was_found() -> None:
    @check("the sky is blue")
    async def sky(kit: Kit, store: Store) -> None:
        async with kit.tasks():
            equal("grey", "blue", "by day")

    with pytest.raises(ConformanceError) as caught:
        await sky(memory)
    assert str(caught.value) == "sky: the sky is blue\n  by day; expected 'blue', got 'grey'"


@VIRTUAL
async def test_an_error_of_the_store_is_a_failure_too() -> None:
    @check("nothing goes wrong")
    async def calm(kit: Kit, store: Store) -> None:
        raise LookupError("storm")

    with pytest.raises(ConformanceError, match="it raised LookupError\\('storm'\\)"):
        await calm(memory)


@VIRTUAL
async def test_a_check_that_hangs_fails() -> None:
    @check("it ends")
    async def endless(kit: Kit, store: Store) -> None:
        await anyio.sleep_forever()

    with pytest.raises(ConformanceError, match="hangs"):
        await endless(memory)


@VIRTUAL
async def test_a_check_does_not_apply_without_its_capability() -> None:
    class NoLease(MemoryStore):
        capabilities = Capabilities(lease=False)  # type: ignore[assignment]

    @asynccontextmanager
    async def without() -> AsyncIterator[Store]:
        yield NoLease()

    @check("leases", needs=("lease",))
    async def body(kit: Kit, store: Store) -> None:
        raise AssertionError

    assert await body(without) is False


@VIRTUAL
async def test_a_check_deletes_its_keys() -> None:
    store = MemoryStore()

    @asynccontextmanager
    async def shared() -> AsyncIterator[Store]:
        yield store

    @check("writes")
    async def body(kit: Kit, store: Store) -> None:
        await store.set(kit.key(), b"v")

    assert await body(shared) is True
    assert await store.num_keys() == 0


@VIRTUAL
async def test_a_pending_call_reports_value_error_cancellation_and_silence() -> None:
    async def fails() -> None:
        raise LookupError

    kit = Kit("name", memory, 5.0)
    async with kit.tasks() as tasks:
        assert await tasks.start(anyio.sleep, 1).result("it ends") is None
        assert isinstance(await tasks.start(fails).error(LookupError, "it fails"), LookupError)
        with pytest.raises(ConformanceError, match="LookupError"):
            await tasks.start(fails).result("it ends")
        with pytest.raises(ConformanceError, match="expected ValueError"):
            await tasks.start(fails).error(ValueError, "it fails")
        with pytest.raises(ConformanceError, match="it ended"):
            await tasks.waiting("it waits", anyio.sleep, 0)
        forever = await tasks.waiting("it waits", anyio.sleep_forever)
        with pytest.raises(ConformanceError, match="within 5 s"):
            await forever.ended("it ends")
        forever.cancel()
        with pytest.raises(ConformanceError, match="cancelled"):
            await forever.result("it ends")
