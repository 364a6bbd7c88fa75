"""The state of a run as one fenced value in a store."""

from __future__ import annotations

import anyio
import pytest

from arendezvous.backend import P10dRendezvousBackend
from arendezvous.errors import RendezvousConnectionError, RendezvousStateError
from arendezvous.store.memory import MemoryStore
from tests.handler.kit import Line
from tests.support import fail_after


def backend(store: object, run_id: str = "run", **options: str) -> P10dRendezvousBackend:
    return P10dRendezvousBackend(store, run_id, **options)  # type: ignore[arg-type]


async def test_there_is_no_state_before_the_first_one_and_making_a_backend_writes_nothing() -> None:
    async with MemoryStore() as store:
        assert await backend(store).get_state() is None
        assert await store.num_keys() == 0


async def test_what_was_set_is_what_is_got() -> None:
    async with MemoryStore() as store:
        for state in (b"x", b"\x00" * 20, b"\xff\xfe" * 5000):
            one = backend(store)
            got = await one.get_state()
            written = await one.set_state(state, got[1] if got else None)
            assert written is not None
            assert written[0] == state
            assert written[2]
            assert await backend(store).get_state() == written[:2]


async def test_a_create_over_a_state_changes_nothing_and_says_what_is_there() -> None:
    async with MemoryStore() as store:
        first = await backend(store).set_state(b"first")
        assert first is not None
        assert await backend(store).set_state(b"second") == (b"first", first[1], False)
        assert await backend(store).set_state(b"second", 0) == (b"first", first[1], False)


async def test_the_current_token_replaces_and_an_old_one_does_not() -> None:
    async with MemoryStore() as store:
        one, two = backend(store), backend(store)
        first = await one.set_state(b"1")
        assert first is not None
        second = await two.set_state(b"2", first[1])
        assert second is not None
        assert second[1] != first[1]
        assert await one.set_state(b"3", first[1]) == (b"2", second[1], False)
        assert await two.get_state() == (b"2", second[1])


@pytest.mark.parametrize("token", [True, -1, 10**40, 12345, "1", 1.0, b"1"], ids=repr)
async def test_what_is_no_token_of_ours_matches_nothing(token: object) -> None:
    """D11: a boolean, a negative or a made-up number."""
    async with MemoryStore() as store:
        assert await backend(store).set_state(b"x", token) is None  # type: ignore[arg-type]
        first = await backend(store).set_state(b"1")
        assert first is not None
        assert await backend(store).set_state(b"x", token) == (b"1", first[1], False)  # type: ignore[arg-type]


async def test_a_rejected_write_of_equal_bytes_is_reported_as_rejected() -> None:
    """D55."""
    async with MemoryStore() as store:
        one, two = backend(store), backend(store)
        first = await one.set_state(b"same")
        assert first is not None
        await two.set_state(b"same", first[1])
        got = await one.set_state(b"same", first[1])
        assert got is not None
        assert not got[2]


async def test_a_token_of_a_lost_state_does_not_fit_the_new_one() -> None:
    """D11: the counter starts again, the epoch does not."""
    async with MemoryStore() as store:
        old = backend(store)
        first = await old.set_state(b"A")
        assert first is not None
        await store.delete_key(old.key)
        assert await old.set_state(b"A2", first[1]) is None
        second = await backend(store).set_state(b"B")
        assert second is not None
        assert await old.set_state(b"A3", first[1]) == (b"B", second[1], False)
        assert await old.get_state() == (b"B", second[1])


async def test_tokens_are_integers_with_a_random_epoch_above_a_counter() -> None:
    """design.md 3."""
    async with MemoryStore() as store:
        one = backend(store)
        first = await one.set_state(b"1")
        assert first is not None
        second = await one.set_state(b"2", first[1])
        assert second is not None
        assert second[1] == first[1] + 1
        assert first[1] >> 64 > 0
        other = await backend(store, "other").set_state(b"1")
        assert other is not None
        assert other[1] >> 64 != first[1] >> 64


async def test_an_own_write_needs_no_read_before_it() -> None:
    async with MemoryStore() as store:
        line = Line(store)
        one = backend(line)
        first = await one.set_state(b"1")
        assert first is not None
        await one.set_state(b"2", first[1])
        assert [name for name, _ in line.calls] == ["compare_and_swap", "compare_and_swap"]


