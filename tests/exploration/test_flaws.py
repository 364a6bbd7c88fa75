"""The checker finds every flaw when its rule is off and nothing when it is on: its silence is worth something."""

from __future__ import annotations

import pytest

from .config import CORE_RULES, ENVIRONMENT_RULES, Config
from .explorer import explore
from .flaws import FLAWS, Flaw

pytestmark = pytest.mark.timeout(600)

#: Rules whose absence leads to no violation of what the explorer checks, and where they are tested instead.
UNSHOWN = {
    "finish_before_suspects": "whose FINISH is in the log when it is suspected counts as finished; without the rule "
    "its work is done once more, which is allowed (tests/core/test_fold_finish.py)",
    "finish_round": "a FINISH of an older round cannot reach a live member of a newer one, because whoever has "
    "finished joins again as another incarnation only (tests/core/test_fold_finish.py)",
}


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_without_its_rule_the_flaw_is_found(flaw: Flaw) -> None:
    outcome = explore(flaw.broken)
    print(outcome)
    assert outcome.verdict == flaw.verdict
    found = outcome.violation or outcome.stuck
    assert found is not None
    assert flaw.says in found[0]
    assert found[1], "a trace"


@pytest.mark.parametrize("config", dict.fromkeys(flaw.sound for flaw in FLAWS), ids=str)
def test_with_all_rules_nothing_is_found(config: Config) -> None:
    outcome = explore(config)
    print(outcome)
    assert outcome.complete
    assert outcome.clean


def test_every_rule_is_shown_to_be_needed() -> None:
    shown = set().union(*(flaw.off | flaw.still_off for flaw in FLAWS))
    assert CORE_RULES | ENVIRONMENT_RULES.keys() == shown | UNSHOWN.keys()
