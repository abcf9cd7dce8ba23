from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.trade_offs import OBJECTIVES, differences, pareto, saves
from tests.planner.platform_plan.conftest import question

COSTS = st.tuples(st.floats(1, 3), st.none() | st.floats(1, 3), st.none() | st.floats(1, 3), st.booleans())


@pytest.fixture(scope="module")
def plan(h100x2):
    return h100x2


def costing(one, tpot_s, joules, dollars, needs_training):
    return replace(
        one,
        prediction=replace(one.prediction, tpot_s=tpot_s),
        energy_j_per_token=joules,
        usd_per_million_tokens=dollars,
        needs_training=needs_training,
    )


def is_no_worse(one, other):
    ours, theirs = ([getattr(row, name) or 9.0 for name in OBJECTIVES] for row in (one, other))
    return all(mine <= its for mine, its in zip(ours, theirs, strict=True))


@given(costs=st.lists(COSTS, min_size=1, max_size=9))
def test_the_front_is_what_nothing_beats_and_beats_all_else(plan, costs):
    rows = [costing(plan.best, *one) for one in costs]
    front, possible = pareto(rows), [row for row in rows if not row.needs_training]
    assert all(is_no_worse(one, row) for one in front for row in possible if is_no_worse(row, one))
    assert all(any(is_no_worse(one, row) for one in front) for row in possible)
    assert bool(front) == bool(possible)
    assert [one.tpot_s for one in front] == sorted(one.tpot_s for one in front)


def test_errors_that_two_places_share_cancel_where_each_is_compared_with_the_best(plan):
    best, beside = plan.best, plan.compared
    assert (beside(best, best).low, beside(best, best).high) == (1, 1)
    for one in plan.ranking:
        there, back = beside(one, best), beside(best, one)
        assert there.value == pytest.approx(1 / back.value)
        assert there.high == pytest.approx(1 / back.low)
        assert there.machine_error <= one.prediction.relative_error + best.prediction.relative_error + 1e-12
    same_lanes = next(one for one in plan.ranking if one is not best and one.pair == best.pair)
    assert beside(same_lanes, best).machine_error < best.prediction.relative_error / 2


def test_lanes_of_equal_devices_are_wrong_together_and_of_others_not(plan):
    lane = plan.profile.lane
    assert lane("gpu0").errs_as == lane("gpu1").errs_as == lane("gpu0#2").errs_as
    changed = plan_platform(question("h100x2", weights="bf16", changes={"gpu1.memory_bytes_per_s": 2e12})).profile
    assert changed.lane("gpu0").errs_as != changed.lane("gpu1").errs_as


def test_what_a_place_saves_is_said_in_per_cent(plan):
    cheap = costing(plan.best, 1.0, 1.0, 0.7, False)
    dear = costing(plan.best, 1.0, 1.2, 1.0, False)
    assert list(differences(cheap, dear)) == ["30 % cheaper", "17 % less energy"]
    assert list(differences(dear, cheap)) == ["43 % more expensive", "20 % more energy"]
    assert saves(cheap, dear)
    assert not saves(dear, cheap)
    assert not saves(cheap, cheap)
