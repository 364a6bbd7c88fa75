"""From a completed round to a member's snapshot."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from arendezvous.core.state import Gone
from arendezvous.errors import RendezvousClosedError, RendezvousStateError, RendezvousTimeoutError
from arendezvous.handler.bootstrap import is_loopback
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import KEYS, Node, form, outcome, params, state_of, until
from tests.support import VIRTUAL, fail_after


@pytest.mark.parametrize(
    ("addr", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("LocalHost", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("node-1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_known_in_every_spelling_without_a_look_up(addr: str, expected: bool) -> None:
    """defects.md 2.12."""
    assert is_loopback(addr) is expected


async def bootstrap_keys(store: MemoryStore) -> list[str]:
    return [key for key, _ in await store.scan(KEYS.prefix + "r/") if key.endswith("bootstrap")]


@VIRTUAL
async def test_each_round_has_one_address_under_a_prefix_of_its_own() -> None:
    """D2, D3, D4: published once per round, by its rank 0, whoever that is."""
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as b:
            first = await form(a, b)
            second = await form(a, b)
            keys = await bootstrap_keys(store)
    assert len(keys) == len(set(keys)) == 2
    assert first[0].bootstrap_store_info == first[1].bootstrap_store_info
    assert second[0].bootstrap_store_info == second[1].bootstrap_store_info
    assert outcome(second) == [(1, 0, 2), (1, 1, 2)]


@VIRTUAL
async def test_only_rank_0_reserves_a_port_and_gives_it_up_with_its_round() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as b:
            one, two = await form(a, b)
            assert one.reservation is not None
            assert two.reservation is None
            again = await form(a, b)
            assert again[0].bootstrap_store_info is not None
            assert one.bootstrap_store_info is not None
            assert one.reservation._sock is None, "the port of a round that is over is still held"
            assert again[0].reservation is not None
            assert again[0].reservation._sock is not None
        assert again[0].reservation._sock is not None
    assert again[0].reservation._sock is None


class Slow:
    """Holds the publishing of one node up."""

    def __init__(self, node: Node) -> None:
        self.reached, self.go = anyio.Event(), anyio.Event()
        node.line.gate = self

    async def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "compare_and_swap" and args[0].endswith("bootstrap"):
            self.reached.set()
            await self.go.wait()


@VIRTUAL
async def test_members_wait_for_a_slow_rank_0_and_then_have_the_frozen_world() -> None:
    """D16: the snapshot is that of the completion, whatever happened while the address was awaited."""
    async with MemoryStore() as store, Node(store, params(3, 3, "127.0.0.2")) as a:
        async with Node(store, params(3, 3, "127.0.0.3")) as b, Node(store, params(3, 3, "127.0.0.4")) as c:
            slow = Slow(a)
            infos = {}

            async def join(name: str, node: Node) -> None:
                infos[name] = await node.join()

            async with anyio.create_task_group() as tg:
                for name, node in (("a", a), ("b", b), ("c", c)):
                    tg.start_soon(join, name, node)
                with fail_after(5):
                    await slow.reached.wait()
                await anyio.sleep(0.2)
                c.line.cut()
                with fail_after(5):
                    await until(lambda: _gone(store, c))
                slow.go.set()
                with fail_after(5):
                    await until(lambda: {"a", "b"} <= infos.keys())
                assert infos["a"].participants == infos["b"].participants
                assert [(i.rank, i.world_size) for i in (infos["a"], infos["b"])] == [(0, 3), (1, 3)]
                tg.cancel_scope.cancel()


async def _gone(store: MemoryStore, node: Node) -> bool:
    state = await state_of(store)
    return state is not None and state.gone.get(node.inc) is Gone.LOST


@VIRTUAL
async def test_a_rank_0_that_published_and_then_left_is_no_reason_to_miss_the_round() -> None:
    """D8, D46."""
    async with MemoryStore() as store, Node(store, params(1, 2, "127.0.0.2", last_call_timeout=1)) as a:
        async with Node(store, params(1, 2, "127.0.0.3", last_call_timeout=1)) as b:
            held = anyio.Event()

            async def late(name: str, args: tuple) -> None:
                if name == "watch" and args[0].endswith("bootstrap"):
                    await held.wait()

            b.line.gate = late
            got = []

            async def join() -> None:
                got.append(await b.join())

            async with anyio.create_task_group() as tg:
                tg.start_soon(join)
                await a.join()
                await a.handler.leave()
                with fail_after(5):
                    await until(lambda: got)
            assert outcome(got) == [(0, 1, 2)]
            assert await b.handler.num_nodes_waiting() == 1


@VIRTUAL
async def test_a_rank_0_that_never_publishes_ends_in_an_error_that_names_it() -> None:
    """D31, D17: bounded by the join time-out; no info without an address."""
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as b, anyio.create_task_group() as tg:
            Slow(a)
            tg.start_soon(a.join)
            began = anyio.current_time()
            with pytest.raises(RendezvousTimeoutError, match="published no bootstrap address") as caught:
                await b.join()
            assert anyio.current_time() - began < 6.5
            assert repr(a.handler.node) in str(caught.value)
            state = await state_of(store)
            assert state is not None
            assert not state.listed(b.inc)
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_run_closed_before_rank_0_died_without_publishing_does_not_hang() -> None:
    """D46 and its limit: nobody watches rank 0 any more, so the wait is short."""
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2", join_timeout=600)) as a:
        async with Node(store, params(2, 2, "127.0.0.3", join_timeout=600)) as b, anyio.create_task_group() as tg:
            slow = Slow(a)
            tg.start_soon(a.join)

            async def close() -> None:
                await slow.reached.wait()
                a.line.cut()
                async with Node(store, params(2, 2)) as closer:
                    await closer.handler.set_closed()

            tg.start_soon(close)
            with fail_after(5), pytest.raises(RendezvousClosedError):
                await b.join()
            tg.cancel_scope.cancel()


@VIRTUAL
async def test_a_damaged_address_is_an_error_and_the_member_leaves() -> None:
    async with MemoryStore() as store, Node(store, params(2, 2, "127.0.0.2")) as a:
        async with Node(store, params(2, 2, "127.0.0.3")) as b:

            async def spoil(name: str, args: tuple) -> None:
                if name == "compare_and_swap" and args[0].endswith("bootstrap"):
                    await store.set(args[0], b"\x80\x04pickled")

            a.line.gate = spoil

            async def join(node: Node) -> None:
                with pytest.raises(RendezvousStateError, match="bootstrap address of the round is damaged"):
                    await node.join()

            with fail_after(10):
                async with anyio.create_task_group() as tg:
                    tg.start_soon(join, a)
                    tg.start_soon(join, b)
            state = await state_of(store)
            assert state is not None
            assert state.ring == ()
