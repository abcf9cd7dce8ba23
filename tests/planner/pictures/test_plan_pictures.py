import re

import pytest

from mirrorsd.pair_on_platform import plan_pair
from planner.pictures.plan_pictures import first_rounds, machine_of, speedups_over_acceptance
from planner.platform_plan.page import render_page
from planner.platform_plan.platform_plan import best_of_each


@pytest.fixture(scope="module")
def plan():
    return plan_pair("qwen3-14b", "qwen3-0.6b", "lunar-lake", lengths=(128, 32))


@pytest.fixture(scope="module")
def page(plan):
    return render_page(plan)


def test_a_page_is_small_and_fetches_nothing(page):
    assert len(page.encode()) < 500_000
    assert "http" not in page
    assert "<script" not in page
    assert page.count("<svg") == page.count("</svg>") >= 5


def test_what_holds_a_model_is_told_from_what_is_idle(plan):
    picture = picture_of(plan, plan.recommended)
    assert picture.count('class="busy"') == len({*plan.recommended.pair[:2]})
    assert picture.count("idle") == len(plan.question.platform.devices) - len({*plan.recommended.pair[:2]})
    assert str(plan.question.target) in picture


def test_a_split_shows_what_crosses_its_link(plan):
    split = next(one for one in plan.ranking if one.pair.draft == "cpu" and one.pair.target == "gpu")
    picture = picture_of(plan, split)
    assert re.search(r"\d+ B a round", picture)
    assert picture.count('class="used"') == 1


def picture_of(plan, one):
    models = str(plan.question.target), str(plan.question.draft)
    return machine_of(plan.question.platform, plan.profile, one.schedule, models)


def test_the_curve_of_acceptance_passes_through_the_break_even(plan):
    """Where it crosses the dashed line, the plan's own break-even lies."""
    leaders = best_of_each(plan.ranking)[:1]
    picture = speedups_over_acceptance(plan, leaders, ["best"])
    level = float(re.search(r'class="level".*? y1="([\d.]+)"', picture)[1])
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="3"', picture)]
    assert heights == sorted(heights, reverse=True), "more acceptance is never slower"
    below = sum(height > level for height in heights)
    rates = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
    assert plan.needed.at < rates[below]


def test_the_first_rounds_end_where_the_last_of_them_does(plan):
    picture = first_rounds(plan.recommended.schedule, plan.profile, plan.question.record, plan.costs)
    assert picture.count("+") >= 2
    assert plan.recommended.schedule.target_lane in picture
