"""The memory store."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousUsageError, StoreTimeoutError
from arendezvous.store.base import Capabilities, Store
from arendezvous.store.memory import HashStore, MemoryStore
from tests.support import VIRTUAL, fail_after


async def test_it_is_a_store() -> None:
    store: Store = MemoryStore()
    assert HashStore is MemoryStore
    assert store.capabilities == Capabilities(watch=True, lease=True, scan=True)
    async with store:
        await store.set("k", b"v")
        assert await store.get("k") == b"v"
        assert store.endpoint == "memory"


@VIRTUAL
class TestInVirtualTime:
    async def test_the_limit_names_the_missing_keys(self) -> None:
        store = MemoryStore(timeout=5)
        await store.set("there", b"")
        started = anyio.current_time()
        with pytest.raises(StoreTimeoutError, match=r"5\.00 s for 'gone', 'lost' in the memory store"):
            await store.wait(["there", "gone", "lost"])
        assert anyio.current_time() - started == pytest.approx(5)

    async def test_a_limit_for_a_block_does_not_outlive_it(self) -> None:
        """R55."""
        store = MemoryStore(timeout=5)
        with store.limit(0.1), pytest.raises(StoreTimeoutError):
            await store.wait(["x"])
        async with anyio.create_task_group() as tasks:

            async def peer() -> None:
                await anyio.sleep(1)
                await store.set("y", b"late")

            tasks.start_soon(peer)
            assert await store.get("y") == b"late"

    async def test_a_watcher_is_woken_when_a_lease_ends_though_nobody_calls(self) -> None:
        store = MemoryStore()
        async with store.lease(3.0) as lease:
            await lease.set("beat", b"1")
            assert await store.watch("beat", b"1") is None
            assert anyio.current_time() == pytest.approx(3.0)

    async def test_the_watcher_who_keeps_the_time_hands_it_on_when_it_leaves(self) -> None:
        store = MemoryStore()
        async with anyio.create_task_group() as tasks, store.lease(3.0) as lease:
            scopes = []
            ended: list[float] = []

            async def watcher() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await store.watch("beat", b"1")
                    ended.append(anyio.current_time())

            await lease.set("beat", b"1")
            for _ in range(3):
                tasks.start_soon(watcher)
                await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            await anyio.sleep(1)
            scopes[1].cancel()
            await anyio.sleep(5)
            assert ended == [pytest.approx(3.0)]

    async def test_a_lease_opened_while_somebody_waits_ends_in_time(self) -> None:
        store = MemoryStore()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.wait, ["never"])
            await anyio.wait_all_tasks_blocked()
            started = anyio.current_time()
            async with store.lease(2.0) as lease:
                await lease.set("beat", b"1")
                assert await store.watch("beat", b"1") is None
                assert anyio.current_time() - started == pytest.approx(2.0)
            tasks.cancel_scope.cancel()

    async def test_a_refreshed_lease_lives_on(self) -> None:
        store = MemoryStore()
        async with store.lease(1.0) as lease:
            for beat in range(10):
                await lease.set("beat", b"%d" % beat)
                await anyio.sleep(0.6)
            assert await store.peek("beat") == b"9"
            await anyio.sleep(0.5)
            assert await store.peek("beat") is None
            await lease.set("beat", b"again")
            assert await store.peek("beat") == b"again"
        assert await store.peek("beat") is None

    async def test_a_dropped_lease_lives_for_the_grace_and_a_write_brings_it_back(self) -> None:
        store = MemoryStore()
        async with store.lease(30.0) as lease:
            await lease.set("a/beat", b"1")
            await store.set("a/plain", b"")
            store.drop(lease)
            (info,) = await store.leases("a/")
            assert (info.key, info.ttl, info.attached) == ("a/beat", 30.0, False)
            await anyio.sleep(0.9)
            await lease.set("a/beat", b"2")
            await anyio.sleep(5)
            (info,) = await store.leases("a/")
            assert info.attached
            assert info.age == pytest.approx(5)
            store.drop(lease)
            assert await store.watch("a/beat", b"2") is None
            assert await store.leases("") == []


async def test_a_lease_ends_with_its_block_however_it_ends() -> None:
    store = MemoryStore()
    with anyio.CancelScope() as scope:
        async with store.lease(60) as lease:
            await lease.set("beat", b"1")
            scope.cancel()
            await anyio.sleep_forever()
    assert await store.peek("beat") is None
    with pytest.raises(RendezvousUsageError):
        await lease.set("beat", b"1")


async def test_a_cancelled_waiter_loses_no_news_of_others() -> None:
    """R116: the key is set and one waiter cancelled in the same tick."""
    store = MemoryStore()
    for turn in range(20):
        key = f"k{turn}"
        got: list[bytes | None] = []
        with fail_after(5):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()

                async def doomed(key: str = key, scope: anyio.CancelScope = scope) -> None:
                    with scope:
                        await store.get(key)

                async def lucky(key: str = key, got: list[bytes | None] = got) -> None:
                    got.append(await store.watch(key, None))

                tasks.start_soon(doomed)
                tasks.start_soon(lucky)
                await anyio.wait_all_tasks_blocked()
                assert store.waiting == 2
                store._table.set(key.encode(), b"v")
                scope.cancel()
        assert got == [b"v"]
    assert store.waiting == 0
    assert store._table.waiting == 0


async def test_closing_ends_the_calls_in_flight() -> None:
    store = MemoryStore()
    with fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def waiting() -> None:
                with pytest.raises(RendezvousConnectionError, match="closed"):
                    await store.get("never")

            tasks.start_soon(waiting)
            await anyio.wait_all_tasks_blocked()
            await store.aclose()
            await store.aclose()
    with pytest.raises(RendezvousConnectionError, match="closed"):
        await store.peek("k")


async def test_a_cancelled_call_has_changed_nothing() -> None:
    store = MemoryStore()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.set("k", b"v")
    assert await store.peek("k") is None


async def test_mistakes_in_arguments_are_told_before_anything_happens() -> None:
    store = MemoryStore()
    with pytest.raises(TypeError):
        await store.set(b"k", b"v")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await store.set("k", "v")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await store.wait("key")
    with pytest.raises(ValueError, match="2 keys but 1 values"):
        await store.multi_set(["a", "b"], [b""])
    with pytest.raises(ValueError, match="64 bits"):
        await store.add("n", 2**63)
    with pytest.raises(TypeError):
        await store.add("n", True)
    for ttl in (0, -1, float("inf"), float("nan"), True):
        with pytest.raises(ValueError, match="ttl"):
            store.lease(ttl)
    assert await store.num_keys() == 0


async def test_any_text_is_a_key() -> None:
    """R83."""
    store = MemoryStore()
    names = ["-k", "/", "//", "", "a\nb", "ключ", "k", "\x00"]
    for name in names:
        await store.set(name, name.encode())
    assert [name for name, _ in await store.scan("")] == names
    assert await store.delete_key("k")
    assert not await store.delete_key("k")
    assert await store.get("-k") == b"-k"
    assert await store.num_keys() == len(names) - 1
