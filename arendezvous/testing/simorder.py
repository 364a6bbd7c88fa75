"""Make an event loop run its tasks in the same order each time: the one thing that virtual time alone does not do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ("in_order",)


@contextmanager
def in_order(backend: str, options: dict[str, Any], seed: int) -> Iterator[None]:
    """Within this block, runs of an event loop depend on ``seed`` alone.

    trio shuffles the tasks that are ready with a generator of its own, which is seeded here; asyncio does not, but
    anyio's cancel scopes visit their tasks in the order of a set, hence of addresses in memory.

    Args:
        backend: ``trio`` or ``asyncio``.
        options: The backend's options.
        seed: Decides the order.
    """
    if backend == "trio":
        with _trio_in_order(seed):
            yield
    else:
        with _asyncio_in_order():
            yield


@contextmanager
def _trio_in_order(seed: int) -> Iterator[None]:
    import trio._core._run as run

    # The switch that trio keeps for hypothesis: sort what is ready before shuffling it.
    before, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    run._r.seed(f"{seed}/trio")
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        run._r.setstate(state)


class _Ordered(dict[Any, None]):
    """The part of a set that cancel scopes use, in the order of insertion."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


@contextmanager
def _asyncio_in_order() -> Iterator[None]:
    from anyio._backends import _asyncio

    scope: Any = _asyncio.CancelScope
    before = scope.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        self._tasks, self._child_scopes = _Ordered(), _Ordered()

    scope.__init__ = init
    try:
        yield
    finally:
        scope.__init__ = before
