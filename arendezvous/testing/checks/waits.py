"""Checks of waiting for keys: get, wait, multi_get, the store's own limit, and cancellation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from ...errors import StoreTimeoutError
from .kit import Check, Kit, Pending, check, equal, expect, fail, raises, settle

if TYPE_CHECKING:
    from ...store.base import Store

__all__ = ("CHECKS",)

# The store's own limit where it must end, and where it must not.
_SHORT = 0.05
_LONG = 60.0


@check("get waits for a missing key, whoever makes it and however", clients=2)
async def get_waits(kit: Kit, a: Store, b: Store) -> None:
    s, n, p, c, m = kit.keys("set", "add", "append", "swap", "multi")
    async with kit.tasks() as tasks:
        for key, make, value in (
            (s, lambda: b.set(s, b"s"), b"s"),
            (n, lambda: b.add(n, 3), b"3"),
            (p, lambda: b.append(p, b"p"), b"p"),
            (c, lambda: b.compare_and_swap(c, b"", b"c"), b"c"),
            (m, lambda: b.multi_set([m], [b""]), b""),
        ):
            getting = await tasks.waiting("get of a missing key waits", a.get, key)
            also = tasks.start(b.get, key)
            await make()
            equal(await getting.result("get returns once the key is there"), value, "get returns the new value")
            equal(await also.result("every waiting get returns"), value, "get returns the new value")


@check("wait returns when every key exists, in whatever order they come (defects.md R53)", clients=2)
async def wait_for_all(kit: Kit, a: Store, b: Store) -> None:
    x, y, z = kit.keys("x", "y", "z")
    await a.wait([])
    await b.set(x, b"1")
    async with kit.tasks() as tasks:
        waiting = await tasks.waiting("wait goes on while a key is missing", a.wait, [x, y])
        await b.set(y, b"2")
        await waiting.result("wait returns when the last key comes")
        await tasks.start(a.wait, [x, x]).result("a key that is named twice and exists is waited for at once")
        await tasks.start(a.wait, [y, x]).result("keys that exist are not waited for")
        waiting = await tasks.waiting("wait goes on while a key is missing", a.wait, [z, z, x])
        await b.set(z, b"")
        await waiting.result("a key that is named twice needs to come once")


@check("multi_get waits for every key", clients=2)
async def multi_get_waits(kit: Kit, a: Store, b: Store) -> None:
    x, y = kit.keys("x", "y")
    async with kit.tasks() as tasks:
        getting = await tasks.waiting("multi_get of missing keys waits", a.multi_get, [x, y, x])
        await b.set(y, b"2")
        await getting.waits("multi_get goes on while a key is missing")
        await b.set(x, b"1")
        equal(await getting.result("multi_get returns when the last key comes"), [b"1", b"2", b"1"], "in their order")


@check("when the store's own limit ends, StoreTimeoutError names missing keys, endpoint and time")
async def limit_ends(kit: Kit, store: Store) -> None:
    there, one, two = kit.keys("there", "one", "two")
    await store.set(there, b"")
    for name, call, missing in (
        ("get", lambda: store.get(one), [one]),
        ("wait", lambda: store.wait([there, one, two]), [one, two]),
        ("multi_get", lambda: store.multi_get([two, there]), [two]),
    ):
        began = anyio.current_time()
        try:
            with store.limit(_SHORT):
                await call()
        except StoreTimeoutError as exc:
            message = str(exc)
        else:
            fail(f"{name} of a missing key ends with StoreTimeoutError; it returned")
        expect(anyio.current_time() - began >= _SHORT * 0.9, f"{name} waits as long as the limit says")
        for key in missing:
            expect(key in message, f"{name} names the missing key {key!r}: {message!r}")
        expect(there not in message, f"{name} names no key that is there: {message!r}")
        expect(store.endpoint in message, f"{name} names the endpoint {store.endpoint!r}: {message!r}")
        expect(any(letter.isdigit() for letter in message.replace(store.endpoint, "")), f"{name} names the time waited")
    equal([await store.peek(one), await store.peek(two)], [None, None], "a wait that ended creates nothing")


@check("a limit ends with its block: the next call has the store's own again (defects.md R55)", clients=2)
async def limit_scope(kit: Kit, a: Store, b: Store) -> None:
    never, later = kit.keys("never", "later")
    with raises(StoreTimeoutError, "a short limit ends"), a.limit(_SHORT):
        await a.wait([never])
    async with kit.tasks() as tasks:
        getting = tasks.start(a.get, later)
        await anyio.sleep(_SHORT * 3)
        await getting.waits("the limit of a block that is over bounds nobody")
        await b.set(later, b"v")
        equal(await getting.result("get goes on after the block"), b"v", "get returns the value")


@check("limits nest, None means none, and each bounds its own task only", clients=2)
async def limit_nesting(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()

    async def bounded(outer: float | None, inner: float | None) -> bytes:
        with a.limit(outer), a.limit(inner):
            return await a.get(key)

    async with kit.tasks() as tasks:
        short = tasks.start(bounded, None, _SHORT)
        none = tasks.start(bounded, _SHORT, None)
        long = tasks.start(bounded, _SHORT, _LONG)
        plain = tasks.start(a.get, key)
        await short.error(StoreTimeoutError, "the inner of two limits counts")
        await anyio.sleep(_SHORT * 2)
        for pending, what in ((none, "None is no limit"), (long, "a longer limit counts"), (plain, "another task's")):
            await pending.waits(f"{what}: the call goes on")
        with a.limit(_SHORT):
            with raises(StoreTimeoutError, "the inner limit ends"), a.limit(_SHORT / 2):
                await a.get(key)
            with raises(StoreTimeoutError, "the outer limit counts again after the inner"):
                await a.get(key)
        await b.set(key, b"v")
        equal(await none.result("get goes on"), b"v", "get returns the value")
        equal(await long.result("get goes on"), b"v", "get returns the value")
        equal(await plain.result("get goes on"), b"v", "get returns the value")


@check("a limit is a positive number of seconds or None")
async def limit_values(kit: Kit, store: Store) -> None:
    for wrong in (0, -1.0, float("nan")):
        with raises(ValueError, f"limit({wrong}) raises"), store.limit(wrong):
            pass
    with store.limit(float("inf")), store.limit(1):
        equal(await store.check([kit.key()]), False, "other calls work under a limit")


@check("a caller's own cancel scope stays anonymous")
async def scopes_stay_anonymous(kit: Kit, store: Store) -> None:
    key = kit.key()
    for call in (lambda: store.get(key), lambda: store.wait([key]), lambda: store.multi_get([key])):
        with anyio.move_on_after(_SHORT) as scope:
            await call()
        expect(scope.cancelled_caught, "a call in a scope that ends is cancelled")
        try:
            with anyio.fail_after(_SHORT):
                await call()
        except StoreTimeoutError as exc:
            fail(f"the caller's limit raises the caller's error; got {exc!r}")
        except TimeoutError:
            pass
        with (
            raises(StoreTimeoutError, "of two limits the store's ends first"),
            anyio.fail_after(_LONG),
            store.limit(_SHORT),
        ):
            await call()


@check("cancelling a call hurts no other call, and nobody gets another's reply", clients=2)
async def cancel_waits(kit: Kit, a: Store, b: Store) -> None:
    names = kit.keys(*map(str, range(8)))
    async with kit.tasks() as tasks:
        for round_ in range(5):
            kept = [tasks.start(a.get, key) for key in names]
            dropped: list[Pending[Any]] = [tasks.start(a.get, key) for key in names]
            dropped += [tasks.start(a.wait, [key]) for key in names]
            dropped += [tasks.start(a.watch, key, None) for key in names]
            if round_:
                await settle()
            for pending in dropped:
                pending.cancel()
            await b.multi_set(names, [key.encode() for key in names])
            for key, pending in zip(names, kept, strict=True):
                equal(await pending.result("a call beside a cancelled one goes on"), key.encode(), "its own reply")
            for key in names:
                equal(await a.get(key), key.encode(), "a call after a cancelled one gets its own reply")
                await a.delete_key(key)


@check("a waiter that is cancelled as its key comes takes nothing from the others (defects.md R116)", clients=2)
async def cancel_at_arrival(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    async with kit.tasks() as tasks:
        for _ in range(30):
            first, second, third = (tasks.start(a.get, key) for _ in range(3))
            await settle()
            await b.set(key, b"v")
            first.cancel()
            third.cancel()
            equal(await second.result("the waiter beside it wakes up"), b"v", "with the value")
            await first.ended("a cancelled call ends")
            await third.ended("a cancelled call ends")
            await b.delete_key(key)


@check("a cancelled write has happened or not, whole, and the store works on", clients=2)
async def cancel_writes(kit: Kit, a: Store, b: Store) -> None:
    key, log = kit.keys("key", "log")
    for index in range(20):
        async with kit.tasks() as tasks:
            calls: list[Pending[Any]] = [
                tasks.start(a.set, key, b"%d" % index * 100),
                tasks.start(a.append, log, b"<entry>"),
                tasks.start(a.add, kit.key("count"), 1),
            ]
            for _ in range(index % 4):
                await anyio.lowlevel.checkpoint()
            for pending in calls:
                pending.cancel()
                await pending.ended("a cancelled call ends")
        value = await b.peek(key)
        expect(value is None or value in [b"%d" % n * 100 for n in range(index + 1)], "a value is whole")
        entries = await b.peek(log) or b""
        equal(entries, b"<entry>" * (len(entries) // 7), "an appended value is whole")
        equal(await a.check([kit.key("never")]), False, "the caller's store works on")
    await a.set(key, b"last")
    equal(await b.get(key), b"last", "no cancelled write comes late")


CHECKS: tuple[Check, ...] = (
    get_waits,
    wait_for_all,
    multi_get_waits,
    limit_ends,
    limit_scope,
    limit_nesting,
    limit_values,
    scopes_stay_anonymous,
    cancel_waits,
    cancel_at_arrival,
    cancel_writes,
)
