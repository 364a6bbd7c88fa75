"""How a call of a client goes: on which connection, for how long, and what happens when its answer is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from ..errors import RendezvousConnectionError, RendezvousUsageError, StoreTimeoutError
from ..wire import messages as say
from ..wire.errors import WireError
from ..wire.frames import encode_frame
from .arguments import decode_key, name_keys
from .link import Call, LimitEnded

if TYPE_CHECKING:
    from .dialer import Dialer

__all__ = ("Calls", "check_count")

#: Seconds to ask which of several keys are missing, once waiting for them has taken too long.
_POSTMORTEM = 0.5

_R = TypeVar("_R", bound=say.Reply)


def check_count(keys: int) -> None:
    """Refuse more keys in one call than fit a message.

    Raises:
        ValueError: there are more.
    """
    if keys > say.MAX_KEYS:
        raise ValueError(f"{keys} keys in one call; at most {say.MAX_KEYS} fit")


class Calls:
    """Makes the calls of one client on the connections that its dialer keeps.

    Args:
        dialer: Where the connections come from.
        endpoint: What messages call the other end.
        max_frame: Largest message in bytes.

    Attributes:
        opened: Whether calls may be made yet.
    """

    def __init__(self, dialer: Dialer, *, endpoint: str, max_frame: int) -> None:
        self.opened = False
        self._dialer = dialer
        self._endpoint = endpoint
        self._max_frame = max_frame
        self._ids = 0

    def next_id(self) -> int:
        """Return an id that no other request of this client has."""
        self._ids += 1
        return self._ids

    async def ask(
        self, request: say.Request, answer: type[_R], what: str, limit: float | None, *, again: bool = True
    ) -> _R:
        """Make a call that the server answers at once.

        Args:
            request: What to ask.
            answer: What the answer is.
            what: What messages call the request.
            limit: Seconds that it may take; None = any time.
            again: Whether it may be sent again when the connection was lost before the answer came.

        Raises:
            RendezvousConnectionError: there was no answer within the limit, or it was lost and ``again`` is not set.
            ValueError: the request is too large, or the server refuses it for what it asks.

        Cancellation:
            Safe: the call may or may not have happened.
        """
        try:
            return await self.exchange(request, answer, what, limit, again=again)
        except LimitEnded:
            if self._dialer.link is None:
                raise self._dialer.unreachable() from self._dialer.last_failure
            raise RendezvousConnectionError(
                f"the store at {self._endpoint} did not answer {what} within {limit:.3g} s; "
                "is it stopped or overloaded?"
            ) from None

    async def wait_for(self, keys: Sequence[bytes], limit: float | None, *, want: bool) -> list[bytes]:
        """Make a call that the server answers when all of ``keys`` exist.

        Args:
            keys: What to wait for.
            limit: Seconds that it may take; None = any time.
            want: Whether to return the values.

        Raises:
            StoreTimeoutError: the limit ended first; the message names the missing keys.
            RendezvousConnectionError: the store cannot be reached.
            ValueError: there are too many keys for one message.

        Cancellation:
            Safe.
        """
        check_count(len(keys))
        request = say.Get(self.next_id(), list(keys), want)
        try:
            return (await self.exchange(request, say.Values, "a wait for keys", limit)).values
        except LimitEnded:
            if self._dialer.link is None:
                raise self._dialer.unreachable() from self._dialer.last_failure
        missing = keys if len(keys) == 1 else await self._still_missing(keys)
        names = name_keys([decode_key(key) for key in missing])
        raise StoreTimeoutError(
            f"waited {limit:.3g} s for {names} in the store at {self._endpoint}, which nobody has set"
        )

    async def _still_missing(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        request = say.Check(self.next_id(), list(keys))
        with suppress(RendezvousConnectionError, LimitEnded):
            return (await self.exchange(request, say.Values, "a check of keys", _POSTMORTEM)).values or keys
        return keys

    async def exchange(
        self, request: say.Request, answer: type[_R], what: str, limit: float | None = None, *, again: bool = True
    ) -> _R:
        """Make a call on this connection or the next.

        Raises:
            LimitEnded: there was no answer within the limit.
            RendezvousConnectionError: the store cannot be reached, or the answer was lost and ``again`` is not set.
            ValueError: the request is too large, or the server refuses it for what it asks.

        Cancellation:
            Safe: the call may or may not have happened.
        """
        if not self.opened:
            raise RendezvousUsageError("a TCPStore is used inside `async with`")
        try:
            frame = encode_frame(say.encode(request), self._max_frame)
        except WireError as exc:
            raise ValueError(f"too large for the store at {self._endpoint}: {exc}") from exc
        # In a scope that is cancelled already nothing is sent.
        await checkpoint_if_cancelled()
        deadline = math.inf if limit is None else anyio.current_time() + limit
        dialer = self._dialer
        while True:
            dialer.check_open()
            link = dialer.link or await dialer.ready(deadline)
            call = Call(request, frame, deadline)
            link.post(call)
            try:
                await call.settled.wait()
            finally:
                if not call.settled.is_set():
                    link.forget(call)
            reply = call.reply
            if type(reply) is answer:
                return reply
            if reply is not None:
                raise self._refusal(reply, what)
            if isinstance(call.failure, LimitEnded):
                raise call.failure
            dialer.check_open()
            if isinstance(call.failure, WireError):
                # Asking again would get the same.
                raise RendezvousConnectionError(
                    f"the store at {self._endpoint} answered something that no store of ours says: {call.failure}"
                ) from call.failure
            if call.sent and not again:
                raise RendezvousConnectionError(
                    f"the connection to the store at {self._endpoint} was lost before the answer to {what} came "
                    f"({call.failure}): the outcome is unknown, read the key to learn it"
                ) from call.failure

    def _refusal(self, reply: say.Reply, what: str) -> Exception:
        if isinstance(reply, say.Failed):
            return ValueError(reply.text)
        return RendezvousConnectionError(
            f"the store at {self._endpoint} answered {what} with {type(reply).__name__}: it is not ours"
        )
