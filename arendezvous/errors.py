"""Every exception that a user can meet, sorted by who must act.

::

    RendezvousError                                  catch-all of this library
    ├── RendezvousClosedError                        nobody: the run id is closed for ever, use a fresh one
    ├── RendezvousGracefulExitError                  nobody: a spare whose job ended; exit 0
    ├── RendezvousTimeoutError                       the operator: somebody or something did not come in time
    │   ├── RendezvousExhaustedError                 fewer than min_nodes joined in the join time-out
    │   └── StoreTimeoutError                        keys that nobody wrote (also TimeoutError, RuntimeError)
    ├── RendezvousConnectionError                    the operator: the store cannot be reached
    ├── RendezvousStateError                         the operator: what is stored is not ours or damaged
    ├── RendezvousSettingsError                      the caller: nodes of one run disagree (also ValueError)
    └── RendezvousUsageError                         the caller: two calls at once, used outside ``async with``
                                                     (also RuntimeError)

Mistakes in arguments are plain ``ValueError`` and ``TypeError``, raised before anything is sent. A caller's own cancel
scope stays anonymous, as everywhere in anyio.
"""

from __future__ import annotations

__all__ = (
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousExhaustedError",
    "RendezvousGracefulExitError",
    "RendezvousSettingsError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "RendezvousUsageError",
    "StoreTimeoutError",
)


class RendezvousError(Exception):
    """Base of every error of this library."""


class RendezvousClosedError(RendezvousError):
    """The run id was closed for ever; it takes no further participants."""


class RendezvousGracefulExitError(RendezvousError):
    """This node was a spare that was not needed and the job is over: not a failure, exit with status 0."""


class RendezvousTimeoutError(RendezvousError):
    """A phase took longer than its time-out; the message names who or what is missing."""


class RendezvousExhaustedError(RendezvousTimeoutError):
    """The join time-out ended with fewer than ``min_nodes`` nodes present.

    Args:
        config: Whatever carries ``min_nodes`` (parameters or settings); kept as ``.config``.
        timeout: The join time-out that ended, a ``timedelta`` or seconds; kept as ``.timeout``.
        detail: Optional sentence with run id, counts, the missing nodes and the time waited.
    """

    def __init__(self, config: object, timeout: object, detail: str = "") -> None:
        self.config = config
        self.timeout = timeout
        self.detail = detail
        text = (
            "The rendezvous join window elapsed without reaching "
            f"min_nodes={getattr(config, 'min_nodes', '?')} within {timeout}."
        )
        super().__init__(f"{text} {detail}" if detail else text)

    def __reduce__(self) -> tuple[type[RendezvousExhaustedError], tuple[object, object, str]]:
        return type(self), (self.config, self.timeout, self.detail)


class StoreTimeoutError(RendezvousTimeoutError, TimeoutError, RuntimeError):
    """A store operation outlived the store's own limit; names the missing keys, the endpoint and the time waited."""


class RendezvousConnectionError(RendezvousError):
    """The store cannot be reached, or answered something that no store of ours says."""


class RendezvousStateError(RendezvousError):
    """The stored state is damaged, foreign or of another format version."""


class RendezvousSettingsError(RendezvousError, ValueError):
    """This node's settings differ from those that the first joiner of the run recorded."""


class RendezvousUsageError(RendezvousError, RuntimeError):
    """The object was used in a way its documentation excludes, such as two joins at once."""
