from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from arendezvous.cli.early import signals_end_it
from tests.support import SLOW

SCRIPT = """
import sys, time
from arendezvous.cli.early import signals_end_it

class Loading:
    def __set_name__(self, owner, name):
        print("loading", flush=True)
        time.sleep(600)

with signals_end_it():
    try:
        class Late:
            field = Loading()
    except RuntimeError:  # what the interpreter makes of a KeyboardInterrupt here
        print("swallowed", flush=True)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_an_import_ends_the_process(number: int, status: int) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=20 * SLOW)
    assert (process.returncode, rest) == (status, "")


def test_the_handlers_before_are_back_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals_end_it():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_it_leaves_the_handlers_alone() -> None:
    inside: list[object] = []

    def body() -> None:
        with signals_end_it():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(20 * SLOW)
    assert inside == [signal.getsignal(signal.SIGINT)]
