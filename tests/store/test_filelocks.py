"""Locks of a file store."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from arendezvous.errors import RendezvousConnectionError
from arendezvous.store.filelocks import Busy, Held, LeaseLocks, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[LeaseLocks]:
    locks = LeaseLocks("the/path", str(tmp_path / "leases"))
    yield locks
    locks.drop_all()


@pytest.fixture
def beside(tmp_path: Path) -> LeaseLocks:
    """Another store's view of the same files."""
    return LeaseLocks("the/path", str(tmp_path / "leases"))


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_two_open_files_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "f"), opened(tmp_path / "f")
    try_lock("f", one, fcntl.LOCK_EX)
    with pytest.raises(Busy):
        try_lock("f", two, fcntl.LOCK_SH)
    os.close(one)
    try_lock("f", two, fcntl.LOCK_EX)
    os.close(two)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_path_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(fd: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RendezvousConnectionError, match="/nfs/store does not support locks"):
        try_lock("/nfs/store", 0, fcntl.LOCK_EX)


def test_another_error_is_the_stores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, kind: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RendezvousConnectionError, match=r"/nfs/store cannot be used: Input/output error"):
        try_lock("/nfs/store", 0, fcntl.LOCK_EX)


def test_a_lease_is_owned_until_it_is_dropped(locks: LeaseLocks, beside: LeaseLocks, tmp_path: Path) -> None:
    held = Held()
    locks.create(held)
    name = held.name
    assert name is not None
    assert locks.owned(name)
    assert beside.owned(name)
    assert beside.owned(name)
    locks.drop(held)
    assert not beside.owned(name)
    assert not (tmp_path / "leases").exists()
    locks.drop(held)


def test_the_directory_stays_while_it_holds_anything(locks: LeaseLocks, tmp_path: Path) -> None:
    one, two = Held(), Held()
    locks.create(one)
    locks.create(two)
    locks.drop(one)
    assert os.listdir(tmp_path / "leases") == [two.name]


def test_a_lease_whose_owner_was_killed_is_owned_by_nobody(beside: LeaseLocks, tmp_path: Path) -> None:
    code = (
        "import sys, time; from arendezvous.store.filelocks import *; held = Held(); "
        f"LeaseLocks('p', {str(tmp_path / 'leases')!r}).create(held); print(held.name, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert beside.owned(name)
    owner.kill()
    owner.communicate()
    assert not beside.owned(name)


def test_only_ended_leases_are_dropped_as_ended(locks: LeaseLocks) -> None:
    one, two = Held(), Held()
    locks.create(one)
    locks.create(two)
    one.ended = True
    locks.drop_ended()
    assert (one.fd, one.name) == (-1, None)
    assert two.fd >= 0


def test_a_sweep_takes_what_nobody_knows_and_nobody_holds(
    locks: LeaseLocks, beside: LeaseLocks, tmp_path: Path
) -> None:
    held = Held()
    locks.create(held)
    for name in ("known", "orphan"):
        (tmp_path / "leases" / name).touch()
    beside.sweep({"known"})
    assert sorted(os.listdir(tmp_path / "leases")) == sorted(["known", str(held.name)])
    LeaseLocks("p", str(tmp_path / "missing")).sweep(set())


def test_the_child_of_a_fork_lets_go_without_unlocking(locks: LeaseLocks, beside: LeaseLocks, tmp_path: Path) -> None:
    held = Held()
    locks.create(held)
    name, fd = str(held.name), os.dup(held.fd)
    # What the child's copies amount to: another descriptor of the same open file.
    locks.forget()
    assert beside.owned(name)
    os.close(fd)
    assert not beside.owned(name)
    os.unlink(tmp_path / "leases" / name)


def test_running_out_of_descriptors_is_nobodys_death(
    locks: LeaseLocks, beside: LeaseLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    locks.create(held)

    def full(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        assert beside.owned(str(held.name))
        with pytest.raises(RendezvousConnectionError, match="Too many open files"):
            beside.create(Held())


def test_a_lease_that_cannot_be_locked_leaves_no_file(
    locks: LeaseLocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    held = Held()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(RendezvousConnectionError, match="locks"):
            locks.create(held)
    assert held.fd == -1
    assert not (tmp_path / "leases").exists()


def test_the_directory_may_vanish_while_a_lease_is_made(
    locks: LeaseLocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.open, 0

    def racing(path: str, flags: int, mode: int = 0o777) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            os.rmdir(tmp_path / "leases")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", racing)
    held = Held()
    locks.create(held)
    assert calls == 2
