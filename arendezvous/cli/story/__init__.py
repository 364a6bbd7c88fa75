"""What ``arendezvous demo`` tells: a store and agents as real processes, and a measured timeline of their fate."""

from __future__ import annotations

__all__ = ()
