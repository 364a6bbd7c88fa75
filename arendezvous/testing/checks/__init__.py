"""The single checks of the conformance suite, by the part of the store protocol that they settle."""

from __future__ import annotations

__all__ = ()
