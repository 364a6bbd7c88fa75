"""What the checks are made of: stores on one data set, calls in the background, sentences that fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

import anyio
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from anyio.abc import TaskGroup

    from ...store.base import Store

__all__ = (
    "PATIENCE",
    "Check",
    "ConformanceError",
    "Kit",
    "MakeStore",
    "Pending",
    "Tasks",
    "check",
    "equal",
    "expect",
    "fail",
    "raises",
    "settle",
)

_T = TypeVar("_T")

#: Opens a store on the same data each time.
MakeStore = Callable[[], "AbstractAsyncContextManager[Store]"]
#: How long something that must happen soon may take, in seconds.
PATIENCE = 5.0
# How many times the patience a whole check may take before it counts as hanging.
_WHOLE = 6
# Long enough for a request to reach its store, so that a call which must wait really does; never relied upon.
_PAUSE = 0.02


class ConformanceError(AssertionError):
    """A store does not do what the protocol says; the message has the sentence that it breaks."""


def fail(sentence: str) -> NoReturn:
    """Raise :class:`ConformanceError`."""
    raise ConformanceError(sentence)


def expect(condition: object, sentence: str) -> None:
    """Fail with ``sentence`` unless ``condition`` holds."""
    if not condition:
        fail(sentence)


def equal(got: object, wanted: object, sentence: str) -> None:
    """Fail with ``sentence`` unless both are equal and, for bytes, of one type."""
    if got != wanted or (isinstance(wanted, (bytes, bool)) and type(got) is not type(wanted)):
        fail(f"{sentence}; expected {_shown(wanted)}, got {_shown(got)}")


@contextmanager
def raises(kind: type[BaseException], sentence: str) -> Iterator[None]:
    """Fail with ``sentence`` unless the block raises ``kind``."""
    try:
        yield
    except kind:
        return
    except Exception as exc:
        raise ConformanceError(f"{sentence}; expected {kind.__name__}, got {exc!r}") from exc
    fail(f"{sentence}; expected {kind.__name__}, nothing was raised")


async def settle() -> None:
    """Let every other task run until it waits, and a request reach its store."""
    for _ in range(5):
        await checkpoint()
    await anyio.sleep(_PAUSE)


class Pending(Generic[_T]):
    """A call in the background."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        self._value: list[_T] = []
        self._error: Exception | None = None

    async def run(self, call: Callable[[], Awaitable[_T]]) -> None:
        """Make the call; keep its value or error."""
        try:
            with self._scope:
                self._value.append(await call())
        except Exception as exc:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = exc
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Cancel the call."""
        self._scope.cancel()

    async def ended(self, sentence: str) -> None:
        """Wait for the end of the call, whatever it is; fail with ``sentence`` when it does not come."""
        with anyio.move_on_after(self._patience):
            await self._done.wait()
        expect(self.done, f"{sentence}; nothing happened within {self._patience:g} s")

    async def result(self, sentence: str) -> _T:
        """Wait for the call and return its value; fail with ``sentence`` when it does not come."""
        await self.ended(sentence)
        if self._error is not None:
            raise ConformanceError(f"{sentence}; got {self._error!r}") from self._error
        expect(self._value, f"{sentence}; the call was cancelled")
        return self._value[0]

    async def error(self, kind: type[Exception], sentence: str) -> Exception:
        """Wait for the call and return its error, which must be of ``kind``."""
        await self.ended(sentence)
        if not isinstance(self._error, kind):
            outcome = self._error if self._error is not None else self._value
            raise ConformanceError(f"{sentence}; expected {kind.__name__}, got {outcome!r}") from self._error
        return self._error

    async def waits(self, sentence: str) -> None:
        """Give the call a moment; fail with ``sentence`` if it has ended."""
        await settle()
        if self.done:
            fail(f"{sentence}; it ended with {self._error if self._error is not None else _shown(self._value)!r}")


class Tasks:
    """Starts calls in the background of a check."""

    def __init__(self, group: TaskGroup, patience: float) -> None:
        self._group = group
        self._patience = patience

    def start(self, call: Callable[..., Awaitable[_T]], *args: object) -> Pending[_T]:
        """Make a call in a task of its own."""
        pending: Pending[_T] = Pending(self._patience)
        self._group.start_soon(pending.run, lambda: call(*args))
        return pending

    async def waiting(self, sentence: str, call: Callable[..., Awaitable[_T]], *args: object) -> Pending[_T]:
        """Make a call in a task of its own that must not end yet."""
        pending = self.start(call, *args)
        await pending.waits(sentence)
        return pending


class Kit:
    """What a check works with.

    Args:
        name: The check's name, of which its keys are made.
        make_store: Opens a store on the same data each time.
        patience: Seconds that something which must happen soon may take.
    """

    def __init__(self, name: str, make_store: MakeStore, patience: float) -> None:
        self.make_store = make_store
        self.patience = patience
        self._name = name
        self._keys: dict[str, None] = {}

    def key(self, name: str = "key") -> str:
        """Return a key of this check's own."""
        return self.own(f"conformance/{self._name}/{name}")

    def keys(self, *names: str) -> list[str]:
        """Return several keys of this check's own."""
        return [self.key(name) for name in names]

    def own(self, key: str) -> str:
        """Note a key that the check may leave behind."""
        self._keys[key] = None
        return key

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Tasks]:
        """Run calls in the background; those that are left at the end are cancelled."""
        async with anyio.create_task_group() as group:
            yield Tasks(group, self.patience)
            group.cancel_scope.cancel()

    async def soon(self, test: Callable[[], Awaitable[object]], sentence: str) -> None:
        """Repeat ``test`` until it is true; fail with ``sentence`` when that takes longer than the patience."""
        with anyio.move_on_after(self.patience):
            while not await test():  # noqa: ASYNC110 - a store's state has no event to wait for
                await anyio.sleep(_PAUSE)
            return
        fail(f"{sentence}; not within {self.patience:g} s")

    async def clean(self, store: Store) -> None:
        """Delete the keys that the check has made."""
        for key in self._keys:
            await store.delete_key(key)


