"""The blocking side of a file store."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from arendezvous.errors import RendezvousConnectionError, RendezvousStateError, RendezvousUsageError
from arendezvous.store import filedisk
from arendezvous.store.filedisk import COMPACT_MIN, Disk
from arendezvous.store.filelocks import Busy, Held
from arendezvous.store.filelog import MAGIC, Append, Birth, Put, Record, Replica, encode_frame
from arendezvous.store.hostclock import host_clock, host_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_T = TypeVar("_T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_disk(path: Path) -> Iterator[Callable[[], Disk]]:
    disks: list[Disk] = []

    def opened() -> Disk:
        disks.append(Disk(str(path)))
        return disks[-1]

    yield opened
    for disk in disks:
        disk.close()


FORKER = """
import os, sys, time
from arendezvous.store.filedisk import Disk
from arendezvous.store.filelocks import Busy, Held
from arendezvous.store.filelog import Put

def insist(call):
    while True:
        try:
            return call()
        except Busy:
            time.sleep(0.001)

path = sys.argv[1]
disk, held = Disk(path), Held()
insist(lambda: disk.beat(held, 60.0, b"theirs", b"1"))
read, write = os.pipe()
if os.fork() == 0:
    targets = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    mine = [target for target in targets if target.startswith(path)]
    insist(lambda: disk.run(lambda replica: ([Put(b"child", repr(mine).encode())], None), True))
    os.read(0, 1)
    os._exit(0)
