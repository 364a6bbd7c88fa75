"""Which backend names exist, and how a handler is made of parameters (api.md A.4, defects.md D53)."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable

from ..params import RendezvousParameters
from .base import RendezvousHandler

__all__ = ("COMMON_OPTIONS", "ENTRY_POINT_GROUP", "Creator", "RendezvousHandlerRegistry")

logger = logging.getLogger(__name__)

Creator = Callable[[RendezvousParameters], RendezvousHandler]

#: Entry-point group of third-party backends: name -> creator.
ENTRY_POINT_GROUP = "arendezvous.backends"

#: Options that every dynamic backend understands.
COMMON_OPTIONS = frozenset(
    {
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "rank_order",
        "notify_lost_nodes",
        "exit_barrier",
        "bootstrap_port",
        "read_timeout",
    }
)


class RendezvousHandlerRegistry:
    """Creators by backend name.

    Args:
        defaults: The backends it starts with, complete before anybody sees the registry.
    """

    def __init__(self, defaults: Iterable[tuple[str, Creator]] = ()) -> None:
        self._creators: dict[str, Creator] = dict(defaults)

    def names(self) -> tuple[str, ...]:
        """The registered names, sorted."""
        return tuple(sorted(self._creators))

    def register(self, backend: str, creator: Creator) -> None:
        """Register a backend; the same creator again is fine.

        Raises:
            ValueError: the name is empty, or taken by another creator.
        """
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        known = self._creators.setdefault(backend, creator)
        if known is not creator:
            raise ValueError(
                f"The rendezvous backend '{backend}' is already registered with a different creator: {known!r}, "
                f"not {creator!r}."
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler that ``params`` ask for; it connects when it is entered.

        Raises:
            ValueError: the backend is unknown, or does not know an option.
            RuntimeError: the creator made a handler of another backend.
        """
        creator = self._creators.get(params.backend) or self._discover(params.backend)
        if creator is None:
            near = difflib.get_close_matches(params.backend, self._creators, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(
                f"The rendezvous backend '{params.backend}' is not registered.{hint} Known: {', '.join(self.names())}. "
                f"Did you forget to call register_backend(), or to install the package that has it?"
            )
        _refuse_unknown_options(params, creator)
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"The rendezvous backend '{handler.get_backend()}' does not match the requested backend "
                f"'{params.backend}'."
            )
        return handler

    def _discover(self, backend: str) -> Creator | None:
        """Look for a plug-in: a broken requested one raises, a broken other one is only logged."""
        from importlib import metadata  # costs 30 ms, and most runs need no plug-in

        for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
            if entry.name != backend and entry.name in self._creators:
                continue
            try:
                creator: Creator = entry.load()
            except Exception as exc:  # a plug-in may fail in any way at import
                if entry.name == backend:
                    raise ValueError(f"The plug-in for the rendezvous backend '{backend}' is broken: {exc}") from exc
                logger.warning("the plug-in for the rendezvous backend %r is broken: %s", entry.name, exc)
            else:
                self.register(entry.name, creator)
        return self._creators.get(backend)


def _refuse_unknown_options(params: RendezvousParameters, creator: Creator) -> None:
    """A misspelt option must not vanish (D18); a creator that declares none accepts all."""
    declared = getattr(creator, "options", None)
    if declared is None:
        return
    known = COMMON_OPTIONS | frozenset(declared)
    for name in params.config:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ValueError(
                f"The rendezvous backend '{params.backend}' knows no option '{name}'{hint} "
                f"Known options: {', '.join(sorted(known))}."
            )
