"""Single values: what a caller or an option gave, to what is kept.

Arguments of the wrong type are a ``TypeError``. Options come as text or as anything that a configuration file holds, so
there every mistake is a ``ValueError`` that names the option.
"""

from __future__ import annotations

import math
import operator
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "MAX_COUNT",
    "MAX_NODES",
    "MAX_SECONDS",
    "Duration",
    "check_run_id",
    "node_bounds",
    "option_bool",
    "option_int",
    "option_seconds",
    "positive_duration",
    "to_count",
    "to_int",
    "to_text",
)

Duration = timedelta | float

#: Most nodes of a run; no peer believes a state that says more.
MAX_NODES = 100_000
#: Largest node_rank, local_world_size and keep_alive_max_attempt.
MAX_COUNT = 1_000_000
#: Longest duration, some thirty years: what the stored state can say.
MAX_SECONDS = 1e9

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


def to_text(name: str, value: object) -> str:
    """The value, which has to be text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}.")
    return value


def to_int(name: str, value: object) -> int:
    """The value as an ``int``; takes the integers of other libraries, but neither booleans nor text."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]  # it is asked, not assumed
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, not {value!r}.")


def to_count(name: str, value: object, least: int) -> int:
    """The value as an integer from ``least`` to a million."""
    number = to_int(name, value)
    if not least <= number <= MAX_COUNT:
        raise ValueError(f"{name} ({number}) must be at least {least} and at most {MAX_COUNT}.")
    return number


def node_bounds(minimum: int, maximum: int, nodes: str) -> tuple[int, int]:
    """Fewest and most nodes, in order and in range; ``nodes`` is what the message calls them."""
    if minimum < 1:
        raise ValueError(f"The minimum number of {nodes} ({minimum}) must be greater than zero.")
    if maximum < minimum:
        raise ValueError(
            f"The maximum number of {nodes} ({maximum}) must be greater than or equal to the minimum number of {nodes} "
            f"({minimum})."
        )
    if maximum > MAX_NODES:
        raise ValueError(f"The maximum number of {nodes} ({maximum}) must be at most {MAX_NODES}.")
    return minimum, maximum


def check_run_id(run_id: object) -> str:
    """The run id, which may be any text but a blank one or one with control characters."""
    if isinstance(run_id, str) and not run_id.strip():
        raise ValueError("The run id must be a non-empty string.")
    if _CONTROL.search(to_text("run_id", run_id)):
        raise ValueError(f"The run id {run_id!r} must be printable text; it holds a control character.")
    return str(run_id)


def positive_duration(what: str, value: object) -> timedelta:
    """A duration given as ``timedelta`` or seconds; ``what`` is what the message calls it."""
    if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
        raise TypeError(f"The {what} must be a timedelta or a number of seconds, not {value!r}.")
    seconds = _seconds(value)
    if math.isnan(seconds):
        raise ValueError(f"The {what} ({value}) must be a number of seconds.")
    if seconds > MAX_SECONDS:
        raise ValueError(f"The {what} ({value}) must be at most {MAX_SECONDS:.0f} seconds.")
    if seconds < -MAX_SECONDS:
        raise ValueError(f"The {what} ({value}) must be positive.")
    duration = timedelta(seconds=seconds)
    # Judged after rounding: less than half a microsecond is no duration that a timedelta can hold.
    if duration <= timedelta(0):
        raise ValueError(f"The {what} ({duration}) must be positive.")
    return duration


def option_bool(config: Mapping[str, Any], key: str) -> bool | None:
    """An option as a boolean; None if it is missing."""
    value = config.get(key)
    if value is None or isinstance(value, bool):
        return value
    # By type, not by equality: 1.0 is no boolean.
    text = value.lower() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _not_valid(key, "boolean", value)


def option_int(config: Mapping[str, Any], key: str) -> int | None:
    """An option as an integer; None if it is missing."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, str):
        # Not int(): that reads "1_000" and the digits of every script.
        if _INTEGER.fullmatch(value.strip()):
            return int(value)
    else:
        try:
            return to_int(key, value)
        except TypeError:
            pass
    raise _not_valid(key, "integer", value)


def option_seconds(config: Mapping[str, Any], key: str) -> float | None:
    """An option as a finite number of seconds, of either sign; None if it is missing."""
    value = config.get(key)
    if value is None:
        return None
    seconds = math.nan
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value.strip()):
            seconds = float(value)
    elif isinstance(value, (timedelta, int, float)) and not isinstance(value, bool):
        seconds = _seconds(value)
    if not math.isfinite(seconds):
        raise _not_valid(key, "duration", value)
    return seconds


def _seconds(value: timedelta | float) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _not_valid(key: str, kind: str, value: object) -> ValueError:
    error = ValueError(f"The rendezvous configuration option '{key}' does not represent a valid {kind} value.")
    # The sentence is documented word for word, so the value goes below it.
    error.add_note(f"Its value is {value!r}.")
    return error
