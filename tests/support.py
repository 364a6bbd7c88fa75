"""What many test modules share: bounded waits, virtual time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

#: Slow machines stretch every bound: ``ARENDEZVOUS_TEST_SLOW=4 pytest``.
SLOW = float(os.environ.get("ARENDEZVOUS_TEST_SLOW", "1"))

#: ``@VIRTUAL`` on an async test, or on a class of them: it runs in virtual time, on asyncio and on trio, with a clock
#: that starts afresh for each test. Not for tests that use threads or processes, and not as a module's ``pytestmark``
#: if the module holds synchronous tests.
VIRTUAL = pytest.mark.parametrize("anyio_backend", ["virtual-asyncio", "virtual-trio"], indirect=True)


def fail_after(seconds: float) -> AbstractContextManager[object]:
    """Fail the test when a block takes longer than ``seconds``, stretched by the slowness of this machine."""
    return anyio.fail_after(seconds * SLOW)
