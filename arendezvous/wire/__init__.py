"""The native wire protocol: bytes to messages and back, pure."""

from __future__ import annotations

__all__ = ()
