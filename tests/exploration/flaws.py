"""The flaws F1-F17 of protocol.md, and those of the finish rules, as explorations that find them.

Each is a configuration with rules off in which the checker finds the flaw, and the same one with the rules on in which
it finds nothing. What cannot be shown exactly as protocol.md tells it, and why:

F3   The acknowledgement of a withdrawal *is* the tombstone, so that without tombstones no withdrawal ever ends. That is
     found first, together with the JOIN of a dead node that is folded and removed for ever. An acknowledged node that
     is folded again needs a naive acknowledgement as well: F16 shows it.
F4   Announcements have keys of their own and are never overwritten, so that the flaw cannot happen. It is shown with
     ``keys`` off, one key per node; there P4, the own record from memory, is what prevents it.
F5   Generations clear what is older than the round, so that a ghost cannot make rounds grow for ever. What remains: it
     is removed and folded again in one go, and stays listed.
F6   The notice is the swap itself, which ``decide`` cannot know; ``notice`` and ``timer`` are off outside of the core.
F11  The world is what the handler hands out: ``frozen`` off hands out the live members.
F12  Superseding at once is an observer that takes the older twin for dead: ``wait_for_silence``.
F14  The naive formula replaces ``RendezvousState.seats`` while the exploration runs.
F15  As F4, with a folder that deletes what it folded. With the own record from memory even that does no harm.
F17  ``decide`` announces in a generation before it folds in it, which already rules out the fold from memory that the
     flaw needs. So it takes ``announce_first`` off; then only the folded LEAVE saves the day.
F18-F24 were found by reasoning about stores, replies and times that the explorer does not model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .config import Config

__all__ = ("FLAWS", "Flaw")


@dataclass(frozen=True)
class Flaw:
    """One flaw.

    Attributes:
        name: As in protocol.md.
        what: What goes wrong.
        config: With the rules on.
        off: The rules that are off.
        verdict: What the checker says then.
        says: A part of its sentence.
        still_off: Rules that stay off when the others are on: the setting in which the flaw could happen at all.
    """

    name: str
    what: str
    config: Config
    off: frozenset[str]
    verdict: str
    says: str
    still_off: frozenset[str] = field(default_factory=frozenset)

    @property
    def broken(self) -> Config:
        """With the rules off."""
        return replace(self.config, off=self.off | self.still_off)

    @property
    def sound(self) -> Config:
        """With the rules on."""
        return replace(self.config, off=self.still_off)


def _flaw(
    name: str,
    what: str,
    config: Config,
    off: str,
    verdict: str,
    says: str,
    still_off: str = "",
) -> Flaw:
    return Flaw(name, what, config, frozenset(off.split()), verdict, says, frozenset(still_off.split()))


FLAWS = (
    _flaw(
        "F1",
        "a withdrawal by reading 'not listed' is overtaken by a fold that had read the JOIN",
        Config(2, 1, 2, 1),
        "withdraw",
        "violation",
        "counted in round 0 after its withdrawal was acknowledged",
    ),
    _flaw(
        "F2",
        "an own swap in flight arrives after the reading",
        Config(1, 1, 1, 2, {"cancel": 2, "again": 1, "flight": 1}),
        "withdraw",
        "violation",
        "counted in round 1 after its withdrawal was acknowledged",
    ),
    _flaw(
        "F3",
        "tombstones are dropped at once",
        Config(2, 1, 2, 1, {"flight": 1}),
        "tomb",
        "stuck",
        "a withdrawal never ends",
    ),
    _flaw(
        "F4",
        "a late JOIN overwrites the LEAVE whose fold the canceller waits for",
        Config(2, 2, 2, 1, {"flight": 1}),
        "own_memory",
        "stuck",
        "a withdrawal never ends",
        still_off="keys",
    ),
    _flaw(
        "F5",
        "a JOIN outlives an eviction",
        Config(2, 3, 3, 1, {"cancel": 0, "restart": 0}),
        "seq",
        "stuck",
        "a dead node stays listed",
    ),
    _flaw(
        "F5 and a withdrawal",
        "a JOIN outlives the LEAVE",
        Config(2, 2, 2, 1),
        "seq",
        "violation",
        "after its withdrawal was acknowledged",
    ),
    _flaw(
        "F6",
        "the notice of a completion is written after the swap, by a driver that dies in between",
        Config(2, 2, 2, 1),
        "notice timer",
        "stuck",
        "does not complete",
    ),
    _flaw(
        "F7 (a, b)",
        "only members watch, and only members",
        Config(2, 1, 1, 1),
        "watch",
        "stuck",
        "a dead node stays listed",
    ),
    _flaw(
        "F7 (d)",
        "only listed nodes watch",
        Config(1, 1, 1, 1),
        "watch_unlisted",
        "stuck",
        "a dead node stays listed",
    ),
    _flaw(
        "F8",
        "a seat that frees is not given to the queue",
        Config(3, 2, 2, 1),
        "promote",
        "stuck",
        "does not complete",
    ),
    _flaw(
        "F9",
        "falsely evicted while it waits",
        Config(2, 2, 2, 1),
        "relearn",
        "stuck",
        "does not complete",
    ),
    _flaw(
        "F10",
        "a re-joiner reads its old round as its new one",
        Config(1, 1, 1, 1),
        "enter_seq",
        "violation",
        "handed round 0 again",
    ),
    _flaw(
        "F11",
        "the world is made of the live members",
        Config(3, 2, 3, 1),
        "frozen",
        "violation",
        "two worlds in round 0",
    ),
    _flaw(
        "F12 (at once)",
        "twins supersede each other for ever",
        Config(2, 2, 2, 0, places=(0, 0)),
        "wait_for_silence",
        "violation",
        "livelock",
    ),
    _flaw(
        "F12 (never)",
        "a ghost is ranked with its successor",
        Config(2, 1, 2, 1),
        "hold",
        "violation",
        "superseded incarnation",
    ),
    _flaw(
        "F12 (one-sided)",
        "a newcomer counts as alive without having been seen to beat",
        Config(2, 2, 3, 1),
        "hold_both",
        "violation",
        "superseded incarnation",
    ),
    _flaw(
        "F12 (too early)",
        "what a ghost did before its successor came counts as a proof of life",
        Config(2, 1, 2, 1),
        "hold_pair",
        "violation",
        "superseded incarnation",
    ),
    _flaw(
        "F13",
        "only the designated driver folds, and it is suspended",
        Config(3, 2, 3, 1, {"suspend": 1, "restart": 0, "cancel": 0}),
        "take_over",
        "stuck",
        "does not complete",
    ),
    _flaw(
        "F14",
        "the dead keep their seats",
        Config(3, 2, 2, 1, notify_lost=False),
        "view",
        "stuck",
        "wait behind the complete round 0",
    ),
    _flaw(
        "F15",
        "a folder deletes the LEAVE that overwrote the JOIN it folded",
        Config(2, 1, 2, 1),
        "no_deletion",
        "stuck",
        "a withdrawal never ends",
        still_off="keys own_memory",
    ),
    _flaw(
        "F16",
        "a swap compares the content, and the content comes back",
        Config(2, 1, 2, 2, {"crash": 0, "restart": 0, "false": 0}),
        "nonce tomb",
        "violation",
        "listed again after its withdrawal was acknowledged",
    ),
    _flaw(
        "F17",
        "a newer generation is taken for an acknowledgement",
        Config(2, 1, 2, 2, {"flight": 1, "crash": 0, "restart": 0}),
        "gen_ack",
        "violation",
        "after its withdrawal was acknowledged",
        still_off="announce_first",
    ),
    _flaw(
        "reading order",
        "announcements that were read before the state belong to an older generation",
        Config(3, 1, 1, 2, {"crash": 0, "false": 0, "restart": 0}),
        "order",
        "violation",
        "listed again after its withdrawal was acknowledged",
    ),
    _flaw(
        "done (live)",
        "the job is done once the live have finished: a false eviction ends it while its victim works",
        Config(2, 2, 2, 1, {"finish": 2}),
        "done",
        "violation",
        "closed as done although",
    ),
    _flaw(
        "done (open)",
        "the finished wait for a round without anybody unfinished to open it",
        Config(2, 2, 2, 1, {"finish": 2}),
        "open_unfinished",
        "stuck",
        "never released",
    ),
    _flaw(
        "finished watch",
        "a member that has finished stops watching",
        Config(2, 2, 2, 1, {"finish": 2}),
        "finished_watch",
        "stuck",
        "a dead node stays listed",
    ),
    _flaw(
        "finished stay out",
        "an incarnation that has finished joins again",
        Config(2, 1, 2, 1, {"finish": 2, "again": 1}),
        "finished_stay_out",
        "violation",
        "while the unfinished member",
    ),
)
