"""Where the agreed state is kept: fenced reads and writes of one value."""

from __future__ import annotations

from .base import RendezvousBackend, Token
from .p10d import P10dRendezvousBackend

__all__ = ("P10dRendezvousBackend", "RendezvousBackend", "Token")
