"""What a user asks for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, overload

import msgspec

from ..endpoint import parse_rendezvous_config
from ..node import Attributes
from .timeout import RendezvousTimeout
from .values import check_run_id, node_bounds, option_bool, option_int, option_seconds, to_count, to_int, to_text

__all__ = ("MAX_ATTRIBUTES", "MAX_ATTRIBUTES_BYTES", "RendezvousParameters")

#: Attributes are part of the agreed state, which every node reads: they are labels, not a place for data.
MAX_ATTRIBUTES = 64
MAX_ATTRIBUTES_BYTES = 1024

_NO_ADDRESS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff\[\]/]")
_MAX_ADDRESS = 255


@dataclass(frozen=True, init=False)
class RendezvousParameters:
    """Where to meet, under which run id, how many nodes, and the options of the backend.

    Equal if all members are; hashable whatever the options hold. ``config`` is a copy of its own, options included.

    Args:
        backend: Name of the backend.
        endpoint: Where to meet, as the backend understands it; None is "".
        run_id: Any printable text; nodes with the same run id meet.
        min_nodes: Fewest nodes of a round.
        max_nodes: Most nodes of a round. ``min_nodes`` and ``max_nodes`` in ``config`` replace arguments left at 1.
        local_addr: The address that the others reach this node by; None or "" lets the library find it.
        node_rank: The rank that this node would like (``rank_order=node_rank``, the static backend).
        local_world_size: How many workers this node runs.
        attributes: What the others can read about this node: text to text, numbers or booleans, at most 1 KiB.
        config: Options as a mapping, such as ``parse_rendezvous_config`` reads.
        **options: Options as keywords; they win over ``config``.

    Raises:
        ValueError: a value is out of its range.
        TypeError: a value is of the wrong type.
    """

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    node_rank: int | None
    local_world_size: int
    attributes: Mapping[str, str | int | float | bool]
    config: dict[str, Any] = field(hash=False)

    def __init__(
        self,
        backend: str,
        endpoint: str | None,
        run_id: str,
        min_nodes: int = 1,
        max_nodes: int = 1,
        local_addr: str | None = None,
        *,
        node_rank: int | None = None,
        local_world_size: int = 1,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if backend is None or not to_text("backend", backend).strip():
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        merged = {**(config or {}), **options}
        bounds = _bounds(to_int("min_nodes", min_nodes), to_int("max_nodes", max_nodes), merged)
        values = (
            backend,
            "" if endpoint is None else to_text("endpoint", endpoint),
            check_run_id(run_id),
            *node_bounds(*bounds, "rendezvous nodes"),
            _check_address(local_addr),
            None if node_rank is None else to_count("node_rank", node_rank, 0),
            to_count("local_world_size", local_world_size, 1),
            _check_attributes(attributes),
            merged,
        )
        for member, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, member.name, value)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **changes: Any) -> RendezvousParameters:
        """Read the variables that torchrun reads; an empty one counts as missing.

        ``PET_RDZV_BACKEND`` (p10d), ``PET_RDZV_ENDPOINT``, ``PET_RDZV_ID`` (required), ``PET_RDZV_CONF``,
        ``PET_NNODES`` as ``N`` or ``MIN:MAX`` (1:1), ``PET_NODE_RANK``, ``PET_LOCAL_ADDR``, and ``PET_NPROC_PER_NODE``,
        which must be a number here: nobody has counted the devices.

        Args:
            environ: The variables; ``os.environ`` unless given.
            **changes: Arguments and options that win over the environment; a variable that they replace is not read.

        Raises:
            ValueError: a variable is missing or not valid; the message names it.
        """
        env = os.environ if environ is None else environ
        found: dict[str, Any] = {
            "backend": env.get("PET_RDZV_BACKEND") or "p10d",
            "endpoint": env.get("PET_RDZV_ENDPOINT"),
            "local_addr": env.get("PET_LOCAL_ADDR"),
        }
        if "config" not in changes:
            try:
                found["config"] = parse_rendezvous_config(env.get("PET_RDZV_CONF", ""))
            except ValueError as exc:
                raise ValueError(f"PET_RDZV_CONF: {exc}") from exc
        if "run_id" not in changes:
            # torchrun falls back on one fixed word, under which unrelated jobs meet (defects.md R27).
            if not env.get("PET_RDZV_ID"):
                raise ValueError("The environment variable PET_RDZV_ID must hold the run id.")
            found["run_id"] = env["PET_RDZV_ID"]
        if nodes := env.get("PET_NNODES"):
            low, colon, high = nodes.partition(":")
            for argument, text in (("min_nodes", low), ("max_nodes", high if colon else low)):
                if argument not in changes:
                    found[argument] = _number("PET_NNODES", nodes, text)
        for argument, name in (("node_rank", "PET_NODE_RANK"), ("local_world_size", "PET_NPROC_PER_NODE")):
            if argument not in changes and (value := env.get(name)):
                found[argument] = _number(name, value, value)
        return cls(**{**found, **changes})

    def replace(self, **changes: Any) -> RendezvousParameters:
        """A copy with some arguments or options changed; everything else stays, options included.

        Args:
            **changes: As for the constructor; ``config`` replaces all options.

        Raises:
            ValueError: as the constructor.
            TypeError: as the constructor.
        """
        return type(self)(**{**{member.name: getattr(self, member.name) for member in fields(self)}, **changes})

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an option as it was given; ``default`` if it is missing."""
        return self.config.get(key, default)

    @overload
    def get_as_bool(self, key: str, default: bool) -> bool: ...
    @overload
    def get_as_bool(self, key: str, default: None = None) -> bool | None: ...
    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The value of an option as a boolean: 1, true, t, yes, y or 0, false, f, no, n in any case.

        A missing option, or None, is ``default``.

        Raises:
            ValueError: the value is none of these.
        """
        value = option_bool(self.config, key)
        return default if value is None else value

    @overload
    def get_as_int(self, key: str, default: int) -> int: ...
    @overload
    def get_as_int(self, key: str, default: None = None) -> int | None: ...
    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The value of an option as an integer: an integer, or decimal digits with a sign and blanks around.

        A missing option, or None, is ``default``.

        Raises:
            ValueError: the value is anything else, a boolean or a fraction included.
        """
        value = option_int(self.config, key)
        return default if value is None else value

    @overload
    def get_as_seconds(self, key: str, default: float) -> float: ...
    @overload
    def get_as_seconds(self, key: str, default: None = None) -> float | None: ...
    def get_as_seconds(self, key: str, default: float | None = None) -> float | None:
        """The value of an option as seconds: a ``timedelta``, a number, or a decimal number as text.

        A missing option, or None, is ``default``.

        Raises:
            ValueError: the value is anything else, negative or not finite.
        """
        value = option_seconds(self.config, key)
        if value is None:
            return default
        if value < 0:
            raise ValueError(f"The rendezvous configuration option '{key}' ({value:g} s) must not be negative.")
        return value

    @property
    def timeout(self) -> RendezvousTimeout:
        """The time-outs that the options ask for."""
        return RendezvousTimeout.from_params(self)


