from __future__ import annotations

import signal
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import arendezvous
from arendezvous import RendezvousConnectionError, RendezvousUsageError, StoreTimeoutError
from arendezvous.sync import FileStore, HashStore, MemoryStore, PrefixStore, TCPStore, TCPStoreServer
from tests.support import SLOW

from .scripts import run, started

pytestmark = pytest.mark.usefixtures("own")


def test_a_master_serves_and_clients_share_its_keys() -> None:
    with TCPStore("127.0.0.1", 0, is_master=True) as master:
        assert master.port > 0
        assert master.master_addr_port == ("127.0.0.1", master.port)
        assert master.timeout == timedelta(seconds=300)
        client = TCPStore("127.0.0.1", master.port)
        client.set("a", b"1")
        assert master.get("a") == b"1"
        assert f"127.0.0.1:{master.port}" in repr(client)
        client.stop()
        with pytest.raises(RendezvousUsageError, match="closed"):
            client.get("a")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", master.port)) != 0  # nothing serves there any more


def test_a_client_connects_with_its_first_call_and_gives_up_after_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = TCPStore("127.0.0.1", port, timeout=0.3)
    with pytest.raises(RendezvousConnectionError, match=str(port)):
        client.set("a", b"1")
    with TCPStore("127.0.0.1", port, is_master=True) as master:
        client.set("a", b"1")  # a store that could not be opened is tried again
        assert master.get("a") == b"1"
        client.close()


def test_mistakes_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="port"):
        TCPStore("127.0.0.1", 0)
    with pytest.raises(ValueError, match="host"):
        TCPStore("", 29400)
    with pytest.raises(ValueError, match="timeout"):
        TCPStore("127.0.0.1", 29400, timeout=-1)
    with TCPStoreServer() as server, pytest.raises(RendezvousConnectionError, match=str(server.port)):
        TCPStore("127.0.0.1", server.port, is_master=True)


def test_a_fixed_world_waits_for_its_workers() -> None:
    found: list[TCPStore] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = [
        threading.Thread(target=lambda rank=rank: found.append(TCPStore("127.0.0.1", port, 3, rank == 0)))  # type: ignore[misc]
        for rank in range(3)
    ]
    for thread in threads[:2]:
        thread.start()
    threads[0].join(0.3)
    assert not found
    threads[2].start()
    for thread in threads:
        thread.join(20 * SLOW)
    assert len(found) == 3
    for store in sorted(found, key=lambda store: store._server is not None):
        store.close()


def test_workers_that_do_not_come_are_counted() -> None:
    with pytest.raises(StoreTimeoutError, match=r"1 of 2 workers came to the store at 127.0.0.1:\d+ within 0.2 s"):
        TCPStore("127.0.0.1", 0, 2, True, timeout=0.2)
    with TCPStore("127.0.0.1", 0, 2, True, timeout=0.2, wait_for_workers=False) as store:
        assert store.num_keys() == 0


def test_a_server_counts_its_clients_and_stops() -> None:
    with TCPStoreServer("127.0.0.1", bind="127.0.0.1") as server:
        assert server.endpoint == f"127.0.0.1:{server.port}"
        assert server.clients == 0
        with TCPStore("127.0.0.1", server.port) as store:
            store.set("a", b"1")
            assert server.clients == 1
        server.stop()
        server.stop()


def test_a_file_is_shared(tmp_path: Path) -> None:
    with FileStore(tmp_path / "file") as one, FileStore(str(tmp_path / "file"), 2) as two:
        one.set("a", b"1")
        assert two.get("a") == b"1"
        assert one.path == str(tmp_path / "file")
    with pytest.raises(RendezvousConnectionError, match="no/where"):
        FileStore(tmp_path / "no" / "where").set("a", b"1")


def test_a_prefix_looks_at_a_part_and_closing_it_leaves_the_whole_open() -> None:
    whole = HashStore()
    part = PrefixStore("job/", whole)
    deeper = PrefixStore("round", part)
    deeper.set("a", b"1")
    assert part.underlying_store is whole
    ((key, value),) = whole.scan("")
    assert (key.startswith("job/"), "round" in key, key.endswith("a"), value) == (True, True, True, b"1")
    assert deeper.scan("") == [("a", b"1")]
    with pytest.raises(StoreTimeoutError):
        part.get("missing", 0.05)
    part.close()
    with pytest.raises(RendezvousUsageError, match="closed"):
        part.get("a")
    assert whole.num_keys() == 1
    with pytest.raises(TypeError, match="not MemoryStore"):
        PrefixStore("x", arendezvous.MemoryStore())  # type: ignore[arg-type]


def test_the_names_of_the_store_in_memory() -> None:
    assert HashStore is MemoryStore


MASTER = """
import sys
from arendezvous.sync import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True)
print(store.port, flush=True)
sys.stdin.readline()
print(store.get("from")[0], flush=True)
"""


def test_processes_meet_and_the_end_of_one_needs_no_close(loop: str) -> None:
    with started(MASTER, loop) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with TCPStore("127.0.0.1", port) as store:
            store.set("from", b"\x07")
        out, err = process.communicate("go\n", timeout=20 * SLOW)
    assert (out, err, process.returncode) == ("7\n", "", 0)


COMPUTING = """
import time
from arendezvous.sync import TCPStoreServer
server = TCPStoreServer()
print(server.port, flush=True)
end = time.monotonic() + 600
while time.monotonic() < end:
    sum(range(1000))
"""


def test_it_serves_while_the_main_thread_computes(loop: str) -> None:
    with started(COMPUTING, loop) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with TCPStore("127.0.0.1", port, timeout=20 * SLOW) as store:
            for number in range(20):
                assert store.add("n", 1) == number + 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20 * SLOW)


INTERRUPTED = """
import signal, threading, os, time
from arendezvous.sync import HashStore
store = HashStore()
store.set("a", b"1")
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    store.get("never")
except KeyboardInterrupt:
    print("interrupted", store.get("a"))
"""


def test_ctrl_c_ends_a_wait_and_the_store_goes_on(loop: str) -> None:
    done = run(INTERRUPTED, loop)
    assert done.stdout == "interrupted b'1'\n", done.stderr
