"""Checks of single values: set, get, compare-and-swap, counters, append, delete, several keys at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from .kit import Check, Kit, check, equal, expect, raises

if TYPE_CHECKING:
    from ...store.base import Store

__all__ = ("CHECKS", "ODD_KEYS")

#: Keys that were mistaken for something else elsewhere (defects.md R83).
ODD_KEYS = ("", "/", "//", "a\nb", "ключ", "-k", "k", "%", "a b", "\x00", ".", "..", "*", "[a]", "k/", "/k")

_VALUES = {
    "empty": b"",
    "zero byte": b"\0",
    "zero bytes inside": b"a\0b\0",
    "no text": b"\xff\xfe",
    "every byte": bytes(range(256)),
    "newline": b"line\n",
    "large": bytes(range(256)) * 4096,
}


@check("a value that was set is what every client reads, and a second set replaces it", clients=2)
async def set_and_read(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    await a.set(key, b"first")
    equal(await b.get(key), b"first", "get returns the value")
    equal(await b.peek(key), b"first", "peek returns the value")
    await b.set(key, b"second")
    equal(await a.get(key), b"second", "set replaces the value")
    equal(await a.num_keys(), await b.num_keys(), "both clients see the same number of keys")


@check("values are exact bytes, whatever they hold", clients=2)
async def exact_bytes(kit: Kit, a: Store, b: Store) -> None:
    for name, value in _VALUES.items():
        key = kit.key(name)
        await a.set(key, value)
        equal(await b.get(key), value, f"get returns exactly what was set ({name})")
        equal(await b.peek(key), value, f"peek returns exactly what was set ({name})")


@check("peek of a missing key is None and does not wait for it")
async def peek_missing(kit: Kit, store: Store) -> None:
    equal(await store.peek(kit.key()), None, "peek of a missing key is None")
    equal(await store.check([kit.key()]), False, "peek creates nothing")


@check("compare_and_swap follows its table (defects.md R59)", clients=2)
async def compare_and_swap_table(kit: Kit, a: Store, b: Store) -> None:
    k, m, e = kit.keys("k", "m", "e")
    equal(await a.compare_and_swap(k, b"", b"v"), (True, b"v"), "an empty expected value matches a missing key")
    equal(await b.get(k), b"v", "the desired value is stored")
    equal(await b.compare_and_swap(k, b"", b"w"), (False, b"v"), "an empty expected value does not match a value")
    equal(await a.get(k), b"v", "a failed swap changes nothing")
    equal(await a.compare_and_swap(k, b"v", b"x"), (True, b"x"), "the right expected value is replaced")
    equal(await b.get(k), b"x", "the desired value is stored")
    equal(await b.compare_and_swap(k, b"v", b"y"), (False, b"x"), "a stale expected value is told the stored one")
    equal(await a.compare_and_swap(m, b"old", b"new"), (False, b""), "a wrong expected value on a missing key fails")
    equal(await b.check([m]), False, "a wrong expected value on a missing key creates nothing")
    await a.set(e, b"")
    equal(await a.compare_and_swap(e, b"x", b"y"), (False, b""), "an empty value is not any other")
    equal(await a.compare_and_swap(e, b"", b"z"), (True, b"z"), "an empty expected value matches an empty value")
    equal(await a.compare_and_swap(e, b"z", b""), (True, b""), "a value can be swapped for an empty one")
    equal(await b.check([e]), True, "swapping for an empty value keeps the key")


@check("compare_and_swap compares and stores exact bytes (defects.md R61)")
async def compare_and_swap_bytes(kit: Kit, store: Store) -> None:
    key, held = kit.key(), b""
    for name, value in [*_VALUES.items(), ("empty again", b"")]:
        equal(await store.compare_and_swap(key, held, value), (True, value), f"the value before is matched ({name})")
        equal(await store.get(key), value, f"the desired value is stored exactly ({name})")
        wrong = value + b"\0"
        equal(await store.compare_and_swap(key, wrong, b"no"), (False, value), f"one more byte is no match ({name})")
        held = value


@check("compare_and_swap is atomic: of those that expect one value one wins", clients=2)
async def compare_and_swap_races(kit: Kit, a: Store, b: Store) -> None:
    key, rounds, each = kit.key(), 10, 4

    async def climb(store: Store) -> None:
        for _ in range(rounds):
            held = await store.peek(key) or b""
            while True:
                swapped, now = await store.compare_and_swap(key, held, b"%d" % (int(held or b"0") + 1))
                if swapped:
                    break
                expect(now != held, "a failed swap returns a value that differs from the expected one")
                held = now

    async with anyio.create_task_group() as group:
        for index in range(each):
            group.start_soon(climb, (a, b)[index % 2])
    equal(await a.get(key), b"%d" % (rounds * each), "no swap is lost and none counts twice")


@check("compare_set returns what torch's does")
async def compare_set_table(kit: Kit, store: Store) -> None:
    k, m = kit.keys("k", "m")
    equal(await store.compare_set(k, b"", b"v"), b"v", "a swap returns the desired value")
    equal(await store.compare_set(k, b"", b"w"), b"v", "a failed swap returns the stored value")
    equal(await store.compare_set(k, b"v", b"x"), b"x", "a swap returns the desired value")
    equal(await store.compare_set(k, b"v", b"y"), b"x", "a failed swap returns the stored value")
    equal(await store.get(k), b"x", "a failed swap changes nothing")
    equal(await store.compare_set(m, b"old", b"new"), b"old", "a missing key returns the expected value itself")
    equal(await store.check([m]), False, "a wrong expected value on a missing key creates nothing")


@check("add counts from 0 in decimal text that set, get, append and compare_and_swap share (defects.md R62)", clients=2)
async def add_and_others(kit: Kit, a: Store, b: Store) -> None:
    n, zero = kit.keys("n", "zero")
    equal(await a.add(n, 5), 5, "add on a missing key starts from 0")
    equal(await b.get(n), b"5", "get after add returns decimal text")
    await a.set(n, b"7")
    equal(await b.add(n, 1), 8, "add goes on from what was set")
    equal(await a.get(n), b"8", "the sum is stored")
    equal(await b.add(n, -20), -12, "a counter may go below 0")
    equal(await a.get(n), b"-12", "a negative number is stored as decimal text")
    equal(await b.add(n, 13), 1, "a negative counter goes on")
    await a.append(n, b"2")
    equal(await b.add(n, 1), 13, "add reads what append wrote")
    equal(await a.compare_and_swap(n, b"13", b"40"), (True, b"40"), "compare_and_swap reads what add wrote")
    equal(await b.add(n, 2), 42, "add reads what compare_and_swap wrote")
    equal(await a.add(zero, 0), 0, "adding 0 returns the counter")
    equal(await b.get(zero), b"0", "adding 0 to a missing key creates it")


@check("add on something that is no number raises ValueError, changes nothing and hurts nobody", clients=2)
async def add_no_number(kit: Kit, a: Store, b: Store) -> None:
    for name, value in (("text", b"abc"), ("no UTF-8", b"\xff"), ("fraction", b"1.5"), ("empty", b"")):
        key = kit.key(name)
        await a.set(key, value)
        with raises(ValueError, f"add on {value!r} raises"):
            await a.add(key, 1)
        equal(await b.get(key), value, "the value stays as it is")
    equal(await a.add(kit.key("after"), 1), 1, "the caller's store still works")
    equal(await b.add(kit.key("after"), 1), 2, "others' stores still work")


@check("add is atomic", clients=2)
async def add_races(kit: Kit, a: Store, b: Store) -> None:
    key, seen = kit.key(), list[int]()

    async def count(store: Store) -> None:
        for _ in range(10):
            seen.append(await store.add(key, 1))

    async with anyio.create_task_group() as group:
        for index in range(4):
            group.start_soon(count, (a, b)[index % 2])
    equal(sorted(seen), list(range(1, 41)), "every add returns a sum of its own")


@check("append adds at the end, from nothing on a missing key, and loses nothing to a race", clients=2)
async def append_values(kit: Kit, a: Store, b: Store) -> None:
    key, raced, empty = kit.keys("key", "raced", "empty")
    await a.append(key, b"a\0")
    equal(await b.get(key), b"a\0", "append creates a missing key")
    await b.append(key, b"\xff\n")
    await a.append(key, b"")
    equal(await a.get(key), b"a\0\xff\n", "append adds at the end")
    await a.append(empty, b"")
    equal(await b.peek(empty), b"", "appending nothing creates the key")

    async def write(store: Store, letter: bytes) -> None:
        for _ in range(10):
            await store.append(raced, letter)

    async with anyio.create_task_group() as group:
        for letter, store in ((b"a", a), (b"b", b), (b"c", a), (b"d", b)):
            group.start_soon(write, store, letter)
    equal(sorted(await a.get(raced)), sorted(b"abcd" * 10), "every append is there once")


@check("check tells whether all keys exist")
async def check_keys(kit: Kit, store: Store) -> None:
    a, b = kit.keys("a", "b")
    equal(await store.check([]), True, "check of no keys is true")
    equal(await store.check([a]), False, "a missing key is not there")
    await store.set(a, b"")
    equal(await store.check([a]), True, "a key with an empty value is there")
    equal(await store.check([a, b]), False, "one missing key is enough")
    equal(await store.check([b, a]), False, "the order of the keys does not matter")
    await store.set(b, b"x")
    equal(await store.check([a, b, a]), True, "a key may be named twice")


@check("delete_key removes a key and tells whether there was one", clients=2)
async def delete_keys(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    equal(await a.delete_key(key), False, "deleting a missing key returns False")
    await a.set(key, b"v")
    equal(await b.delete_key(key), True, "deleting a key returns True")
    equal(await a.peek(key), None, "a deleted key is missing")
    equal(await a.delete_key(key), False, "deleting a deleted key returns False")
    equal(await a.compare_and_swap(key, b"v", b"w"), (False, b""), "a deleted key matches no value")
    equal(await a.add(key, 3), 3, "a deleted counter starts from 0")


@check("num_keys counts the keys", clients=2)
async def count_keys(kit: Kit, a: Store, b: Store) -> None:
    before = await a.num_keys()
    x, y, z, c = kit.keys("x", "y", "z", "c")
    await a.set(x, b"")
    await a.set(x, b"again")
    await b.add(y, 1)
    await a.append(z, b"z")
    equal(await b.num_keys() - before, 3, "every key counts once")
    await a.compare_and_swap(c, b"wrong", b"c")
    equal(await b.num_keys() - before, 3, "a failed swap counts nothing")
    await a.compare_and_swap(c, b"", b"c")
    equal(await b.num_keys() - before, 4, "a swap that creates counts")
    await b.delete_key(x)
    equal(await a.num_keys() - before, 3, "a deleted key does not count")


@check("multi_set and multi_get keep the order of their keys", clients=2)
async def multi_values(kit: Kit, a: Store, b: Store) -> None:
    x, y, z = kit.keys("x", "y", "z")
    await a.multi_set([], [])
    equal(await a.multi_get([]), [], "no keys give no values")
    await a.multi_set([x, y, z], [b"1", b"", b"\xff\0"])
    equal(await b.multi_get([z, x, y]), [b"\xff\0", b"1", b""], "values come in the order of the keys asked for")
    equal(await b.multi_get([x, x]), [b"1", b"1"], "a key may be asked for twice")
    await b.multi_set([x, x], [b"2", b"3"])
    equal(await a.get(x), b"3", "of a key that is given twice the last value counts")


@check("multi_set of lists that differ in length raises ValueError and writes nothing")
async def multi_set_lengths(kit: Kit, store: Store) -> None:
    x, y = kit.keys("x", "y")
    with raises(ValueError, "more keys than values"):
        await store.multi_set([x, y], [b"1"])
    with raises(ValueError, "more values than keys"):
        await store.multi_set([x], [b"1", b"2"])
    equal([await store.peek(x), await store.peek(y)], [None, None], "nothing was written")


@check("any text is a key, and no two are taken for one (defects.md R83)", clients=2)
async def odd_keys(kit: Kit, a: Store, b: Store) -> None:
    keys = [kit.own(key) for key in ODD_KEYS]
    before = await a.num_keys()
    equal([await a.peek(key) for key in keys], [None] * len(keys), "the suite needs a data set of its own")
    for index, key in enumerate(keys):
        await a.set(key, b"%d" % index)
    equal(await b.num_keys() - before, len(keys), "every one counts")
    for index, key in enumerate(keys):
        equal(await b.get(key), b"%d" % index, f"{key!r} has its own value")
    equal(await b.multi_get(keys), [b"%d" % index for index in range(len(keys))], "multi_get takes them")
    equal(await b.delete_key("k"), True, "deleting 'k' says it was there")
    equal(await a.peek("-k"), b"%d" % keys.index("-k"), "deleting 'k' leaves '-k'")
    equal(await a.delete_key("k"), False, "deleting 'k' again says it was not there")
    for key in keys:
        if key != "k":
            equal(await a.delete_key(key), True, f"{key!r} can be deleted")
    equal(await b.num_keys(), before, "all are gone")


@check("a value that is not bytes raises TypeError before anything is sent")
async def wrong_types(kit: Kit, store: Store) -> None:
    key = kit.key()
    text: object = "text"
    with raises(TypeError, "set of a str"):
        await store.set(key, text)  # type: ignore[arg-type]
    with raises(TypeError, "append of a str"):
        await store.append(key, text)  # type: ignore[arg-type]
    with raises(TypeError, "a key that is bytes"):
        await store.set(b"key", b"v")  # type: ignore[arg-type]
    equal(await store.peek(key), None, "nothing was written")


CHECKS: tuple[Check, ...] = (
    set_and_read,
    exact_bytes,
    peek_missing,
    compare_and_swap_table,
    compare_and_swap_bytes,
    compare_and_swap_races,
    compare_set_table,
    add_and_others,
    add_no_number,
    add_races,
    append_values,
    check_keys,
    delete_keys,
    count_keys,
    multi_values,
    multi_set_lengths,
    odd_keys,
    wrong_types,
)
