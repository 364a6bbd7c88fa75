"""The conformance suite: what every store must do, as a public function that needs no test framework.

::

    async def test_my_store() -> None:
        await check_store(lambda: MyStore(url))

or one test per sentence::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_store(check) -> None:
        await check(lambda: MyStore(url))
"""

from __future__ import annotations

from .checks import leases, lifecycle, values, waits, watches
from .checks.kit import PATIENCE, Check, ConformanceError, MakeStore

__all__ = ("CHECKS", "PATIENCE", "Check", "ConformanceError", "MakeStore", "check_store")

#: Every check; those that close their stores come last.
CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (*lifecycle.CHECKS, *values.CHECKS, *waits.CHECKS, *watches.CHECKS, *leases.CHECKS),
        key=lambda check: check.closes,
    )
)


async def check_store(make_store: MakeStore, *, patience: float = PATIENCE) -> None:
    """Check that a store does what :class:`arendezvous.store.base.Store` says.

    Runs on every event loop that anyio knows, in real or in virtual time. Checks of something that the store does not
    do natively, as its ``capabilities`` say, are left out.

    Args:
        make_store: Returns an async context manager that yields a store. Called several times, partly while the
            earlier stores are open; all of them must show the same data. The data set should hold nothing else; keys
            that the checks make are deleted again.
        patience: Seconds that something which must happen soon may take; longer for slow machines.

    Raises:
        ConformanceError: the first difference found, with the sentence of the protocol that it breaks.

    Cancellation:
        Safe; keys may be left in the store.
    """
    for check in CHECKS:
        await check(make_store, patience=patience)