os.read(read, 1)
"""


def write(disk: Disk, *records: Record) -> None:
    disk.run(lambda replica: (records, None), True)


def read(disk: Disk) -> dict[bytes, bytes]:
    return disk.run(lambda replica: ((), dict(replica.scan(b""))), False)


def insist(call: Callable[[], _T]) -> _T:
    """Make a call until the lock is free."""
    while True:
        try:
            return call()
        except Busy:
            time.sleep(0.001)


def fds(under: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(under)):
            found.append(target)
    return found


def test_what_one_writes_the_other_reads(open_disk: Callable[[], Disk]) -> None:
    one, two = open_disk(), open_disk()
    write(one, Put(b"a", b"1"))
    assert read(two) == {b"a": b"1"}
    write(two, Append(b"a", b"2"), Put(b"b", b""))
    assert read(one) == {b"a": b"12", b"b": b""}


def test_a_file_cut_at_any_byte_is_what_it_was_before_the_cut_frame_and_takes_new_ones(path: Path) -> None:
    """What SIGKILL in the middle of a write leaves, at every byte."""
    disk = Disk(str(path))
    states: dict[int, dict[bytes, bytes]] = {0: {}}
    write(disk)
    states[path.stat().st_size] = {}
    for index in range(5):
        write(disk, Put(b"key%d" % index, b"x" * index * 3), Append(b"log", b"%d" % index))
        states[path.stat().st_size] = read(disk)
    disk.close()
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = states[max(end for end in states if end <= size)]
        reader, writer = Disk(str(path)), Disk(str(path))
        assert read(reader) == expected
        write(writer, Put(b"after", b"cut"))
        assert read(reader) == read(writer) == {**expected, b"after": b"cut"}
        reader.close()
        writer.close()
        fresh = Disk(str(path))
        assert read(fresh) == {**expected, b"after": b"cut"}
        fresh.close()


def test_a_torn_tail_that_a_live_reader_has_seen_hides_no_later_write(
    path: Path, open_disk: Callable[[], Disk]
) -> None:
    """Also when the new frame ends where the torn one did."""
    one, two = open_disk(), open_disk()
    write(one, Put(b"a", b"1"))
    frame = encode_frame([Put(b"b", b"2")])
    with path.open("ab") as file:
        file.write(encode_frame([Put(b"torn", b"x" * 100)])[: len(frame)])
    two.poll()
    assert read(two) == {b"a": b"1"}
    write(one, Put(b"b", b"2"))
    two.poll()
    assert dict(two.replica.scan(b"")) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("zeros", [1, 11, 12, 5000, 3 * 2**20])
def test_zeros_at_the_end_are_cut_off(path: Path, open_disk: Callable[[], Disk], zeros: int) -> None:
    write(open_disk(), Put(b"a", b"1"))
    with path.open("ab") as file:
        file.write(bytes(zeros))
    disk = open_disk()
    assert read(disk) == {b"a": b"1"}
    write(disk, Put(b"b", b"2"))
    assert read(open_disk()) == {b"a": b"1", b"b": b"2"}


def test_damage_in_the_middle_is_an_error_that_names_the_path(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk = open_disk()
    write(disk, Put(b"a", b"x" * 100))
    write(disk, Put(b"b", b"y" * 100))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    for _ in range(2):
        with pytest.raises(RendezvousStateError, match=f"{path} is damaged"):
            read(open_disk())


@pytest.mark.parametrize("content", [b"hello", b"#!/bin/sh\n", b"\x89PNG\r\n\x1a\n" + bytes(100), MAGIC + b"x" * 99])
def test_a_foreign_file_is_refused_and_stays_as_it_is(
    path: Path, open_disk: Callable[[], Disk], content: bytes
) -> None:
    path.write_bytes(content)
    for use in (read, write):
        with pytest.raises(RendezvousStateError, match=str(path)):
            use(open_disk())
    assert path.read_bytes() == content


def test_a_large_file_of_zeros_is_not_taken_for_a_new_store(path: Path, open_disk: Callable[[], Disk]) -> None:
    path.write_bytes(bytes(10000))
    with pytest.raises(RendezvousStateError):
        write(open_disk())
    assert path.stat().st_size == 10000


def test_another_format_is_refused_with_both_versions(path: Path, open_disk: Callable[[], Disk]) -> None:
    path.write_bytes(MAGIC + encode_frame([Birth(7, b"s" * 16, 0)]))
    with pytest.raises(RendezvousStateError, match=r"format 7.*format 1"):
        read(open_disk())


def test_an_empty_file_becomes_a_store(path: Path, open_disk: Callable[[], Disk]) -> None:
    path.touch()
    assert read(open_disk()) == {}
    assert path.read_bytes().startswith(MAGIC)


def test_a_cut_by_somebody_else_is_an_error(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk = open_disk()
    write(disk, Put(b"a", b"1"))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RendezvousStateError, match="cut from"):
        read(disk)


def test_the_log_stays_short_and_everybody_follows_the_new_file(path: Path, open_disk: Callable[[], Disk]) -> None:
    one, two = open_disk(), open_disk()
    read(two)
    for index in range(3000):
        write(one, Put(b"key%d" % (index % 7), b"%d" % index * 10))
        if index % 500 == 0:
            two.poll()
    assert path.stat().st_size < COMPACT_MIN + 1000
    two.poll()
    assert two.replica.scan(b"") == one.replica.scan(b"")
    write(two, Put(b"more", b""))
    assert read(one) == read(two) == read(open_disk())
    assert one.replica.birth is not None
    assert one.replica.birth.generation > 1
    assert os.listdir(path.parent) == ["store"]
    assert sorted(fds(path.parent)) == [str(path)] * 3


def test_compaction_keeps_mode_order_and_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path.symlink_to(tmp_path / "real" / "file")
    disk = Disk(str(path))
    write(disk)
    os.chmod(path, 0o640)
    for index in range(2000):
        write(disk, Put(b"%d" % (index % 2), bytes(100)))
    assert path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_size < COMPACT_MIN + 1000
    assert list(read(disk)) == [b"0", b"1"]
    disk.close()


def test_a_large_content_is_not_compacted_over_and_over(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk = open_disk()
    for index in range(300):
        write(disk, Put(b"%d" % index, bytes(1000)))
    assert disk.replica.birth is not None
    assert disk.replica.birth.generation == 0


def test_a_compaction_that_fails_leaves_the_long_log_in_use(
    path: Path, open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, calls = open_disk(), 0

    def refuse(*args: object) -> None:
        nonlocal calls
        calls += 1
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    for index in range(3000):
        write(disk, Put(b"key", b"%d" % index * 20))
    assert path.stat().st_size > COMPACT_MIN
    assert 1 <= calls <= 4
    assert read(open_disk()) == {b"key": b"2999" * 20}
    assert os.listdir(path.parent) == ["store"]


def test_a_draft_left_by_a_killed_compaction_is_overwritten(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk = open_disk()
    (path.parent / "store.new").write_bytes(b"rubbish" * 10000)
    for index in range(2000):
        write(disk, Put(b"key", b"%d" % index * 20))
    assert os.listdir(path.parent) == ["store"]
    assert read(open_disk()) == {b"key": b"1999" * 20}


def test_a_write_that_fails_half_way_is_not_there_and_the_next_one_is(
    path: Path, open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, real = open_disk(), os.pwrite
    write(disk, Put(b"a", b"1"))
    size = path.stat().st_size

    def full(fd: int, data: memoryview, offset: int) -> int:
        if offset > size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:5], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(RendezvousConnectionError, match=f"{path} cannot be written: No space left"):
            write(disk, Put(b"b", b"2"))
    assert path.stat().st_size == size
    assert read(disk) == {b"a": b"1"}
    write(disk, Put(b"c", b"3"))
    assert read(open_disk()) == {b"a": b"1", b"c": b"3"}


def test_short_writes_are_continued(path: Path, open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    write(open_disk(), Put(b"key", b"value"))
    assert read(open_disk()) == {b"key": b"value"}


def test_a_deleted_file_is_named_at_once(path: Path, open_disk: Callable[[], Disk]) -> None:
    """defects.md R79."""
    disk = open_disk()
    write(disk, Put(b"a", b"1"))
    path.unlink()
    for use in (read, write, Disk.poll):
        with pytest.raises(RendezvousConnectionError, match=f"{path} was deleted"):
            use(disk)
    assert not path.exists()
    other = open_disk()
    write(other, Put(b"new", b""))
    for use in (read, write):
        with pytest.raises(RendezvousConnectionError, match=f"{path} was deleted"):
            use(disk)
    assert read(other) == {b"new": b""}


def test_paths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """defects.md R85."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "no" / "such", tmp_path / "fifo", tmp_path / "file" / "below"):
        disk = Disk(str(path))
        for use in (read, write):
            with pytest.raises(RendezvousConnectionError, match=f"{path} cannot be used"):
                use(disk)
        disk.close()


