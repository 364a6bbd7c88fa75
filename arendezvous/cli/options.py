"""Options that several commands share, spelt as torch's launcher spells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ("option",)

_F = TypeVar("_F", bound=Callable[..., Any])


def option(*names: str, **attributes: Any) -> Callable[[_F], _F]:
    """An option that also reads torchrun's variable, ``PET_`` and its first long name."""
    long = next(name for name in names if name.startswith("--"))
    variable = "PET_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, **attributes)