def _bounds(minimum: int, maximum: int, config: dict[str, Any]) -> tuple[int, int]:
    """Take the bounds out of the options: were they left there, ``.config`` and the members could disagree."""
    low, high = option_int(config, "min_nodes"), option_int(config, "max_nodes")
    config.pop("min_nodes", None)
    config.pop("max_nodes", None)
    if low is not None and minimum == 1:
        minimum = low
    if high is not None and maximum == 1:
        maximum = high
    return minimum, maximum


def _number(name: str, whole: str, text: str) -> int:
    try:
        number = option_int({name: text}, name)
    except ValueError:
        number = None
    if number is None:
        raise ValueError(f"The environment variable {name} must hold a number, not {whole!r}.")
    return number


def _check_address(local_addr: object) -> str | None:
    if local_addr is None or local_addr == "":
        return None
    addr = to_text("local_addr", local_addr)
    # Two colons or more are an IPv6 address, one is a port.
    if _NO_ADDRESS.search(addr) or addr.count(":") == 1 or len(addr) > _MAX_ADDRESS:
        raise ValueError(
            f"local_addr {addr!r} must be a host name or an address, without port, brackets and blanks, "
            f"of at most {_MAX_ADDRESS} characters."
        )
    return addr


def _check_attributes(attributes: object) -> Attributes:
    if attributes is None:
        return Attributes()
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a mapping, not {attributes!r}.")
    kept: dict[str, str | int | float | bool] = {}
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise TypeError(f"The keys of attributes must be strings, not {key!r}.")
        # Members of enumerations and the like are kept as the plain values that the peers will read.
        name = str.__str__(key)
        if isinstance(value, bool):
            kept[name] = value
        elif isinstance(value, str):
            kept[name] = str.__str__(value)
        elif isinstance(value, int):
            kept[name] = int(value)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"The attribute {name!r} ({value}) must be a finite number.")
            kept[name] = float(value)
        else:
            raise TypeError(f"The attribute {name!r} must be a string, a number or a boolean, not {value!r}.")
    if len(kept) > MAX_ATTRIBUTES:
        raise ValueError(f"A node has at most {MAX_ATTRIBUTES} attributes, not {len(kept)}.")
    try:
        size = len(msgspec.msgpack.encode(kept))
    except (OverflowError, UnicodeError) as exc:
        raise ValueError(f"The attributes {kept!r} hold an integer beyond 64 bits or text that is no Unicode.") from exc
    if size > MAX_ATTRIBUTES_BYTES:
        raise ValueError(f"The attributes of a node take at most {MAX_ATTRIBUTES_BYTES} bytes encoded, not {size}.")
    return Attributes(kept)
