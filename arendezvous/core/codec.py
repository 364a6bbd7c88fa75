"""Bytes to states and announcements and back: versioned, typed, size-capped; never pickle (defects.md D1, D39).

A state is ``b"ARZS"``, one version byte and one msgpack array. Descriptors are stored once and referred to by index, so
that a node costs its descriptor and a few bytes. Any bytes give a state that satisfies the invariants, or
``RendezvousStateError``; memory is bounded by the length of the input and the caps below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..errors import RendezvousStateError
from ..node import RANK_ORDERS, NodeDesc
from .state import AgreedSettings, Closed, Gone, Kind, Record, RendezvousState, invariants

__all__ = (
    "FORMAT_VERSION",
    "MAX_NODES",
    "MAX_STATE_BYTES",
    "decode_record",
    "decode_state",
    "encode_record",
    "encode_state",
)

#: Version of both formats; nodes of two versions refuse each other by name.
FORMAT_VERSION = 1
#: Largest encoded state that is read: ten thousand nodes take less than 1.6 MB.
MAX_STATE_BYTES = 32 * 1024 * 1024
#: Most descriptors or tombstones in one state.
MAX_NODES = 100_000
#: An announcement lifts the round number to this at most, or a single one could use up the numbers of a state.
MAX_LAST_ROUND = 2**53
#: Largest encoded announcement that is read.
MAX_RECORD_BYTES = 16 * 1024

_STATE_MAGIC, _RECORD_MAGIC = b"ARZS", b"ARZR"

_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Index = Annotated[int, Meta(ge=0, lt=MAX_NODES)]
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]
_Text = Annotated[str, Meta(max_length=1024)]
_Attributes = Annotated[dict[_Text, _Text | int | float | bool], Meta(max_length=64)]


class _Settings(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    min_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    rank_order: Annotated[str, Meta(max_length=32)]
    last_call: _Seconds
    keep_alive_interval: _Seconds
    keep_alive_max_attempt: Annotated[int, Meta(ge=1, le=10**6)]


class _Node(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    inc: _Id
    addr: _Text
    pid: _Count
    local_id: _Count
    seq: Annotated[int, Meta(ge=1, le=2**62)]
    local_world_size: Annotated[int, Meta(ge=0, le=10**6)] = 1
    node_rank: Annotated[int, Meta(ge=0, le=10**6)] | None = None
    attributes: _Attributes | None = None


class _State(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    settings: _Settings
    epoch: _Id
    nonce: _Id
    round_nonce: _Id
    closed: Annotated[int, Meta(ge=0, le=2)]
    gen: _Count
    round: _Count
    complete: bool
    failures: _Count
    floor: _Count
    nodes: Annotated[list[_Node], Meta(max_length=MAX_NODES)]
    participants: Annotated[list[_Index], Meta(max_length=MAX_NODES)]
    queue: Annotated[list[_Index], Meta(max_length=MAX_NODES)]
    gone: Annotated[list[tuple[_Index, Annotated[int, Meta(ge=0, le=3)]]], Meta(max_length=MAX_NODES)]
    finished: Annotated[list[_Index], Meta(max_length=MAX_NODES)]
    tombstones: Annotated[list[tuple[_Id, Annotated[int, Meta(ge=1, le=2**62)]]], Meta(max_length=MAX_NODES)]


class _Record(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    inc: _Id
    seq: Annotated[int, Meta(ge=1, le=2**62)]
    kind: Annotated[int, Meta(ge=0, le=3)]
    node: _Node | None
    settings: _Settings | None
    last_round: Annotated[int, Meta(ge=-1, le=2**62)]
    failed: bool
    round_nonce: Annotated[bytes, Meta(max_length=16)]


_CLOSED = (Closed.NO, Closed.CLOSED, Closed.DONE)
_GONE = (Gone.LEFT, Gone.REJOIN, Gone.FAILED, Gone.LOST)
_KIND = (Kind.JOIN, Kind.LEAVE, Kind.FINISH, Kind.CLOSE)

_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(_State)
_record_decoder = msgspec.msgpack.Decoder(_Record)


def _settings_out(settings: AgreedSettings) -> _Settings:
    return _Settings(
        settings.min_nodes,
        settings.max_nodes,
        settings.rank_order,
        settings.last_call,
        settings.keep_alive_interval,
        settings.keep_alive_max_attempt,
    )


def _settings_in(wire: _Settings) -> AgreedSettings:
    # Whoever folds these into a vacant state agrees to them for everybody.
    if wire.min_nodes > wire.max_nodes:
        raise ValueError(f"min_nodes {wire.min_nodes} is above max_nodes {wire.max_nodes}")
    if wire.rank_order not in RANK_ORDERS:
        raise ValueError(f"there is no rank order {wire.rank_order!r}; it is one of {', '.join(RANK_ORDERS)}")
    return AgreedSettings(
        wire.min_nodes,
        wire.max_nodes,
        wire.rank_order,
        wire.last_call,
        wire.keep_alive_interval,
        wire.keep_alive_max_attempt,
    )


def _node_out(node: NodeDesc, seq: int) -> list[Any]:
    """A list rather than a struct, so that trailing defaults cost nothing."""
    row: list[Any] = [node.incarnation, node.addr, node.pid, node.local_id, seq]
    attributes = dict(node.attributes)
    if attributes or node.node_rank is not None or node.local_world_size != 1:
        row.append(node.local_world_size)
    if attributes or node.node_rank is not None:
        row.append(node.node_rank)
    if attributes:
        row.append(attributes)
    return row


def _node_in(wire: _Node) -> NodeDesc:
    return NodeDesc(
        wire.addr,
        wire.pid,
        wire.local_id,
        wire.inc,
        wire.node_rank,
        wire.local_world_size,
        wire.attributes or {},
    )


def encode_state(state: RendezvousState) -> bytes:
    """Encode a state.

    Args:
        state: Any state that satisfies the invariants.

    Returns:
        bytes: about 95 bytes per node with a 64-letter address, plus 140.
    """
    index = {inc: k for k, inc in enumerate(state.nodes)}
    body = [
        _settings_out(state.settings),
        state.epoch,
        state.nonce,
        state.round_nonce,
        _CLOSED.index(state.closed),
        state.gen,
        state.round,
        state.complete,
        state.failures,
        state.floor,
        [_node_out(node, state.folded[inc]) for inc, node in state.nodes.items()],
        [index[inc] for inc in state.participants],
        [index[inc] for inc in state.queue],
        [(index[inc], _GONE.index(why)) for inc, why in state.gone.items()],
        [index[inc] for inc in state.participants if inc in state.finished],
        [(inc, seq) for inc, seq in state.folded.items() if inc not in index],
    ]
    return _STATE_MAGIC + bytes((FORMAT_VERSION,)) + _encoder.encode(body)


def decode_state(data: bytes) -> RendezvousState:
    """Decode a state, trusting nothing.

    Args:
        data: Any bytes.

    Returns:
        RendezvousState: satisfies :func:`~arendezvous.core.state.invariants`.

    Raises:
        RendezvousStateError: the bytes are no state, of another format version, too large, or contradict themselves.
    """
    wire = _decode(data, _STATE_MAGIC, _state_decoder, MAX_STATE_BYTES, "state")
    try:
        incs = [node.inc for node in wire.nodes]
        state = RendezvousState(
            settings=_settings_in(wire.settings),
            epoch=wire.epoch,
            nonce=wire.nonce,
            round_nonce=wire.round_nonce,
            closed=_CLOSED[wire.closed],
            gen=wire.gen,
            round=wire.round,
            complete=wire.complete,
            participants=tuple(incs[k] for k in wire.participants),
            gone={incs[k]: _GONE[why] for k, why in wire.gone},
            finished=frozenset(incs[k] for k in wire.finished),
            queue=tuple(incs[k] for k in wire.queue),
            nodes={node.inc: _node_in(node) for node in wire.nodes},
            folded={**{node.inc: node.seq for node in wire.nodes}, **dict(wire.tombstones)},
            failures=wire.failures,
            floor=wire.floor,
        )
    except (IndexError, ValueError, TypeError) as exc:
        raise RendezvousStateError(f"The rendezvous state object is corrupt: {exc}") from exc
    if len(set(incs)) != len(incs):
        raise RendezvousStateError("The rendezvous state object is corrupt: an incarnation is described twice")
    if len(state.folded) != len(incs) + len(wire.tombstones):
        raise RendezvousStateError("The rendezvous state object is corrupt: an incarnation has two folded sequences")
    if len(state.gone) != len(wire.gone) or len(state.finished) != len(wire.finished):
        raise RendezvousStateError("The rendezvous state object is corrupt: a member has gone or finished twice")
    if wrong := invariants(state):
        raise RendezvousStateError(f"The rendezvous state object contradicts itself: {'; '.join(wrong)}")
    return state


def encode_record(record: Record) -> bytes:
    """Encode an announcement."""
    body = [
        record.inc,
        record.seq,
        _KIND.index(record.kind),
        None if record.node is None else _node_out(record.node, record.seq),
        None if record.settings is None else _settings_out(record.settings),
        record.last_round,
        record.failed,
        record.round_nonce,
    ]
    return _RECORD_MAGIC + bytes((FORMAT_VERSION,)) + _encoder.encode(body)


def decode_record(data: bytes) -> Record:
    """Decode an announcement, trusting nothing.

    Raises:
        RendezvousStateError: the bytes are no announcement or of another format version.
    """
    wire = _decode(data, _RECORD_MAGIC, _record_decoder, MAX_RECORD_BYTES, "announcement")
    if wire.node is not None and wire.node.inc != wire.inc:
        raise RendezvousStateError("The rendezvous announcement is corrupt: it describes somebody else")
    try:
        return Record(
            wire.inc,
            wire.seq,
            _KIND[wire.kind],
            None if wire.node is None else _node_in(wire.node),
            None if wire.settings is None else _settings_in(wire.settings),
            min(wire.last_round, MAX_LAST_ROUND),
            wire.failed,
            wire.round_nonce,
        )
    except (ValueError, TypeError) as exc:
        raise RendezvousStateError(f"The rendezvous announcement is corrupt: {exc}") from exc


def digest(parts: Sequence[bytes]) -> str:
    """A short fingerprint for messages about bytes that cannot be shown."""
    return hashlib.blake2b(b"".join(parts), digest_size=6).hexdigest()


def _decode(data: bytes, magic: bytes, decoder: msgspec.msgpack.Decoder[Any], cap: int, what: str) -> Any:
    if len(data) > cap:
        raise RendezvousStateError(f"The rendezvous {what} has {len(data)} bytes; at most {cap} are read")
    if data[: len(magic)] != magic or len(data) <= len(magic):
        raise RendezvousStateError(
            f"The rendezvous {what} object is corrupt: {len(data)} bytes that are not ours "
            f"(fingerprint {digest([data])})"
        )
    version = data[len(magic)]
    if version != FORMAT_VERSION:
        raise RendezvousStateError(
            f"The rendezvous {what} is of format version {version}; this node speaks version {FORMAT_VERSION}. "
            "Run the same version of arendezvous on every node."
        )
    try:
        return decoder.decode(data[len(magic) + 1 :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise RendezvousStateError(f"The rendezvous {what} object is corrupt: {exc}") from exc