def test_a_file_or_directory_without_permission_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    (tmp_path / "store").touch(mode=0o444)
    code = (
        "import os, sys\nfrom arendezvous.store.filedisk import Disk\nfrom arendezvous.errors import *\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for name in ('store', 'new'):\n"
        "    try: Disk(sys.argv[1] + '/' + name).run(lambda replica: ((), None), False)\n"
        "    except RendezvousConnectionError as exc: print(exc)\n"
    )
    for parent in tmp_path.parents:
        # pytest's own directories are closed to others; only search permission is needed on the way.
        if parent.name.startswith("pytest-"):
            os.chmod(parent, 0o755)
    os.chmod(tmp_path, 0o555)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.count("Permission denied") == 2, done
    os.chmod(tmp_path, 0o755)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF])
def test_without_locks_nothing_is_written(
    path: Path, open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """defects.md R86."""

    def refuse(fd: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    disk = open_disk()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        for use in (read, write):
            with pytest.raises(RendezvousConnectionError, match=f"{path} does not support locks"):
                use(disk)
    assert path.stat().st_size == 0
    write(disk, Put(b"a", b"1"))


def test_who_meets_the_lock_is_told_to_try_again(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk = open_disk()
    write(disk)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert read(disk) == {}
    with pytest.raises(Busy):
        write(disk)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(Busy):
        read(disk)
    os.close(fd)
    write(disk)


def test_an_error_in_a_decision_leaves_the_lock_free(open_disk: Callable[[], Disk]) -> None:
    one, two = open_disk(), open_disk()

    def decide(replica: Replica) -> tuple[list[Record], None]:
        raise LookupError

    with pytest.raises(LookupError):
        one.run(decide, True)
    write(two, Put(b"a", b"1"))


def test_an_io_error_is_the_stores_own(open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = open_disk()
    write(disk)

    def broken(fd: int) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", broken)
        with pytest.raises(RendezvousConnectionError, match="Input/output error"):
            read(disk)
    assert read(disk) == {}


def test_a_stale_handle_is_opened_anew(open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    disk = open_disk()
    write(disk, Put(b"a", b"1"))

    def stale(fd: int) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        with pytest.raises(Busy):
            read(disk)
    assert read(disk) == {b"a": b"1"}


def test_a_lease_lives_while_it_is_held_and_a_reader_notices_its_end(
    open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = open_disk(), open_disk()
    held = Held()
    one.beat(held, 60.0, b"beat", b"1")
    assert read(two) == {b"beat": b"1"}
    (info,) = two.replica.leased(b"b", host_clock(), host_time())
    assert (info[0], info[2]) == (b"beat", 60.0)
    # As the kernel does for a process that dies: no word in the log.
    os.close(held.fd)
    held.fd = -1
    now = host_time()
    monkeypatch.setattr(filedisk, "host_time", lambda: now + 2 * filedisk.PROBE_INTERVAL)
    assert read(two) == {}
    assert read(one) == {}
    one.beat(held, 60.0, b"beat", b"2")
    assert read(two) == {b"beat": b"2"}
    one.end(held)
    one.release(held)
    assert read(two) == {}
    with pytest.raises(RendezvousUsageError, match="ended"):
        one.beat(held, 60.0, b"beat", b"3")
    one.end(held)


def test_a_lease_runs_out_on_the_hosts_clock_though_its_owner_lives(
    open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_disk()
    held = Held()
    one.beat(held, 5.0, b"beat", b"1")
    began = host_time()
    monkeypatch.setattr(filedisk, "host_time", lambda: began + 4.9)
    # A store that has never seen the lease before knows its age all the same.
    assert read(open_disk()) == {b"beat": b"1"}
    monkeypatch.setattr(filedisk, "host_time", lambda: began + 5.1)
    fresh = open_disk()
    assert read(fresh) == {}
    one.beat(held, 5.0, b"beat", b"2")
    assert read(fresh) == {b"beat": b"2"}
    one.release(held)


def test_a_lease_of_another_machine_runs_out_as_long_after_its_refresh_was_seen(
    open_disk: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = open_disk(), open_disk()
    held = Held()
    with monkeypatch.context() as patch:
        patch.setattr(filedisk, "host_clock", lambda: b"another")
        patch.setattr(filedisk, "host_time", lambda: 1e9)
        one.beat(held, 5.0, b"beat", b"1")
    began = host_time()
    assert read(two) == {b"beat": b"1"}
    for passed, there in ((4.0, True), (5.5, False)):
        with monkeypatch.context() as patch:
            patch.setattr(filedisk, "host_time", lambda passed=passed: began + passed)
            assert (b"beat" in read(two)) == there
    one.release(held)


def test_a_sweep_removes_lock_files_that_no_lease_names(path: Path, open_disk: Callable[[], Disk]) -> None:
    side = path.parent / "store.leases"
    side.mkdir()
    (side / "0123456789abcdef").touch()
    disk = open_disk()
    for index in range(2000):
        write(disk, Put(b"key", b"%d" % index * 20))
    assert not side.exists()


def test_closing_closes_every_file_and_is_final(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk, held = open_disk(), Held()
    disk.beat(held, 60.0, b"beat", b"1")
    assert len(fds(path.parent)) == 2
    disk.close()
    disk.close()
    assert fds(path.parent) == []
    assert not (path.parent / "store.leases").exists()
    with pytest.raises(RendezvousConnectionError, match="closed"):
        read(disk)


def test_a_call_that_is_at_work_while_the_store_is_closed_closes_the_files(
    path: Path, open_disk: Callable[[], Disk]
) -> None:
    disk = open_disk()

    def decide(replica: Replica) -> tuple[list[Record], None]:
        disk.close()
        assert disk.closing
        assert fds(path.parent) != []
        return [Put(b"a", b"1")], None

    disk.run(decide, True)
    assert fds(path.parent) == []
    assert read(open_disk()) == {b"a": b"1"}


def test_a_forked_child_shares_no_lock_with_its_parent(path: Path, open_disk: Callable[[], Disk]) -> None:
    disk, held = open_disk(), Held()
    disk.beat(held, 60.0, b"beat", b"1")
    open_fds = fds(path.parent)
    assert len(open_fds) == 2
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        while b"child" not in (found := insist(lambda: read(disk))):
            assert parent.poll() is None
            time.sleep(0.01)
        assert found[b"theirs"] == b"1"
        assert found[b"child"] == b"[]"
        # The child lives on; the lease must not.
        parent.kill()
        parent.wait()
        while b"theirs" in insist(lambda: read(disk)):
            time.sleep(0.01)
        assert parent.stdin is not None
        parent.stdin.close()
    disk.release(held)


def test_random_histories_of_three_disks_add_up(path: Path) -> None:
    rng = random.Random(5)
    disks = [Disk(str(path)) for _ in range(3)]
    expected: dict[bytes, bytes] = {}
    for step in range(3000):
        disk = rng.choice(disks)
        key = b"%d" % rng.randrange(6)
        if rng.random() < 0.6:
            value = rng.randbytes(rng.randrange(200))
            write(disk, Put(key, value))
            expected[key] = value
        else:
            write(disk, Append(key, b"+"))
            expected[key] = expected.get(key, b"") + b"+"
        if step % 500 == 0:
            index = rng.randrange(3)
            disks[index].close()
            disks[index] = Disk(str(path))
    for disk in disks:
        assert read(disk) == expected
        disk.close()
