from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest

from arendezvous import RendezvousTimeoutError, RendezvousUsageError, StoreTimeoutError
from arendezvous.sync import HashStore, Store
from arendezvous.sync.portal import Portal
from arendezvous.sync.store import seconds_of
from tests.support import SLOW

pytestmark = pytest.mark.usefixtures("own")


def test_every_call_of_the_protocol_blocks_and_answers() -> None:
    with HashStore() as store:
        store.set("a", b"1")
        store.set("text", "grüße")
        assert store.get("a") == b"1"
        assert store.get("text") == "grüße".encode()
        assert store.peek("missing") is None
        assert store.has("a")
        assert not store.has("missing")
        assert store.check(["a", "text"])
        store.wait(["a", "text"])
        assert store.add("n", 5) == 5
        assert store.add("n", -2) == 3
        assert store.compare_and_swap("s", b"", b"x") == (True, b"x")
        assert store.compare_and_swap("s", "wrong", "y") == (False, b"x")
        assert store.compare_and_swap("none", b"wrong", b"y") == (False, b"")
        assert store.compare_set("none", "wrong", "y") == b"wrong"
        assert store.compare_set("s", "x", "y") == b"y"
        store.append("s", "z")
        assert store.multi_get(["s", "a"]) == [b"yz", b"1"]
        store.multi_set(["p/1", "p/2"], ["one", b"two"])
        assert store.scan("p/") == [("p/1", b"one"), ("p/2", b"two")]
        assert store.num_keys() == 6
        assert store.delete_key("s")
        assert not store.delete_key("s")
        assert store.leases("") == []
        assert store.watch("a", None) == b"1"


def test_errors_arrive_as_they_are() -> None:
    with HashStore() as store:
        store.set("word", "x")
        with pytest.raises(ValueError, match="word"):
            store.add("word", 1)
        with pytest.raises(ValueError, match="values"):
            store.multi_set(["a"], [])
        with pytest.raises(TypeError):
            store.set("a", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0.05, timedelta(seconds=0.05)])
def test_a_wait_ends_with_the_missing_keys_by_name(timeout: float | timedelta) -> None:
    store = HashStore()
    with pytest.raises(StoreTimeoutError, match="nothing"):
        store.get("nothing", timeout)
    with pytest.raises(StoreTimeoutError, match="nothing"):
        store.wait(["nothing"], timeout)
    with pytest.raises(RendezvousTimeoutError, match=r"HashStore.watch\(\)|MemoryStore.watch\(\)"):
        store.watch("nothing", None, timeout)
    store.set_timeout(timeout)
    assert store.timeout == timedelta(seconds=0.05)
    with pytest.raises(TimeoutError, match="nothing"):  # also torch's class of error
        store.multi_get(["nothing"])
    with pytest.raises(RuntimeError, match="nothing"):
        store.get("nothing")
    store.set_timeout(None)
    assert store.timeout == timedelta.max


@pytest.mark.parametrize("value", [0, -1, timedelta(0), float("nan")])
def test_a_timeout_is_positive(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="timeout"):
        seconds_of("timeout", value)
    with pytest.raises(ValueError, match="timeout"):
        HashStore(timeout=value)
    with pytest.raises(ValueError, match="timeout"):
        HashStore().get("key", value)


def test_one_thread_waits_while_another_writes() -> None:
    store = HashStore()
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(store.get("late"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    store.set("late", b"here")
    for thread in threads:
        thread.join(20 * SLOW)
    assert found == [b"here"] * 8


def test_a_closed_store_says_so() -> None:
    store = HashStore()
    store.set("a", b"1")
    store.close()
    store.close()
    with pytest.raises(RendezvousUsageError, match="<MemoryStore in memory> is closed"):
        store.get("a")
    HashStore().close()  # never opened


def test_a_store_that_is_collected_is_closed(own: Portal) -> None:
    store = HashStore()
    store.set("a", b"1")
    resident = store.open()
    assert len(own._residents) == 1
    del store
    gc.collect()
    assert resident._ended.wait(20 * SLOW)
    assert not own._residents


def test_the_stores_of_this_module_are_stores() -> None:
    assert isinstance(HashStore(), Store)
