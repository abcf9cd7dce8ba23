from dataclasses import replace
from math import inf

import pytest

from decoding.errors import PlanError
from hwprofiles.engines import platform_run_by
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import load_platform
from planner.platform_plan.changed_numbers.moved_question import MovedQuestion, Way
from planner.platform_plan.changed_numbers.tornado import tornado, uncertain_numbers
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.platform_plan import plan_platform
from tests.planner.platform_plan.conftest import question
from tests.planner.platform_plan.splits import planned, split_of

EXCHANGING = "gpu0-gpu1.collective_latency_s"


@pytest.fixture(scope="module", params=["lunar_lake", "h100x2"])
def asked(request):
    return MovedQuestion(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def bars(asked):
    return tornado(asked)


def test_the_question_asked_again_unchanged_has_todays_answer(asked):
    there, plan = asked.standing(), asked.plan
    assert (there.leader, there.times_s[there.leader]) == (asked.leader, plan.best.tpot_s)
    assert there.speedup == plan.comparison.value


def test_numbers_with_which_nothing_can_be_timed_have_no_answer(asked, monkeypatch):
    monkeypatch.setattr(
        "planner.platform_plan.changed_numbers.moved_question._Times._tpot_s", lambda self, schedule: inf
    )
    with pytest.raises(PlanError, match="predicted on no lane"):
        asked.standing({"acceptance.rate": 0.123})


def test_a_number_set_to_what_it_is_changes_nothing(asked):
    for number in uncertain_numbers(asked.plan):
        assert asked.standing({number.field: number.value}).speedup == pytest.approx(asked.standing().speedup, rel=1e-9)


def test_every_uncertain_number_has_a_name_that_can_be_set_and_equal_parts_have_one(asked):
    numbers = uncertain_numbers(asked.plan)
    assert {number.field for number in numbers} >= {"acceptance.rate", "host.round_overhead_s"}
    assert len(numbers) < len(asked.plan.assumptions)
    if len(asked.question.platform.groups):
        assert "devices:h100-sxm.memory_efficiency" in {number.field for number in numbers}


@pytest.mark.parametrize(("models", "is_told"), [(("qwen3-30b-a3b", "qwen3-0.6b"), True), ((), False)])
def test_the_kernels_that_an_eager_framework_starts_for_mixtures_are_a_number_of_plans_with_mixtures(models, is_told):
    machine = platform_run_by(load_platform("2xrtx3090"), "transformers")
    asked = MovedQuestion(plan_platform(question(machine, **{"models": models} if models else {})))
    name, on_card = "devices:rtx3090.starts_of_mixtures", Way(LanePair.alone("gpu0"), "plain")
    few, many = (asked.standing({name: value}).times_s[on_card] for value in (2.0, 16.0))
    assert (few < many) is is_told is (name in {one.field for one in uncertain_numbers(asked.plan)})
    told = MovedQuestion(plan_platform(replace(asked.question, platform=with_overrides(machine, {name: 16.0}))))
    assert told.standing().times_s[on_card] == pytest.approx(many)


def test_the_restricted_question_agrees_with_the_whole_plan_at_the_ends(asked, bars):
    bar = bars[0]
    whole = plan_platform(asked.moved({bar.number.field: bar.number.high}))
    assert bar.speedup_high == pytest.approx(whole.comparison.value, rel=0.01)


def test_the_largest_effects_come_first_and_after_those_that_turn_the_answer(bars):
    sizes = [(bar.turn is None, -bar.size) for bar in bars]
    assert sizes == sorted(sizes)
    assert all(bar.number.low <= bar.number.value <= bar.number.high for bar in bars)


def test_more_bandwidth_never_slows_plain_decoding_and_more_acceptance_is_never_less(asked):
    (rate,) = (number for number in uncertain_numbers(asked.plan) if number.field == "acceptance.rate")
    assert asked.standing({rate.field: rate.low}).speedup < asked.standing({rate.field: rate.high}).speedup
    for number in uncertain_numbers(asked.plan):
        if "bytes_per_s" in number.field or number.field.endswith(("memory_efficiency", "bf16_flops")):
            slow, fast = (asked.standing({number.field: value}).plain_s for value in (number.low, number.high))
            assert slow >= fast


def bar_of_exchanging(asked):
    """The bar of how slowly the cards of a group exchange, where that may be much slower than it is."""
    (number,) = (one for one in asked.plan.assumptions if one.field == EXCHANGING)
    (bar,) = tornado(MovedQuestion(replace(asked.plan, assumptions=(replace(number, high=1e-3),))))
    return bar


def test_what_an_answer_turns_on_is_found_where_it_is_known_beforehand(h100x2):
    """The slower the cards of a group exchange, the sooner one of them is the better place for both models."""
    asked = MovedQuestion(h100x2)
    bar = bar_of_exchanging(asked)
    assert asked.leader.pair.target == "gpus"
    assert (bar.turn.side, bar.turn.leader.pair.target) == ("above", "gpu0")
    whole = [plan_platform(asked.moved({EXCHANGING: by * bar.turn.at})).best.pair.target for by in (0.9, 1.01)]
    assert whole == ["gpus", "gpu0"]


def test_moved_numbers_move_splits_that_draft_too():
    """Where plain decoding leads, the drafted split, whose layers it does not share, is still predicted anew."""
    asked = question("rtx3060", weights="q4_k_m", rate=0.3, models=("qwen3-32b", "qwen3-8b"), lengths=(64, 24))
    plan = plan_platform(asked)
    beside = next(one for one in plan.speculation if split_of(one))
    moved, way = MovedQuestion(plan), Way.of(beside.schedule, beside.pair)
    assert moved.standing().leader.kind == "plain"
    assert moved.standing().times_s[way] == pytest.approx(beside.tpot_s)
    assert moved.standing({"cpu.memory_bytes_per_s": 2e11}).times_s[way] < 0.9 * beside.tpot_s


def test_a_group_and_a_split_over_the_same_cards_are_no_one_way():
    asked = MovedQuestion(planned("2xrtx3060", models=("qwen3-32b", "qwen3-0.6b")))
    group, split = (Way(LanePair.alone(lane), "plain") for lane in ("gpus", "gpu0(33)/gpu1(31)"))
    for asked.leader, other in ((group, split), (split, group)):
        assert not asked.is_like_today(other)
        assert asked.is_like_today(asked.leader)
