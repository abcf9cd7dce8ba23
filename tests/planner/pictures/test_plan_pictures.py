"""Pictures of plans show what is there, to scale, and take text literally."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwprofiles.platform import load_platform
from mirrorsd.pair_on_platform import plan_pair
from planner.pictures.plan_pictures import (
    NUM_ROUNDS,
    first_rounds,
    machine_of,
    machine_picture,
    speedups_over_acceptance,
    trade_offs,
)
from planner.pictures.xy_plot import Series, round_ticks, xy_plot
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.platform_plan import best_of_each
from planner.platform_plan.written_plan import written_profile
from sim.derived.calibrated_lanes import calibrated_platform
from tests.planner.report.page import undefined_colours

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(numbers, st.floats(1e-3, 1e6))
def test_ticks_are_few_round_numbers_within_bounds(low, span):
    high = low + span
    ticks = round_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert 2 <= len(ticks) <= 7
    assert low - slack <= ticks[0] <= ticks[-1] <= high + slack
    steps = {round((after - before) / (ticks[1] - ticks[0]), 6) for before, after in pairwise(ticks)}
    assert steps == {1.0}


def places(svg):
    return [tuple(map(float, found)) for found in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3"', svg)]


def test_more_is_higher_and_later_is_further_right():
    svg = xy_plot([Series("a", [(1, 1.0), (2, 3.0), (8, 2.0)])], x_title="x", y_title="y", alt="what it shows")
    (x1, y1), (x2, y2), (x8, y8) = places(svg)
    assert x1 < x2 < x8
    assert y2 < y8 < y1
    assert (x8 - x1) / (x2 - x1) == pytest.approx(7, rel=0.01)
    assert 'aria-label="what it shows"' in svg


def test_names_of_points_stand_below_a_level_line_through_them():
    svg = xy_plot([Series("a", [(0, 1), (9, 1)], labels=["left", "right"])], x_title="x", y_title="y", alt="")
    heights = [float(re.search(rf'<text y="([\d.]+)"[^>]*>{name}<', svg)[1]) for name in ("left", "right")]
    assert all(height >= y + 12 for height, (_, y) in zip(heights, places(svg), strict=True))


def test_names_and_titles_are_text_and_never_markup():
    svg = xy_plot(
        [Series("<b>", [(0, 1)]), Series("other", [(1, 2)], labels=["<i>"])], x_title="<u>", y_title="&", alt='"'
    )
    assert not re.search(r"<[bui]>", svg)
    assert all(text in svg for text in ("&lt;b&gt;", "&lt;i&gt;", "&lt;u&gt;", "&amp;", "&#34;"))


def test_a_name_that_is_wider_than_the_picture_takes_further_lines_of_the_legend():
    names = "mirror from exit 29, 1 drafted, 8 roots per row, target on gpu (exit to be trained)", "plain"
    svg = xy_plot([Series(name, [(0, 1), (1, 2)]) for name in names], x_title="x", y_title="y", alt="")
    lines = re.findall(r'<text x="83" y="([\d.]+)">([^<]+)<', svg)
    assert " ".join(text for _, text in lines) == " ".join(names)
    assert max(len(text) for _, text in lines) <= 72
    heights = [float(y) for y, _ in lines]
    assert heights == [heights[0] + 20 * place for place in range(3)]
    assert heights[-1] < float(re.search(r'viewBox="0 0 560 ([\d.]+)"', svg)[1])


def test_a_level_lies_where_a_point_of_that_height_would():
    svg = xy_plot([Series("a", [(0, 1.0), (1, 2.0)])], x_title="x", y_title="y", alt="", level=1.0)
    level = float(re.search(r'class="level".*? y1="([\d.]+)"', svg)[1])
    assert level == places(svg)[0][1]


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
    assert undefined_colours(page) == set()
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


def test_names_of_links_never_lie_on_each_other():
    picture = machine_picture(load_platform("m2-ultra-x8"), {"gpu0": ["a"], "gpu1": ["b"]}, {})
    names = re.findall(r'y="([\d.]+)">(?:unified-memory|thunderbolt-\d)<', picture)
    heights = sorted(map(float, names))
    assert len(heights) > 2
    assert min(after - before for before, after in pairwise(heights)) >= 32


@pytest.mark.parametrize(("num_devices", "told"), [(5, ""), (6, "and 1 more device<"), (7, "and 2 more devices<")])
def test_devices_that_are_not_drawn_are_counted(num_devices, told):
    picture = machine_picture(load_platform(f"{num_devices}x RTX 3090"), {}, {})
    assert told in picture
    assert (" more device" in picture) == bool(told)


def test_a_link_that_copies_nothing_has_no_bandwidth(plan):
    shared = calibrated_platform(written_profile(plan))
    assert "TB/s" not in machine_picture(shared, {"gpu": ["a"]}, {})


def test_trade_offs_leave_out_what_is_far_slower_than_plain_decoding(plan):
    """One such point would push all others into a corner, and labels onto each other."""
    leaders = best_of_each(plan.ranking)
    assert any(one.tpot_s > 3 * plan.plain.tpot_s and one.energy_j_per_token for one in leaders)
    [(_, picture), *_] = trade_offs(leaders, [str(number) for number in range(len(leaders))])
    known = [one for one in leaders if one.tpot_s < 1.5 * plan.plain.tpot_s and one.energy_j_per_token]
    assert picture.count("<circle") == min(len(known), 8)


def test_a_page_has_the_command_and_numbers_with_units(page):
    assert "<code>openvino_genai.LLMPipeline(" in page
    assert "136.5 GB/s" in page


def picture_of(plan, one):
    models = str(plan.question.target), str(plan.question.draft)
    return machine_of(plan.question.platform, plan.profile, one.schedule, models)


def test_the_curve_of_acceptance_passes_through_the_break_even(plan):
    """Where it crosses the dashed line, the plan's own break-even lies: one token is the best there."""
    leader = next(one for one in plan.ranking if one.schedule.num_speculative_tokens == 1)
    picture = speedups_over_acceptance(plan, [leader], ["best"])
    level = float(re.search(r'class="level".*? y1="([\d.]+)"', picture)[1])
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="3"', picture)]
    assert heights == sorted(heights, reverse=True), "more acceptance is never slower"
    below = sum(height > level for height in heights)
    rates = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
    assert rates[below - 1] <= plan.needed.at < rates[below]


def test_the_first_rounds_are_on_their_lanes_and_end_where_the_last_of_them_does(plan):
    mirror = next(one.schedule for one in plan.ranking if one.schedule.method == "mirror")
    picture = first_rounds(mirror, plan.profile, plan.question.record, plan.costs)
    ends = re.findall(r'class="grid" x1="([\d.]+)"', picture)
    assert len(ends) == picture.count("+") == NUM_ROUNDS
    assert float(ends[-1]) == float(re.search(r'class="title" x="(\d+)" y="\d+" text-anchor="end"', picture)[1])
    names = {name: float(y) for y, name in re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)<', picture)}
    for y, height, told in re.findall(r'y="(\d+)" width="[\d.]+" height="(\d+)".*<title>(.*?),', picture):
        lane = mirror.target_lane if told == "target verifies" else mirror.draft_lane
        assert 0 < names[lane] - float(y) < float(height), "a bar is beside the name of its lane"


def test_short_texts_have_a_picture_of_the_rounds_that_there_are():
    short = plan_pair("qwen3-14b", "qwen3-0.6b", "lunar-lake", lengths=(128, 2))
    picture = first_rounds(short.recommended.schedule, short.profile, short.question.record, short.costs)
    assert short.recommended.schedule.target_lane in picture
