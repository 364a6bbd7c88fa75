from __future__ import annotations

import os
import subprocess
import sys

from arendezvous.cli.story.leash import READY
from tests.agent.processes import ROOT
from tests.support import SLOW


def start(reader: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "arendezvous.cli.story.leash", str(reader)),
            *("serve", "127.0.0.1:0", "--event-loop", "asyncio"),
        ],
        pass_fds=[reader],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_it_waits_for_the_sign_and_ends_with_its_parent_s_pipe() -> None:
    reader, writer = os.pipe()
    with start(reader) as process:
        os.close(reader)
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == READY
            os.write(writer, b"!")
            assert "serving on 127.0.0.1:" in process.stdout.readline()
        finally:
            os.close(writer)
        assert process.wait(10 * SLOW) == 143


def test_without_a_sign_it_does_nothing() -> None:
    reader, writer = os.pipe()
    with start(reader) as process:
        os.close(reader)
        os.close(writer)
        output, _ = process.communicate(timeout=20 * SLOW)
    assert (process.returncode, output.strip()) == (0, READY)
