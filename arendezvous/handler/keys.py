"""Every key of a run, in one place (design.md section 3, protocol.md P1)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

__all__ = ("Keys",)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run; the run id is quoted, so no two runs share a prefix (defects.md D27)."""

    run_id: str

    @property
    def prefix(self) -> str:
        """Everything of the run starts with this."""
        return f"arendezvous/1/{quote(self.run_id, safe='')}/"

    @property
    def state(self) -> str:
        """The agreed state; changed by compare-and-swap only."""
        return self.prefix + "state"

    @property
    def bell(self) -> str:
        """A counter that grows with each announcement: who folds watches it."""
        return self.prefix + "bell"

    def log(self, epoch: bytes, gen: int) -> str:
        """Prefix of the announcements of one generation of one history."""
        return f"{self.prefix}log/{epoch.hex()}.{gen}/"

    def record(self, epoch: bytes, gen: int, inc: bytes, seq: int) -> str:
        """One announcement: never overwritten with another content (protocol.md F4)."""
        return f"{self.log(epoch, gen)}{inc.hex()}.{seq}"

    @property
    def beats(self) -> str:
        """Prefix of the heartbeats."""
        return self.prefix + "hb/"

    def beat(self, inc: bytes) -> str:
        """One incarnation's heartbeat, written by its owner only."""
        return self.beats + inc.hex()

    def round(self, number: int, nonce: bytes) -> str:
        """Prefix of everything scoped to one round."""
        return f"{self.prefix}r/{number}.{nonce.hex()}"
