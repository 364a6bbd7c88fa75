from __future__ import annotations

from pathlib import Path

from arendezvous.cli.checks.files import examine, file_system
from arendezvous.cli.checks.finding import Level

MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/shared rw - nfs4 server:/x rw
"""


def test_the_longest_mount_point_counts() -> None:
    assert file_system(Path("/home/x"), MOUNTS) == "ext4"
    assert file_system(Path("/mnt/shared/y"), MOUNTS) == "nfs4"
    assert file_system(Path("/mnt/sharedx"), MOUNTS) == "ext4"
    assert file_system(Path("/x"), "") == ""


def test_a_directory_is_no_file_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (found,) = examine(tmp_path)
    assert (found.level, "is a directory" in found.seen) == (Level.FAIL, True)
    (found,) = examine(tmp_path / "no" / "file")
    assert (found.level, str(tmp_path / "no") in found.seen) == (Level.FAIL, True)
    assert not list(tmp_path.iterdir())
