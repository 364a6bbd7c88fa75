"""What ``arendezvous doctor`` looks at: one module per subject, each bounded and independent of the others."""

from __future__ import annotations

__all__ = ()
