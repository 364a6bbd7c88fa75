"""A part of a store as a store of its own."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.base import Capabilities, LeaseInfo
from arendezvous.store.memory import MemoryStore
from arendezvous.store.prefix import PrefixStore
from tests.support import VIRTUAL, fail_after

pieces = st.text(alphabet="a/:%.25|3A", max_size=5)


def stored(prefixes: list[str], key: str) -> str:
    """The key that the innermost of nested prefix stores uses."""
    store: MemoryStore | PrefixStore = MemoryStore()
    for prefix in prefixes:
        store = PrefixStore(prefix, store)
    assert isinstance(store, PrefixStore)
    return store._full(key)


@given(st.lists(pieces, min_size=1, max_size=3), pieces, st.lists(pieces, min_size=1, max_size=3), pieces)
def test_no_two_nestings_share_a_key(one: list[str], key: str, two: list[str], other: str) -> None:
    assert (stored(one, key) == stored(two, other)) == ((one, key) == (two, other))


async def test_a_run_named_like_another_runs_round_has_keys_of_its_own() -> None:
    """defects.md D27."""
    base = MemoryStore()
    job, round_ = PrefixStore("job", base), PrefixStore("job/1", base)
    within = PrefixStore("1", job)
    await job.set("1/2/x", b"a")
    await round_.set("2/x", b"b")
    await within.set("2/x", b"c")
    assert await base.num_keys() == 3
    assert [await job.get("1/2/x"), await round_.get("2/x"), await within.get("2/x")] == [b"a", b"b", b"c"]


async def test_the_stored_key_is_readable_and_under_its_prefix() -> None:
    base = MemoryStore()
    await PrefixStore("arendezvous/1/job/r/0.ab", base).set("rank0", b"v")
    assert await base.scan("arendezvous/1/job/") == [("arendezvous/1/job/r/0.ab/:rank0", b"v")]


async def test_every_method_works_on_keys_under_the_prefix() -> None:
    base = MemoryStore()
    await base.set("key", b"outside")
    store = PrefixStore("p", base)
    assert await store.peek("key") is None
    assert await store.compare_set("key", b"", b"1") == b"1"
    assert await store.add("key", 1) == 2
    await store.append("key", b"0")
    await store.multi_set(["a", "b"], [b"1", b"2"])
    await store.wait(["a", "key"])
    assert await store.check(["a", "b"])
    assert await store.multi_get(["b", "key"]) == [b"2", b"20"]
    assert await store.scan("") == [("key", b"20"), ("a", b"1"), ("b", b"2")]
    assert await store.scan("k") == [("key", b"20")]
    assert await store.num_keys() == 3
    assert await store.watch("key", None) == b"20"
    assert await store.delete_key("key")
    assert await base.get("key") == b"outside"


async def test_a_lease_names_its_keys_without_the_prefix() -> None:
    base = MemoryStore()
    store = PrefixStore("p", base)
    async with store.lease(60) as lease:
        await lease.set("beat", b"1")
        (info,) = await store.leases("be")
        assert info == LeaseInfo("beat", info.age, 60, True)
        assert await store.leases("x") == []
        assert [info.key for info in await base.leases("")] == ["p/:beat"]
    assert await store.peek("beat") is None


async def test_limits_are_those_of_the_underlying_store() -> None:
    base = MemoryStore(timeout=7)
    store = PrefixStore("p", base)
    assert store.timeout == 7
    with store.limit(3):
        assert base.timeout == store.timeout == 3
    with base.limit(None):
        assert store.timeout is None
    assert (store.endpoint, store.prefix, store.underlying_store) == (base.endpoint, "p", base)


async def test_closing_leaves_the_underlying_store_open() -> None:
    base = MemoryStore()
    async with PrefixStore("p", base) as store:
        await store.set("key", b"v")
    with pytest.raises(RendezvousConnectionError, match="prefix 'p'"):
        await store.peek("key")
    with pytest.raises(RendezvousConnectionError):
        async with store.lease(1):
            pass
    await base.set("works", b"on")


async def test_closing_ends_the_calls_in_flight_of_this_view_and_those_within_only() -> None:
    base = MemoryStore()
    outer, beside = PrefixStore("outer", base), PrefixStore("beside", base)
    inner = PrefixStore("inner", outer)
    ended: list[str] = []

    async def waits(name: str, store: PrefixStore | MemoryStore) -> None:
        try:
            await store.get("key")
        except RendezvousConnectionError:
            ended.append(name)

    with fail_after(5):
        async with anyio.create_task_group() as group:
            for name, store in (("outer", outer), ("inner", inner), ("beside", beside), ("base", base)):
                group.start_soon(waits, name, store)
            await anyio.wait_all_tasks_blocked()
            await outer.aclose()
            await outer.aclose()
            await anyio.wait_all_tasks_blocked()
            assert sorted(ended) == ["inner", "outer"]
            group.cancel_scope.cancel()
    with pytest.raises(RendezvousConnectionError):
        await inner.set("key", b"v")


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    outer = PrefixStore("p", MemoryStore())
    inner = PrefixStore("q", outer)
    async with anyio.create_task_group() as group:
        group.start_soon(inner.get, "key")
        await anyio.wait_all_tasks_blocked()
        assert outer._flights
        group.cancel_scope.cancel()
    assert not outer._flights
    assert not inner._flights


@VIRTUAL
async def test_the_callers_own_limit_stays_anonymous() -> None:
    store = PrefixStore("p", MemoryStore())
    with anyio.move_on_after(1) as scope:
        await store.get("key")
    assert scope.cancelled_caught


async def test_without_a_scan_the_number_of_keys_is_that_of_the_whole_store() -> None:
    class NoScan(MemoryStore):
        capabilities = Capabilities(scan=False)  # type: ignore[assignment]

    base = NoScan()
    await base.set("outside", b"")
    assert await PrefixStore("p", base).num_keys() == 1


async def test_a_wrong_key_or_prefix_is_refused_before_it_is_sent() -> None:
    store = PrefixStore("p", MemoryStore())
    with pytest.raises(TypeError):
        await store.set(b"key", b"v")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of str"):
        await store.wait("key")
    with pytest.raises(TypeError):
        PrefixStore(3, MemoryStore())  # type: ignore[arg-type]
