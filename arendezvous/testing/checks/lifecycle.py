"""Checks of opening and closing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import RendezvousConnectionError, RendezvousError
from ...store.base import Capabilities
from .kit import Check, Kit, Pending, check, equal, expect, raises

if TYPE_CHECKING:
    from ...store.base import Store

__all__ = ("CHECKS",)


@check("a store says where its data is and what it does natively", clients=2)
async def describes_itself(kit: Kit, a: Store, b: Store) -> None:
    expect(isinstance(a.capabilities, Capabilities), f"capabilities is a Capabilities, not {a.capabilities!r}")
    expect(isinstance(a.endpoint, str) and a.endpoint, f"endpoint is a text, not {a.endpoint!r}")
    equal(a.endpoint, b.endpoint, "two clients of one data set name one place")
    equal(await a.peek(kit.key()), None, "the store works")


@check("aclose ends the calls in flight, is idempotent, and later calls are refused", clients=2, closes=True)
async def closing(kit: Kit, a: Store, b: Store) -> None:
    key = kit.key()
    async with kit.tasks() as tasks:
        flying: list[tuple[str, Pending[Any]]] = [
            ("get", await tasks.waiting("get waits", a.get, key)),
            ("wait", await tasks.waiting("wait waits", a.wait, [key])),
            ("multi_get", await tasks.waiting("multi_get waits", a.multi_get, [key])),
            ("watch", await tasks.waiting("watch waits", a.watch, key, None)),
        ]
        others = tasks.start(b.get, key) if b is not a else None
        await a.aclose()
        for name, pending in flying:
            await pending.error(RendezvousConnectionError, f"{name} in flight raises when the store is closed")
        await a.aclose()
        for name, call in (
            ("set", lambda: a.set(key, b"v")),
            ("get", lambda: a.get(key)),
            ("peek", lambda: a.peek(key)),
            ("compare_and_swap", lambda: a.compare_and_swap(key, b"", b"v")),
            ("add", lambda: a.add(key, 1)),
            ("check", lambda: a.check([key])),
            ("delete_key", lambda: a.delete_key(key)),
            ("watch", lambda: a.watch(key, b"v")),
        ):
            with raises(RendezvousError, f"{name} on a closed store is refused"):
                await call()
        if others is not None:
            await b.set(key, b"v")
            equal(await others.result("another client's call goes on"), b"v", "get returns the value")
            await b.delete_key(key)


CHECKS: tuple[Check, ...] = (
    describes_itself,
    closing,
)
