"""Events of a rendezvous for monitoring: what happened, to which run, on which node.

Nothing is recorded until somebody registers a recorder for a destination; until then an event costs one look-up.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

__all__ = (
    "DEFAULT_DESTINATION",
    "EventRecorder",
    "LoggingRecorder",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_recorder",
    "record_rdzv_event",
    "register_recorder",
)

logger = logging.getLogger(__name__)

#: Where events go unless they are told otherwise.
DEFAULT_DESTINATION = "rdzv_logger"


class NodeState(StrEnum):
    """The states that an event reports for a node."""

    INITIALIZED = "INITIALIZED"
    #: The name that torch elastic has for it.
    INIT = "INITIALIZED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    CLOSED = "CLOSED"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class RdzvEvent:
    """One event.

    Args:
        node_state: The state of the node.
        run_id: The run; also ``rendezvous_id``.
        message: What happened, as a sentence.
        name: What kind of event it is, for grouping.
        hostname: Where it happened; this host unless given.
        pid: In which process; this one unless given.
        master_endpoint: The rendezvous endpoint, if known.
        rank: Rank of the node in its round, if it has one.
        local_rank: Rank of a worker on its node, if the event is about one.
        local_id: Tells apart the nodes of one process.
        error_trace: The traceback of a failure.
    """

    node_state: NodeState
    run_id: str
    message: str
    name: str = ""
    hostname: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    master_endpoint: str = ""
    rank: int | None = None
    local_rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    @property
    def rendezvous_id(self) -> str:
        """The run id under its other name."""
        return self.run_id

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """The event as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def deserialize(cls, data: str) -> RdzvEvent:
        """Read what ``serialize`` wrote; members that it does not know are left out.

        Raises:
            ValueError: this is not an event.
        """
        try:
            members: dict[str, Any] = json.loads(data)
            known = {member.name for member in fields(cls)}
            found = {name: value for name, value in members.items() if name in known}
            return cls(**{**found, "node_state": NodeState(found["node_state"])})
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"This is not a rendezvous event: {data!r}") from exc


EventRecorder = Callable[[RdzvEvent], None]


class LoggingRecorder:
    """A recorder that hands events to ``logging``, with their members as attributes of the record.

    A formatter reads them as ``%(rdzv_run_id)s``, ``%(rdzv_node_state)s`` and so on; ``record.rdzv_event`` is the
    event.

    Args:
        target: The logger; ``arendezvous.events`` unless given.
        level: The level of all events but failures, which are errors.
    """

    def __init__(self, target: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = target if target is not None else logger
        self._level = level

    def __call__(self, event: RdzvEvent) -> None:
        level = max(self._level, logging.ERROR) if event.node_state is NodeState.FAILED else self._level
        if not self._logger.isEnabledFor(level):
            return
        extra: dict[str, object] = {f"rdzv_{name}": value for name, value in asdict(event).items()}
        extra["rdzv_event"] = event
        self._logger.log(level, "%s: %s", event.run_id, event.message, extra=extra)


_recorders: dict[str, EventRecorder] = {}


def register_recorder(recorder: EventRecorder | None, destination: str = DEFAULT_DESTINATION) -> EventRecorder | None:
    """Let a recorder have the events of a destination.

    Args:
        recorder: Called with each event, in the thread and task that records it, so it should be quick; an exception of
            its own is logged and goes no further. None: nobody.
        destination: The name that events are sent to.

    Returns:
        The recorder that had the destination before, so that it can be put back.
    """
    previous = _recorders.get(destination)
    if recorder is None:
        _recorders.pop(destination, None)
    else:
        _recorders[destination] = recorder
    return previous


def get_recorder(destination: str = DEFAULT_DESTINATION) -> EventRecorder | None:
    """The recorder of a destination, None if it has none."""
    return _recorders.get(destination)


def record_rdzv_event(event: RdzvEvent, destination: str = DEFAULT_DESTINATION) -> None:
    """Hand an event to the recorder of a destination, if it has one. Never raises for what a recorder does."""
    recorder = _recorders.get(destination)
    if recorder is None:
        return
    try:
        recorder(event)
    except Exception:
        # Monitoring that fails must not fail the job it monitors.
        logger.exception("the recorder of %r failed on an event of %r", destination, event.run_id)


def construct_and_record_rdzv_event(
    node_state: NodeState,
    run_id: str,
    message: str,
    *,
    name: str = "",
    hostname: str | None = None,
    pid: int | None = None,
    master_endpoint: str = "",
    rank: int | None = None,
    local_rank: int | None = None,
    local_id: int | None = None,
    error_trace: str | None = None,
    destination: str = DEFAULT_DESTINATION,
) -> None:
    """Build an event and record it; next to free while nobody listens.

    Args:
        node_state: The state of the node.
        run_id: The run.
        message: What happened.
        name: What kind of event it is.
        hostname: Where it happened; None is this host.
        pid: In which process; None is this one.
        master_endpoint: The rendezvous endpoint.
        rank: Rank of the node.
        local_rank: Rank of a worker on its node.
        local_id: Tells apart the nodes of one process.
        error_trace: The traceback of a failure; None: that of the exception being handled, if the state is FAILED.
        destination: The name of the recorder.

    Raises:
        ValueError: ``node_state`` is no state, as when the first two arguments are exchanged.
    """
    if type(node_state) is not NodeState:
        node_state = NodeState(node_state)
    if destination not in _recorders:
        return
    if error_trace is None:
        failing = node_state is NodeState.FAILED and sys.exception() is not None
        error_trace = traceback.format_exc() if failing else ""
    record_rdzv_event(
        RdzvEvent(
            node_state=node_state,
            run_id=run_id,
            message=message,
            name=name,
            hostname=platform.node() if hostname is None else hostname,
            pid=os.getpid() if pid is None else pid,
            master_endpoint=master_endpoint,
            rank=rank,
            local_rank=local_rank,
            local_id=local_id,
            error_trace=error_trace,
        ),
        destination,
    )