@dataclass(frozen=True)
class Check:
    """One check of the suite; call it with what opens a store.

    Attributes:
        name: What it is called, for instance as a test's id.
        sentence: What it settles.
        clients: How many stores of one data set it opens.
        needs: Native capabilities without which it does not apply.
        closes: It closes the stores that it opens.
        body: The check itself.
    """

    name: str
    sentence: str
    clients: int
    needs: tuple[str, ...]
    closes: bool
    body: Callable[..., Awaitable[None]]

    def __str__(self) -> str:
        return self.name

    async def __call__(self, make_store: MakeStore, *, patience: float = PATIENCE) -> bool:
        """Run the check.

        Args:
            make_store: Returns an async context manager that yields a store, on the same data each time.
            patience: Seconds that something which must happen soon may take.

        Returns:
            False if the store has not the capabilities that the check needs.

        Raises:
            ConformanceError: the store does something else than the protocol says.

        Cancellation:
            Safe; keys of the check may be left in the store.
        """
        kit = Kit(self.name, make_store, patience)
        try:
            with anyio.move_on_after(patience * _WHOLE):
                return await self._run(kit)
            raise ConformanceError(f"it hangs: no end within {patience * _WHOLE:g} s")
        except Exception as exc:  # noqa: BLE001 - whatever it is, the report says in which check
            leaves = _leaves(exc)
            broken = next((leaf for leaf in leaves if isinstance(leaf, ConformanceError)), None)
            what = str(broken) if broken is not None else f"it raised {leaves[0]!r}"
            raise ConformanceError(f"{self.name}: {self.sentence}\n  {what}") from (broken or exc)

    async def _run(self, kit: Kit) -> bool:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(kit.make_store()) for _ in range(self.clients)]
            if not all(getattr(stores[0].capabilities, name) for name in self.needs):
                return False
            await self.body(kit, *stores)
            if not self.closes:
                await kit.clean(stores[0])
        return True


def check(
    sentence: str, *, clients: int = 1, needs: tuple[str, ...] = (), closes: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], Check]:
    """Make a :class:`Check` of an async function ``body(kit, *stores)``."""

    def decorate(body: Callable[..., Awaitable[None]]) -> Check:
        return Check(body.__name__, sentence, clients, needs, closes, body)

    return decorate


def _leaves(exc: BaseException) -> list[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for inner in exc.exceptions for leaf in _leaves(inner)]
    return [exc]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
