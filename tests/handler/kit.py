"""What the handler tests share: fast settings, a store whose calls can be held up, nodes and their worlds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import anyio

from arendezvous.core.codec import decode_state
from arendezvous.core.state import RendezvousState, invariants
from arendezvous.handler.dynamic import DynamicRendezvousHandler
from arendezvous.handler.entropy import SystemEnvironment
from arendezvous.handler.info import RendezvousInfo
from arendezvous.handler.keys import Keys
from arendezvous.params import RendezvousParameters
from arendezvous.store.base import LeaseInfo, Store

RUN = "run"
KEYS = Keys(RUN)
HEADER = 16  # bytes of fencing token before the state, as the p10d backend stores it

#: Seconds; `ka=0.1x3, last_call=0.2, join=5, close=1` of defects.md.
FAST = {
    "keep_alive_interval": 0.1,
    "keep_alive_max_attempt": 3,
    "last_call_timeout": 0.2,
    "join_timeout": 5,
    "close_timeout": 1,
}
EXPIRY = 0.3
#: For real clocks on a busy machine: nobody is taken for dead because the processor was elsewhere.
CALM = {**FAST, "keep_alive_interval": 1.0, "keep_alive_max_attempt": 5, "join_timeout": 30, "close_timeout": 10}


def params(low: int = 1, high: int = 1, addr: str | None = "127.0.0.1", **changes: Any) -> RendezvousParameters:
    """Parameters of one run with fast settings."""
    run_id = changes.pop("run_id", RUN)
    base = changes.pop("base", FAST)
    return RendezvousParameters("p10d", "", run_id, low, high, addr, **{**base, **changes})


class Line:
    """One node's line to a store: its calls can be counted, held up, cut off and made to fail.

    ``gate`` is awaited before each call with its name and arguments; ``after`` once it has its answer.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.gate: Callable[[str, tuple[Any, ...]], Awaitable[None]] | None = None
        self.after: Callable[[str, tuple[Any, ...]], Awaitable[None]] | None = None
        self._open = anyio.Event()
        self._open.set()

    def cut(self) -> None:
        """From now on nothing gets through in either direction, as when a host vanishes; :meth:`mend` ends it."""
        self._open = anyio.Event()

    def mend(self) -> None:
        """Let everything through that waits, and all that follows."""
        self._open.set()

    def written(self) -> list[tuple[str, str]]:
        """The calls that may have changed the store, heartbeats apart: name and key."""
        writing = {"set", "compare_and_swap", "compare_set", "add", "append", "delete_key", "multi_set"}
        return [(name, args[0]) for name, args in self.calls if name in writing]

    async def _through(self, name: str, args: tuple[Any, ...], call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append((name, args))
        await self._open.wait()
        if self.gate is not None:
            await self.gate(name, args)
        answer = await call()
        await self._open.wait()
        if self.after is not None:
            await self.after(name, args)
        return answer

    @property
    def endpoint(self) -> str:
        return self.store.endpoint

    @property
    def capabilities(self) -> Any:
        return self.store.capabilities

    def limit(self, seconds: float | None) -> AbstractContextManager[None]:
        return self.store.limit(seconds)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def call(*args: Any) -> Any:
            return await self._through(name, args, lambda: method(*args))

        return call

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        answer: list[LeaseInfo] = await self._through("leases", (prefix,), lambda: self.store.leases(prefix))
        return answer

    @asynccontextmanager
    async def lease(self, ttl: float) -> AsyncIterator[LeaseOnLine]:
        line = self
        await self._through("lease", (ttl,), anyio.lowlevel.checkpoint)
        context = self.store.lease(ttl)
        lease = await context.__aenter__()
        try:
            yield LeaseOnLine(line, lease)
        finally:
            # A clean end is a call as well: who is cut off does not get it through.
            await self._through("lease_end", (), lambda: context.__aexit__(None, None, None))


class LeaseOnLine:
    """A lease over a :class:`Line`."""

    def __init__(self, line: Line, lease: Any) -> None:
        self._line, self._lease = line, lease

    async def set(self, key: str, value: bytes) -> None:
        await self._line._through("lease_set", (key, value), lambda: self._lease.set(key, value))


class Skewed(SystemEnvironment):
    """A clock that started elsewhere and runs at a pace of its own; ``jump`` sets it forward or back at once."""

    def __init__(self, offset: float = 0.0, rate: float = 1.0) -> None:
        super().__init__()
        self.offset, self.rate = offset, rate

    def now(self) -> float:
        return self.offset + self.rate * anyio.current_time()

    def deadline(self, at: float) -> float:
        # A nanosecond late rather than a rounding error early, or who wakes would find that it is not yet time.
        return (at - self.offset) / self.rate + 1e-9


class Node:
    """A handler and its line."""

    def __init__(self, store: Store, settings: RendezvousParameters, env: Any = None) -> None:
        self.line = Line(store)
        self.handler = DynamicRendezvousHandler.from_store(self.line, settings, env=env)  # type: ignore[arg-type]

    async def __aenter__(self) -> Node:
        await self.handler.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        return await self.handler.__aexit__(*exc)

    async def join(self) -> RendezvousInfo:
        return await self.handler.next_rendezvous()

    @property
    def inc(self) -> bytes:
        return self.handler._executor.me.inc  # type: ignore[union-attr]


async def together(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Await all calls at once; their results in order."""
    results: list[Any] = [None] * len(calls)

    async def one(k: int, call: Callable[[], Awaitable[Any]]) -> None:
        results[k] = await call()

    async with anyio.create_task_group() as tg:
        for k, call in enumerate(calls):
            tg.start_soon(one, k, call)
    return results


async def form(*nodes: Node) -> list[RendezvousInfo]:
    """Let all nodes join at once and return their infos in order."""
    return await together(*(node.join for node in nodes))


async def state_of(store: Store, run_id: str = RUN) -> RendezvousState | None:
    """The agreed state as it is stored, after a look at its invariants."""
    raw = await store.peek(Keys(run_id).state)
    if not raw:
        return None
    state = decode_state(raw[HEADER:])
    assert invariants(state) == []
    return state


async def until(condition: Callable[[], Any], every: float = 0.01) -> None:
    """Wait until a condition holds, asynchronous or not; bounded by whoever calls."""
    while True:
        answer = condition()
        if hasattr(answer, "__await__"):
            answer = await answer
        if answer:
            return
        await anyio.sleep(every)


def outcome(infos: Sequence[RendezvousInfo]) -> list[tuple[int, int, int]]:
    """(round, rank, world size) of each."""
    return [(info.round, info.rank, info.world_size) for info in infos]
