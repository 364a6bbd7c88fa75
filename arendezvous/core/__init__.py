"""The pure state machine: no IO, clock, randomness, async or logging (protocol.md, rules P1-P14)."""

from __future__ import annotations

__all__ = ()
