"""Checks of leases."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio

from ...store.base import DISCONNECT_GRACE
from .kit import Check, Kit, check, equal, expect, raises

if TYPE_CHECKING:
    from ...store.base import LeaseInfo, Store

__all__ = ("CHECKS",)

_NEEDS = ("lease",)


def _ttls(kit: Kit) -> tuple[float, float]:
    """A time to live that may run out within the patience, and one that never does."""
    return kit.patience / 10, kit.patience * 100


@check("a leased key is a key like every other while its lease lives", clients=2, needs=_NEEDS)
async def lease_key(kit: Kit, a: Store, b: Store) -> None:
    key, plain = kit.keys("key", "plain")
    before = await b.num_keys()
    await a.set(plain, b"p")
    async with kit.tasks() as tasks:
        getting = tasks.start(b.get, key)
        watching = await tasks.waiting("watch waits for news", b.watch, key, None)
        async with a.lease(_ttls(kit)[1]) as lease:
            equal(await b.peek(key), None, "opening a lease makes no key")
            await lease.set(key, b"1")
            equal(await getting.result("get wakes on a leased key"), b"1", "get returns the value")
            equal(await watching.result("watch wakes on a leased key"), b"1", "watch returns the value")
            equal(await b.num_keys() - before, 2, "a leased key counts")
            equal(await b.check([key, plain]), True, "a leased key exists")
            watching = await tasks.waiting("watch waits for news", b.watch, key, b"1")
            await lease.set(key, b"2")
            equal(await watching.result("watch wakes when the lease's owner sets it"), b"2", "the value")
        equal(await b.peek(plain), b"p", "a plain key does not end with a lease")


@check("the keys of a lease are gone at once after a clean exit", clients=2, needs=_NEEDS)
async def lease_exit(kit: Kit, a: Store, b: Store) -> None:
    x, y = kit.keys("x", "y")
    async with kit.tasks() as tasks:
        async with a.lease(_ttls(kit)[1]) as lease:
            await lease.set(x, b"1")
            await lease.set(y, b"1")
            watching = await tasks.waiting("watch waits for news", b.watch, x, b"1")
        equal(await b.peek(x), None, "the first key is gone")
        equal(await b.check([y]), False, "the second key is gone")
        equal(await watching.result("watch wakes when the lease ends"), None, "None stands for a missing key")
        equal([info.key for info in await b.leases(kit.key(""))], [], "no lease is listed")
    equal(await a.compare_and_swap(x, b"", b"new"), (True, b"new"), "the key can be made anew")


@check("a lease ends with its block also when that fails or is cancelled", clients=2, needs=_NEEDS)
async def lease_failure(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()

    async def gone() -> bool:
        return await b.peek(key) is None

    with raises(LookupError, "the body's own error passes through"):
        async with a.lease(_ttls(kit)[1]) as lease:
            await lease.set(key, b"1")
            raise LookupError
    await kit.soon(gone, "the key is gone after an error")

    async def hold() -> None:
        async with a.lease(_ttls(kit)[1]) as lease:
            await lease.set(key, b"2")
            await anyio.sleep_forever()

    async with kit.tasks() as tasks:
        holding = tasks.start(hold)
        await tasks.start(b.watch, key, None).result("the key is there")
        holding.cancel()
        await holding.ended("a cancelled owner ends")
        await kit.soon(gone, "the key is gone after a cancellation")


@check("a lease that is not refreshed runs out, without anybody's help", clients=2, needs=_NEEDS)
async def lease_expiry(kit: Kit, a: Store, b: Store) -> None:
    watched, unwatched = kit.keys("watched", "unwatched")
    ttl = _ttls(kit)[0]
    async with a.lease(ttl) as lease, a.lease(ttl) as other, kit.tasks() as tasks:
        await lease.set(watched, b"1")
        await other.set(unwatched, b"1")
        watching = tasks.start(b.watch, watched, b"1")
        equal(await watching.result("watch wakes when the lease runs out"), None, "None stands for a missing key")
        await anyio.sleep(ttl)
        equal(await b.peek(unwatched), None, "a key that nobody watches runs out too")
        equal(await a.peek(watched), None, "the owner sees it as the others do")
        await lease.set(watched, b"2")
        equal(await b.peek(watched), b"2", "a lease that has run out is opened anew by set")
        listed = [info.key for info in await b.leases(watched)]
        equal(listed, [watched], "a lease that was opened anew is listed")
    equal(await b.peek(watched), None, "a lease that was opened anew ends with its block")


@check("a refreshed lease lives on, with all its keys", clients=2, needs=_NEEDS)
async def lease_refresh(kit: Kit, a: Store, b: Store) -> None:
    beat, beside = kit.keys("beat", "beside")
    ttl = kit.patience / 5
    async with a.lease(ttl) as lease:
        await lease.set(beside, b"kept")
        began = anyio.current_time()
        count = 0
        while anyio.current_time() - began < ttl * 1.6:
            count += 1
            await lease.set(beat, b"%d" % count)
            await anyio.sleep(ttl / 10)
            equal(await b.peek(beat), b"%d" % count, "a key lives while its lease is refreshed")
            equal(await b.peek(beside), b"kept", "a refresh by one key keeps the others")


@check("two leases live and die apart", clients=2, needs=_NEEDS)
async def lease_pairs(kit: Kit, a: Store, b: Store) -> None:
    x, y = kit.keys("x", "y")
    async with a.lease(_ttls(kit)[1]) as outer:
        await outer.set(x, b"1")
        async with a.lease(_ttls(kit)[1]) as inner, b.lease(_ttls(kit)[1]) as others:
            await inner.set(y, b"1")
            await others.set(kit.key("z"), b"1")
        equal([await b.peek(x), await b.peek(y)], [b"1", None], "the end of one lease leaves the other's keys")
    equal(await b.peek(x), None, "and its own end takes them")


@check("leases lists the leased keys that have a prefix, with age, ttl and attachment", clients=2, needs=_NEEDS)
async def lease_list(kit: Kit, a: Store, b: Store) -> None:
    prefix = kit.key("in/")
    x, y = kit.own(prefix + "x"), kit.own(prefix + "y")
    long = _ttls(kit)[1]

    async def listed() -> dict[str, LeaseInfo]:
        return {info.key: info for info in await b.leases(prefix)}

    equal(await listed(), {}, "no lease, no entry")
    await a.set(kit.own(prefix + "plain"), b"p")
    async with a.lease(long) as one, a.lease(long * 2) as two:
        await one.set(x, b"1")
        await two.set(y, b"1")
        await two.set(kit.key("outside"), b"1")
        found = await listed()
        equal(sorted(found), [x, y], "leased keys with the prefix, no plain ones")
        equal([found[x].ttl, found[y].ttl], [long, long * 2], "each has its time to live")
        equal([found[x].attached, found[y].attached], [True, True], "their owner is there")
        expect(0 <= found[x].age <= kit.patience, f"a fresh lease is young; its age is {found[x].age}")
        await anyio.sleep(0.1)
        older = (await listed())[x].age
        expect(older > found[x].age, f"a lease grows older; it went from {found[x].age} to {older}")
        await anyio.sleep(0.1)
        older = (await listed())[x].age
        await one.set(x, b"2")
        expect((await listed())[x].age < older, "a refresh makes it young again")
        equal([info.key for info in await b.leases(x)], [x], "a whole key is a prefix of itself")


@check("a lease outlives its owner's connection by the disconnect grace at most", clients=2, needs=_NEEDS, closes=True)
async def lease_disconnect(kit: Kit, a: Store, b: Store) -> None:
    if a is b or hasattr(a, "underlying_store"):
        # One object for everybody, or a view whose closing leaves the owner's connection as it is.
        return
    key = kit.key()
    async with AsyncExitStack() as stack, kit.tasks() as tasks:
        lease = await stack.enter_async_context(a.lease(_ttls(kit)[1]))
        await lease.set(key, b"1")
        watching = await tasks.waiting("watch waits for news", b.watch, key, b"1")
        await a.aclose()
        with anyio.move_on_after(DISCONNECT_GRACE):
            await watching.ended("")
        equal(await watching.result("watch wakes when the owner is gone"), None, "None stands for a missing key")
    equal(await b.peek(key), None, "the key is gone")


@check("a time to live is a positive number of seconds", needs=_NEEDS)
async def lease_values(kit: Kit, store: Store) -> None:
    for wrong in (0, -1.0, float("nan")):
        with raises(ValueError, f"lease({wrong}) raises"):
            async with store.lease(wrong):
                pass
    equal(await store.peek(kit.key()), None, "the store works on")


CHECKS: tuple[Check, ...] = (
    lease_key,
    lease_exit,
    lease_failure,
    lease_expiry,
    lease_refresh,
    lease_pairs,
    lease_list,
    lease_disconnect,
    lease_values,
)
