"""What the commands share that look at a run from outside, or end it: where it is, signals, errors, output."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..text import printable
from .app import mistake, run_in_loop
from .options import option

if TYPE_CHECKING:
    from ..params import RendezvousParameters

__all__ = ("READ_TIMEOUT", "Stopped", "ask", "ended", "find", "lookup_options", "run_lookup", "say", "trouble")

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

#: Seconds that a store has to answer, unless the option ``read_timeout`` says otherwise.
READ_TIMEOUT = 5.0


class Stopped(Exception):
    """A signal ended the command.

    Args:
        status: The exit status that says so.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped with status {status}")
        self.status = status


def lookup_options(function: _F) -> _F:
    """The argument ``ENDPOINT`` and the options that say which run is meant; :func:`find` reads them."""
    for decorate in (
        option("--rdzv-conf", default="", metavar="K=V,...", help="As for `run`, such as store_type=file."),
        option("--rdzv-backend", default="p10d", metavar="B", help="As for `run`.  [p10d]"),
        option("--rdzv-id", metavar="ID", help="The run."),
        click.argument("endpoint", metavar="ENDPOINT", envvar="PET_RDZV_ENDPOINT"),
    ):
        function = decorate(function)
    return function


def find(
    endpoint: str, rdzv_id: str | None, rdzv_backend: str, rdzv_conf: str, *, patience: float = READ_TIMEOUT
) -> RendezvousParameters:
    """Turn the options into where the run is.

    Args:
        endpoint: As given.
        rdzv_id: As given.
        rdzv_backend: As given.
        rdzv_conf: As given.
        patience: Seconds that a store has to answer, unless the option ``read_timeout`` says otherwise.

    Raises:
        click.UsageError: something is missing or malformed.
    """
    if not rdzv_id:
        raise click.UsageError("--rdzv-id is missing: the name of the run, as its agents have it.")
    from ..agent.hosting import DYNAMIC_BACKENDS
    from ..endpoint import parse_rendezvous_config, parse_rendezvous_endpoint
    from ..handler.create import DEFAULT_PORT, read_timeout, store_type
    from ..params import RendezvousParameters

    if rdzv_backend not in DYNAMIC_BACKENDS:
        raise click.UsageError(
            f"--rdzv-backend {rdzv_backend!r}: what a run of it is doing cannot be seen from outside; "
            f"known are {', '.join(sorted(DYNAMIC_BACKENDS))}."
        )
    try:
        config: dict[str, Any] = {"read_timeout": patience, **parse_rendezvous_config(rdzv_conf)}
        params = RendezvousParameters(rdzv_backend, endpoint, rdzv_id, config=config)
        read_timeout(params)
        if store_type(params) == "tcp":
            if "/" in endpoint and "://" not in endpoint:
                raise ValueError(
                    f"{endpoint!r} looks like a path; for a store in a file add --rdzv-conf store_type=file."
                )
            parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    except (ValueError, TypeError) as exc:
        raise mistake(exc) from exc
    return params


def run_lookup(function: Callable[[], Awaitable[_T]], loop: str) -> _T:
    """Run an asynchronous function until it ends, or SIGINT or SIGTERM cancels it.

    Raises:
        Stopped: a signal came.
        click.UsageError: an argument is not valid, or the loop is not installed.
    """
    result = run_in_loop(lambda: _until_signal(function), loop)
    if isinstance(result, Stopped):
        raise result
    return result


async def _until_signal(function: Callable[[], Awaitable[_T]]) -> _T | Stopped:
    import anyio

    # Errors leave the group as values: callers want them, and a broken pipe, as they are and not in a group.
    results: list[_T] = []
    errors: list[Exception] = []
    stopped: list[int] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tg:

            async def obey() -> None:
                async for number in signals:
                    stopped.append(128 + number)
                    tg.cancel_scope.cancel()

            tg.start_soon(obey)
            try:
                results.append(await function())
            except Exception as exc:  # noqa: BLE001  raised again below
                errors.append(exc)
            tg.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return results[0] if results else Stopped(stopped[0])


def say(text: str, err: bool = False) -> None:
    """Print lines in whatever the terminal can show, at once."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def ended(command: Callable[[], int], damaged: str) -> int:
    """Run the body of a command; whatever ends it becomes its exit status and one line.

    Args:
        command: The body.
        damaged: What to do about a state that cannot be read.

    Raises:
        click.UsageError: an argument is not valid.
    """
    from ..errors import RendezvousError, RendezvousStateError

    try:
        return command()
    except Stopped as stopped:
        return stopped.status
    except RendezvousStateError as exc:
        return trouble(f"{exc} {damaged}")
    except RendezvousError as exc:
        return trouble(exc)
    except ValueError as exc:
        raise mistake(exc) from exc


def trouble(text: object) -> int:
    """Say on stderr what is wrong and what to do; returns the exit status for it."""
    say(f"arendezvous: {printable(str(text))}", err=True)
    return 3


def ask(question: str, yes: bool) -> bool:
    """Have somebody at a terminal confirm; without one, or with ``--yes``, it is.

    Raises:
        click.Abort: Ctrl-C, or the end of the input.
    """
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return True
    return click.confirm(question, err=True)
