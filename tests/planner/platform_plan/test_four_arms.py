"""The paper's four arms on a platform, played step by step."""

from dataclasses import replace

import pytest

from planner.platform_plan.default_acceptance import STREAM_RATES
from planner.platform_plan.plan_page import four_arms, render_page
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import recorded_question
from planner.wording import factor
from sim.acceptance.assumed import Bernoulli
from sim.evaluator import predict
from tests.planner.platform_plan.conftest import question

NAMES = ["SD", "SD + streams", "Mirror-SD", "Mirror-SD + streams"]


@pytest.fixture
def plan(lunar_lake):
    return lunar_lake


def test_each_is_the_fastest_of_its_kind_as_the_simulator_has_it(plan):
    arms = four_arms(plan)
    assert [arm.name for arm in arms] == NAMES
    for arm in arms:
        with_streams = arm.name.endswith("streams")
        texts = plan.question.record_with_streams if with_streams else plan.question.record
        assert bool(arm.schedule.draft_streams) == with_streams
        assert predict(arm.schedule, plan.profile, texts, costs=plan.costs).tpot_s == arm.tpot_s
        assert arm.speedup == pytest.approx(plan.plain.tpot_s / arm.tpot_s)
    for arm in (arms[0], arms[2]):
        own = [one.tpot_s for one in plan.ranking if one.schedule.method == arm.schedule.method]
        assert arm.tpot_s == min(own)


def test_what_is_ranked_stands_on_no_streams_that_nobody_gave(plan):
    assert not any(one.schedule.draft_streams for one in plan.ranking)
    assert plan.question.record.num_streams == 0
    assert plan.question.record_with_streams.num_streams == len(STREAM_RATES)


def test_streams_that_are_given_are_ranked_like_everything_else():
    found = plan_platform(question(given=Bernoulli(0.6, stream_rates=(0.9, 0.8))))
    assert {one.schedule.method for one in found.ranking if one.schedule.draft_streams} == {"speculative", "mirror"}
    assert "How often streams are right: as assumed below" in render_page(found)
    assert all(one.speedup <= one.bound * (1 + 1e-9) for one in found.ranking)


def test_the_page_names_the_arms_and_what_their_streams_stand_on(plan):
    page = render_page(plan)
    for arm in four_arms(plan):
        assert f"<td>{arm.name}<td>" in page
        assert factor(arm.speedup) in page
    assert f"right at a rate of {STREAM_RATES[0]:g}" in page


def test_a_record_without_streams_has_no_arms_with_them(plan):
    asked = plan.question
    recorded = recorded_question(asked.platform, asked.target, asked.draft, replace(asked.record, assumed=None))
    without = replace(plan, question=recorded)
    assert [arm.schedule is None for arm in four_arms(without)] == [False, True, False, True]
    page = render_page(without)
    assert page.count("none can be predicted here") == 2
    assert "How often streams are right: not known, since the record has no streams" in page
