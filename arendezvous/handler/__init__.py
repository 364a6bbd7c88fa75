"""The handlers: one node's driver, heartbeats, rounds and everything a user awaits."""

from __future__ import annotations

__all__ = ()
