from __future__ import annotations

from pathlib import Path

from arendezvous import RendezvousParameters
from arendezvous.cli.checks.finding import Level, Report
from arendezvous.cli.checkup import Case, Checkup
from arendezvous.store.server import TCPStoreServer
from tests.support import fail_after


async def test_a_good_store_has_no_failure_and_each_subject_once() -> None:
    report = Report()
    with fail_after(30):
        async with TCPStoreServer("127.0.0.1", 0) as server:
            params = RendezvousParameters("p10d", server.endpoint, "doctor", 1, 2)
            await Checkup(Case(params, server.endpoint, None, None, None, 5.0, 5.0), report).run()
    assert [found for found in report.findings if found.level is Level.FAIL] == []
    assert {"protocol", "round trip", "clock", "own address"} <= {found.subject for found in report.findings}


async def test_a_file_store_makes_no_file(tmp_path: Path) -> None:
    report = Report()
    path = str(tmp_path / "store")
    params = RendezvousParameters("p10d", path, "doctor", 1, 2, config={"store_type": "file"})
    with fail_after(30):
        await Checkup(Case(params, path, None, None, None, 5.0, 5.0), report).run()
    assert report.status == 0
    assert list(tmp_path.iterdir()) == []
