"""The contract of a backend: get the state with a token, set it only over the token's state."""

from __future__ import annotations

from typing import Protocol

__all__ = ("RendezvousBackend", "Token")

#: Fences a write: a random epoch in the high 64 bits, a counter in the low 64 (defects.md D11).
Token = int


class RendezvousBackend(Protocol):
    """Keeps one value per run under fencing tokens.

    Cancellation:
        Cancelling ``set_state`` is safe: it may or may not have happened.
    """

    @property
    def name(self) -> str:
        """The backend's registered name."""
        ...

    async def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None when there is none.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: what is stored was not written by a backend of this kind.
        """
        ...

    async def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` if the stored one still has ``token``.

        Args:
            state: The new state.
            token: The token of the state to replace; None or 0 creates only.

        Returns:
            The state now stored, its token and whether this call wrote it; None when there is no state and ``token``
            named one.

        Raises:
            RendezvousConnectionError: the store cannot be reached, or the outcome is unknown.
        """
        ...

    async def changed(self, token: Token | None) -> tuple[bytes, Token] | None:
        """Wait until the stored state no longer has ``token`` (None = no state) and return what is there."""
        ...
