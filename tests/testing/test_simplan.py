"""Plans of simulations."""

from __future__ import annotations

from arendezvous.params import RendezvousSettings
from arendezvous.testing.simplan import CALM, Plan, make_plan


def plans(count: int = 300) -> list[Plan]:
    return [make_plan(seed) for seed in range(count)]


def test_a_plan_follows_from_its_seed() -> None:
    for seed in range(20):
        one, same = make_plan(seed), make_plan(seed)
        assert [n.weather for n in one.nodes] == [n.weather for n in same.nodes]
        assert [n.crashes for n in one.nodes] == [n.crashes for n in same.nodes]
        assert one.options == same.options


def test_every_fault_is_over_at_the_calm() -> None:
    for plan in plans():
        for node in plan.nodes:
            assert node.start < CALM
            assert all(outage.end <= CALM for outage in node.outages)
            assert all(pause.end <= CALM for pause in node.clock.pauses)
            assert all(crash.at <= CALM for crash in node.crashes)


def test_every_plan_gives_valid_parameters() -> None:
    for plan in plans():
        for index in range(len(plan.nodes)):
            settings = RendezvousSettings.from_params(plan.parameters(index))
            assert settings.expiry == plan.expiry
            assert settings.timeout.join_seconds == plan.join
            assert settings.timeout.last_call_seconds == plan.last_call


def test_plans_cover_every_kind_of_fault() -> None:
    made = plans()
    nodes = [node for plan in made for node in plan.nodes]
    assert {len(plan.nodes) for plan in made} == {2, 3, 4, 5, 6}
    assert any(len(plan.nodes) > plan.max_nodes for plan in made)
    assert any(plan.min_nodes < plan.max_nodes for plan in made)
    assert {plan.options["rank_order"] for plan in made} == {"address", "natural", "stable", "node_rank"}
    assert any(not plan.notify_lost for plan in made)
    assert any(plan.twins for plan in made)
    assert any(plan.store_lost < CALM for plan in made)
    assert any(node.closes_at < CALM for node in nodes)
    assert any(pause.frozen for node in nodes for pause in node.clock.pauses)
    assert any(outage.reset for node in nodes for outage in node.outages)
    assert any(crash.same and crash.restart < 1 and not crash.noticed for node in nodes for crash in node.crashes)
