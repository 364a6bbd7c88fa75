"""Checks of watch and scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from .kit import Check, Kit, check, equal, expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...store.base import Store

__all__ = ("CHECKS",)


@check("watch returns at once if the value differs from what is held")
async def watch_at_once(kit: Kit, store: Store) -> None:
    key = kit.key()
    async with kit.tasks() as tasks:
        gone = tasks.start(store.watch, key, b"held")
        equal(await gone.result("a missing key differs from a value"), None, "None stands for a missing key")
        gone = tasks.start(store.watch, key, b"")
        equal(await gone.result("a missing key differs from an empty value"), None, "None stands for a missing key")
        await store.set(key, b"v")
        equal(await tasks.start(store.watch, key, None).result("a value differs from a missing key"), b"v", "the value")
        equal(await tasks.start(store.watch, key, b"w").result("a value differs from another"), b"v", "the value")
        await store.set(key, b"")
        equal(await tasks.start(store.watch, key, None).result("an empty value is not a missing key"), b"", "the value")


@check("watch waits while the value is what is held")
async def watch_waits(kit: Kit, store: Store) -> None:
    missing, there, empty = kit.keys("missing", "there", "empty")
    await store.multi_set([there, empty], [b"v", b""])
    async with kit.tasks() as tasks:
        for key, held in ((missing, None), (there, b"v"), (empty, b"")):
            await tasks.waiting(f"watch waits while the value is {held!r}", store.watch, key, held)
        await store.set(there, b"v")
        pending = await tasks.waiting("watch waits after a set of the same value", store.watch, there, b"v")
        await store.set(there, b"v")
        if pending.done:
            expect(await pending.result("") != b"v", "watch returns only a value that differs")


@check("watch wakes on every kind of change, by whichever client", clients=2)
async def watch_wakes(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    held: bytes | None = None
    async with kit.tasks() as tasks:
        for writer in (b, a):
            changes: tuple[tuple[str, Callable[[Store], Awaitable[object]], bytes | None], ...] = (
                ("set that creates", lambda s: s.set(key, b"1"), b"1"),
                ("set", lambda s: s.set(key, b"2"), b"2"),
                ("compare_and_swap", lambda s: s.compare_and_swap(key, b"2", b"30"), b"30"),
                ("compare_set", lambda s: s.compare_set(key, b"30", b"4"), b"4"),
                ("add", lambda s: s.add(key, 1), b"5"),
                ("append", lambda s: s.append(key, b"6"), b"56"),
                ("multi_set", lambda s: s.multi_set([key], [b"7"]), b"7"),
                ("delete_key", lambda s: s.delete_key(key), None),
                ("add that creates", lambda s: s.add(key, 8), b"8"),
                ("delete_key", lambda s: s.delete_key(key), None),
                ("append that creates", lambda s: s.append(key, b"9"), b"9"),
                ("delete_key", lambda s: s.delete_key(key), None),
                ("compare_and_swap that creates", lambda s: s.compare_and_swap(key, b"", b""), b""),
                ("delete_key", lambda s: s.delete_key(key), None),
            )
            for name, change, wanted in changes:
                one = await tasks.waiting("watch waits for news", a.watch, key, held)
                two = tasks.start(b.watch, key, held)
                await change(writer)
                equal(await one.result(f"watch wakes on {name}"), wanted, f"watch returns the value after {name}")
                equal(await two.result(f"every watch wakes on {name}"), wanted, f"the value after {name}")
                held = wanted


@check("a watch of one key does not wake for another")
async def watch_one_key(kit: Kit, store: Store) -> None:
    mine, other = kit.keys("mine", "mine2")
    async with kit.tasks() as tasks:
        pending = await tasks.waiting("watch waits for news", store.watch, mine, None)
        await store.set(other, b"x")
        await pending.waits("another key's change is no news")
        await store.set(mine, b"y")
        equal(await pending.result("the own key's change is"), b"y", "watch returns the value")


@check("watch may skip values, never the newest, and never goes back", clients=2)
async def watch_newest(kit: Kit, a: Store, b: Store) -> None:
    key, last = kit.key(), 60

    async def follow(store: Store) -> list[int]:
        seen, held = list[int](), None
        while not seen or seen[-1] != last:
            held = await store.watch(key, held)
            seen.append(int(held or b"-1"))
        return seen

    async with kit.tasks() as tasks:
        followers = [tasks.start(follow, store) for store in (a, b, a)]
        for number in range(1, last + 1):
            await b.set(key, b"%d" % number)
            if number % 7 == 0:
                await anyio.lowlevel.checkpoint()
        for pending in followers:
            seen = await pending.result("a follower sees the newest value")
            equal(seen, sorted(set(seen)), "every value that watch returns is newer than the last")


@check("waiting for news is no error: watch is not bounded by the store's own limit")
async def watch_has_no_limit(kit: Kit, store: Store) -> None:
    key = kit.key()

    async def bounded() -> bytes | None:
        with store.limit(0.05):
            return await store.watch(key, None)

    async with kit.tasks() as tasks:
        pending = tasks.start(bounded)
        await anyio.sleep(0.2)
        await pending.waits("watch outlives the limit")
        await store.set(key, b"v")
        equal(await pending.result("watch goes on"), b"v", "watch returns the value")


@check("a cancelled watch leaves the others watching", clients=2)
async def watch_cancelled(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    async with kit.tasks() as tasks:
        kept = await tasks.waiting("watch waits for news", a.watch, key, None)
        for _ in range(30):
            dropped = [tasks.start(a.watch, key, None) for _ in range(3)]
            await anyio.lowlevel.checkpoint()
            for pending in dropped:
                pending.cancel()
            for pending in dropped:
                await pending.ended("a cancelled watch ends")
        await b.set(key, b"v")
        equal(await kept.result("the one that was not cancelled wakes"), b"v", "watch returns the value")
        equal(await a.get(key), b"v", "the store works on")


@check("scan returns the keys with a prefix and their values in the order of creation", clients=2, needs=("scan",))
async def scan_order(kit: Kit, a: Store, b: Store) -> None:
    names = ["z", "a", "m", "b/c", "b", "y"]
    prefix = kit.key("in/")
    keys = [kit.own(prefix + name) for name in names]
    outside = kit.keys("in", "in2/x", "i")
    equal(await a.scan(prefix), [], "a prefix of no key gives nothing")
    for index, key in enumerate(keys):
        await (a, b)[index % 2].set(key, b"%d" % index)
    for key in outside:
        await a.set(key, b"outside")
    wanted = [(key, b"%d" % index) for index, key in enumerate(keys)]
    equal(await b.scan(prefix), wanted, "in the order of creation, without keys that lack the prefix")
    await a.set(keys[0], b"new")
    await a.append(keys[1], b"+")
    wanted[0], wanted[1] = (keys[0], b"new"), (keys[1], b"1+")
    equal(await b.scan(prefix), wanted, "a new value does not change a key's place")
    await b.delete_key(keys[0])
    await a.add(keys[0], 5)
    equal(await b.scan(prefix), [*wanted[1:], (keys[0], b"5")], "a key that is made again comes last")
    equal(await a.scan(keys[3]), [(keys[3], b"3")], "a whole key is a prefix of itself")


@check("scan takes every prefix as text, the empty one too", needs=("scan",))
async def scan_odd(kit: Kit, store: Store) -> None:
    keys = [kit.key(name) for name in ("*", "[a-z]", "%s", "\\d+", "ключ/1", "ключ/2", "\uffff", "\U0010ffff")]
    for key in keys:
        await store.set(key, key.encode())
    for key in keys:
        equal(await store.scan(key), [(key, key.encode())], f"the prefix {key!r} means itself")
    equal([key for key, _ in await store.scan(kit.key("ключ/"))], keys[4:6], "a prefix ends anywhere between letters")
    everything = await store.scan("")
    equal([key for key, _ in everything if key in keys], keys, "the empty prefix means every key")
    equal(len(everything), await store.num_keys(), "the empty prefix means every key")


CHECKS: tuple[Check, ...] = (
    watch_at_once,
    watch_waits,
    watch_wakes,
    watch_one_key,
    watch_newest,
    watch_has_no_limit,
    watch_cancelled,
    scan_order,
    scan_odd,
)
