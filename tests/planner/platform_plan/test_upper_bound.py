"""The bound in closed form, and no simulated schedule beyond it."""

import pytest

from costs.cost_model import cost_of
from costs.prices import pass_s
from decoding.errors import ProfileError
from decoding.schedule import Schedule
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import demand_of
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.derived.derived_profile import derived_profile
from sim.derived.least_times import fastest_reading, most_speedup
from tests.planner.platform_plan.conftest import question
from tests.planner.synthetic import TREES, acceptance_record, machine

IN_TURN = Schedule(
    method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=4, drafter="four-layer"
)
AT_ONCE = IN_TURN.model_copy(update={"method": "mirror", "root_source": "draft", "draft_top_k": 4})


def test_in_turn_a_round_takes_both_and_at_once_the_longer_of_both():
    profile, context = machine(), 100.0
    verify_s = (
        pass_s(cost_of(profile.lane("target")), profile.num_layers, 5, context) + profile.lane("target").dispatch_s
    )
    draft = profile.lane("draft")
    step_s, dispatch_s = draft.draft_step.at(1, context), draft.dispatch_s
    in_turn, at_once = map(most_speedup(profile, 1.0, context), (IN_TURN, AT_ONCE))
    assert in_turn == pytest.approx(5 / (verify_s + 4 * step_s + dispatch_s))
    assert at_once == pytest.approx(5 / max(verify_s, 4 * step_s + dispatch_s))
    assert in_turn < at_once


@pytest.mark.parametrize("slowdown", [(1.04, 1.06), (0.8, 0.9)], ids=["slower together", "measured to be faster"])
def test_no_simulated_schedule_beats_its_bound(slowdown):
    record = acceptance_record(acceptance=0.95, trees=TREES)
    profile = machine()
    (beside,) = profile.contention
    profile = profile.model_copy(update={"contention": (beside.model_copy(update={"slowdown": slowdown}),)})
    found = search(SearchSpace(windows=(1, 3, 6), uneven_roots=(8,), tree_sizes=(8,)), profile, record)
    plain_s = found.best(kind="plain").tpot_s
    bound = most_speedup(profile, plain_s, float(record.contexts.start))
    for one in found.candidates:
        assert plain_s / one.tpot_s <= bound(one.schedule) * (1 + 1e-9), one.schedule


@pytest.mark.parametrize("platform", ["core-i9-14900k", "m4-max", "2xrtx3090"])
def test_no_interval_reaches_below_reading_all_weights_at_the_data_sheets_peak(platform):
    asked = question(platform, weights="q4_k_m", lengths=(64, 24))
    plan, shape = plan_platform(asked), asked.target.shape
    num_bytes = shape.num_layers * shape.layer_weight_bytes("q4_k_m") + shape.head_bytes("q4_k_m")
    for one in (one for one in plan.ranking if not one.schedule.num_speculative_tokens):
        members = asked.platform.members(one.pair.target)
        peak = asked.platform.reading_peak(members[0]).highest * len(members)
        assert num_bytes / peak <= one.tpot_s_low * (1 + 1e-9)
    for one in plan.ranking:
        assert one.least_s <= one.tpot_s_low <= one.tpot_s
    assert any(one.prediction.tpot_s_low < one.least_s for one in plan.ranking) or platform != "core-i9-14900k"


def test_a_round_at_the_peak_in_closed_form():
    asked = question("core-i9-14900k", weights="q4_k_m", lengths=(64, 24))
    derived = derived_profile(asked.platform, demand_of(asked, ["cpu"]))
    plain = Schedule(method="autoregressive", target_lane="cpu")
    model, (_, pool) = asked.target, asked.platform.pool_of("cpu")
    shape = model.shape
    of_layer = shape.layer_weight_bytes(model.weights) + shape.layer_activation_bytes(1) + shape.layer_kv_bytes(1, 64.0)
    num_bytes = shape.num_layers * of_layer + model.head_bytes
    least_s = fastest_reading(asked.platform, derived, 64.0)(plain)
    assert least_s == pytest.approx(num_bytes / pool.bytes_per_s.highest)


def test_a_lane_without_the_cost_is_an_error():
    bare = machine().lane("draft").model_copy(update={"draft_step": None})
    profile = machine()
    profile = profile.model_copy(update={"lanes": (profile.lanes[0], bare, profile.lanes[2])})
    with pytest.raises(ProfileError, match="draft_step"):
        most_speedup(profile, 1.0, 100.0)(IN_TURN)
