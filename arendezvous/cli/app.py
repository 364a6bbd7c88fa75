"""The group of commands: what they share, and how each way of ending becomes an exit status."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from .. import __version__

__all__ = ("app", "event_loop_option", "mistake", "run_command", "run_in_loop")

T = TypeVar("T")

#: Hyphens and underscores are the same in option names, as torch's launcher has it.
_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "max_content_width": 100,
}
_LOOPS = ("asyncio", "uvloop", "trio")


class _Commands(click.Group):
    """Commands that are imported when they are asked for, so that ``--help`` is quick.

    The command ``name`` is the function of that name in the module of that name beside this one.
    """

    _summaries = {  # noqa: RUF012  a constant of the class
        "run": "Run workers as one node of an elastic job.",
        "serve": "Serve a store that outlives every agent.",
        "status": "Show who is in a run, who is missing and why it waits.",
        "close": "Close a run for ever.",
        "purge": "Remove the keys of a run that is over.",
        "doctor": "Find out why nodes do not meet, and what to do.",
        "demo": "Watch a job form, lose a node and grow, on this machine.",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._summaries:
            return None
        command: click.Command = getattr(import_module(f".{name}", __package__), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._summaries and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self._summaries, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(self._summaries)}."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))


@click.group(cls=_Commands, context_settings=_SETTINGS, no_args_is_help=True)
@click.version_option(__version__, prog_name="arendezvous", message="%(prog)s %(version)s")
def app() -> None:
    """Elastic rendezvous: agents agree on ranks, notice deaths, let newcomers in.

    \b
    Example:
      arendezvous run --standalone --nproc-per-node 2 -- python -c "import os; print(os.environ['RANK'])"
    """


def event_loop_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--event-loop`` of every command that needs one."""
    return click.option(
        "--event-loop",
        type=click.Choice(_LOOPS),
        envvar="ARENDEZVOUS_EVENT_LOOP",
        default="asyncio",
        show_default=True,
        help="What to run on; also ARENDEZVOUS_EVENT_LOOP.",
    )(function)


def mistake(error: Exception) -> click.UsageError:
    """A refused argument as the command line's own error, with what the library noted below its message."""
    return click.UsageError(" ".join([str(error), *getattr(error, "__notes__", ())]))


def run_in_loop(function: Callable[[], Awaitable[T]], loop: str) -> T:
    """Run an asynchronous function on the chosen event loop.

    Raises:
        click.UsageError: the loop is not installed.
    """
    if loop != "asyncio" and find_spec(loop) is None:
        raise click.UsageError(
            f"The event loop {loop!r} is not installed; install it with: pip install 'arendezvous[{loop}]'"
        )
    import anyio

    if loop == "trio":
        return anyio.run(function, backend="trio")
    return anyio.run(function, backend="asyncio", backend_options={"use_uvloop": loop == "uvloop"})


def run_command(argv: list[str]) -> int:
    """Run the command line and return its exit status; a user's mistake never prints a traceback."""
    logging.basicConfig(
        level=_log_level(os.environ.get("LOGLEVEL", "")), format="arendezvous: %(levelname)s %(name)s: %(message)s"
    )
    try:
        status = app.main(args=argv, prog_name="arendezvous", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return int(status) if isinstance(status, int) else 0


def _log_level(name: str) -> int:
    level = logging.getLevelNamesMapping().get(name.strip().upper())
    return logging.WARNING if level is None else level
