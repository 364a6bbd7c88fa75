"""Help on two pages: what most people need fits a screen, the rest is one option away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ("RareOption", "help_all_option")

_F = TypeVar("_F", bound=Callable[..., Any])
#: In the context while the second page is shown.
_ALL = "arendezvous.help_all"


class RareOption(click.Option):
    """An option that only ``--help-all`` lists; it works and completes like any other."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.meta.get(_ALL) else None


def help_all_option(function: _F) -> _F:
    """The option ``--help-all`` of a command that has rare options."""
    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show the other options too and exit.",
    )(function)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