@pytest.mark.parametrize("raw", [b"\x00", b"short", b"123456789012345"])
async def test_bytes_that_are_too_short_are_a_state_error_that_names_the_way_out(raw: bytes) -> None:
    """D39: and a repaired key is read as if nothing had been."""
    async with MemoryStore() as store:
        one = backend(store)
        await store.set(one.key, raw)
        with pytest.raises(RendezvousStateError, match="corrupt.*Reset it"):
            await one.get_state()
        with pytest.raises(RendezvousStateError):
            await one.set_state(b"x")
        assert await store.get(one.key) == raw
        await store.set(one.key, b"")
        assert await one.get_state() is None
        assert (await one.set_state(b"x"))[2]  # type: ignore[index]


async def test_a_swap_whose_answer_was_lost_is_settled_by_reading() -> None:
    """P11: our own value standing there is proof that it was written."""
    async with MemoryStore() as store:
        line = Line(store)
        one = backend(line)

        async def lose(name: str, args: tuple) -> None:
            if name == "compare_and_swap":
                raise RendezvousConnectionError("the answer was lost")

        line.after = lose
        got = await one.set_state(b"mine")
        assert got is not None
        assert (got[0], got[2]) == (b"mine", True)


async def test_a_swap_of_unknown_outcome_is_an_error_and_not_a_no() -> None:
    """P11: another's value there proves nothing."""
    async with MemoryStore() as store:
        line = Line(store)
        one, two = backend(line), backend(store)

        async def lose(name: str, args: tuple) -> None:
            if name == "compare_and_swap":
                got = await two.get_state()
                await two.set_state(b"another", got[1] if got else None)
                raise RendezvousConnectionError("the answer was lost")

        line.after = lose
        with pytest.raises(RendezvousConnectionError, match="unknown"):
            await one.set_state(b"mine")
        line.after = None
        got = await one.get_state()
        assert got is not None
        assert got[0] == b"another"


async def test_one_connection_error_does_not_poison_the_backend() -> None:
    """D41, D12: and a read that fails is no "no state"."""
    async with MemoryStore() as store:
        line = Line(store)
        one = backend(line)
        await one.set_state(b"1")

        async def fail(name: str, args: tuple) -> None:
            raise RendezvousConnectionError("down")

        line.gate = fail
        for _ in range(3):
            with pytest.raises(RendezvousConnectionError):
                await one.get_state()
        line.gate = None
        got = await one.get_state()
        assert got is not None
        assert got[0] == b"1"


async def test_changed_returns_as_soon_as_the_token_differs() -> None:
    async with MemoryStore() as store:
        one, two = backend(store), backend(store)
        seen = []

        async def watch() -> None:
            token = None
            while len(seen) < 3:
                got = await one.changed(token)
                seen.append(got)
                token = got[1] if got else None

        async with anyio.create_task_group() as tg:
            tg.start_soon(watch)
            with fail_after(5):
                await anyio.wait_all_tasks_blocked()
                first = await two.set_state(b"1")
                assert first is not None
                await anyio.wait_all_tasks_blocked()
                second = await two.set_state(b"1", first[1])  # equal bytes, another token
                await anyio.wait_all_tasks_blocked()
                await store.delete_key(two.key)
        assert second is not None
        assert seen == [first[:2], second[:2], None]


async def test_changed_is_not_fooled_by_a_token_it_never_saw() -> None:
    async with MemoryStore() as store:
        first = await backend(store).set_state(b"1")
        assert first is not None
        with fail_after(5):
            assert await backend(store).changed(12345) == first[:2]
        with anyio.move_on_after(0.05) as scope:
            await backend(store).changed(first[1])
        assert scope.cancelled_caught


def test_an_empty_run_id_is_refused() -> None:
    """R27, D27."""
    with pytest.raises(ValueError, match="run id"):
        backend(MemoryStore(), "")


async def test_run_ids_never_share_a_key() -> None:
    """D27."""
    store = MemoryStore()
    assert len({backend(store, run_id).key for run_id in ("a", "a/b", "a%2Fb", "a/b/", " a", "ä")}) == 6
    assert backend(store, "a/b").key == "arendezvous/1/a%2Fb/state"
    assert backend(store, "a", key="k").key == "k"
    assert backend(store, "a", name="c10d").name == "c10d"
    assert backend(store, "a").name == "p10d"
    assert backend(store, "a").store is store
