"""The page holds what it must."""

import re
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.yaml_file import parse_yaml
from hwprofiles.latency_table import Anchor
from planner.paired_ratio import Ratio
from planner.report.report import render_report, tiles
from planner.report.table import result_rows
from planner.verdict import PAYS
from planner.wording import milliseconds, tokens_per_second
from tests.planner.conftest import SMALL
from tests.planner.report.page import Page
from tests.planner.report.synthetic_report import judged_runs, report_data
from tests.planner.synthetic import acceptance_record, machine


def test_the_verdict_comes_first(page, data):
    words = page.text
    assert words.index(data.verdict.headline) < words.index("predicted with its interval")
    assert all(line.partition(":")[2][:40] in words for line in (*data.verdict.lines, *data.verdict.explained))


def test_every_schedule_has_its_prediction_measurement_and_error(page, data):
    assert len(data.results) >= 8
    for result in data.results:
        prediction = result.candidate.prediction
        assert result.name[1:] in page.text
        assert f"{prediction.tpot_s * 1e3:.1f} ms" in page.text
        assert f"{prediction.tpot_s_low * 1e3:.1f} to {prediction.tpot_s_high * 1e3:.1f}" in page.text
        assert f"{result.measured_s * 1e3:.1f} ms" in page.text
        assert f"{result.error * 100:+.1f} %".replace("-", "\u2212") in page.text


def test_calibration_and_fine_print_are_told(page, data):
    parts = ("one target layer", "output head", "exit after layer 20", "draft step, exit features")
    facts = ("3 min 10 s", "Synthetic 2-core", "±2 %", "bfloat16", "6 prompts")
    for words in (*parts, *facts, "streams of the draft", "All of this is made up.", "lane the cores or the device"):
        assert words in page.text
    sizes = sorted(abs(result.error) * 100 for result in data.results)
    middle = sizes[len(sizes) // 2]
    assert f"Error of predictions: {middle:.1f} % in the median, {sizes[-1]:.1f} % at most" in page.text


def test_a_tree_gets_its_row_its_timeline_and_its_acceptance(tree_data):
    page = Page(render_report(tree_data))
    assert {"timeline-0", "timeline-1", "timeline-2"} <= set(page.figures)
    text = page.text
    for result in tree_data.results:
        assert result.name[1:] in text
    assert re.search(r"speculative streaming, 3 deep: [\d.]+ tokens per round with \d+ drafted", text)
    assert "target verifies and drafts" in text
    assert "step of eagle-3" in text
    assert "streams of streams" in text


def test_what_is_recommended_is_marked_and_nothing_else_without_runs_that_were_judged(data):
    marked = [row for row in result_rows(data) if row.badges]
    assert [row.badges for row in marked] == [("recommended",)]
    assert marked[0].result.candidate.schedule == data.plan.search.winner.schedule
    assert [row.is_recommended for row in marked] == [True]


def test_the_winner_can_be_copied_into_a_file(page, data):
    [text] = [words for words in page.words if "target_lane:" in words]
    assert parse_yaml(text, Schedule, source="page") == data.plan.search.winner.schedule


def test_a_busy_machine_is_the_first_thing_after_the_answer(data):
    page = Page(render_report(replace(data, warning="Others were at work.", footnotes=("Others were at work.", "So."))))
    assert page.text.count("Others were at work.") == 1
    assert page.text.index("Others were at work.") < page.text.index("Recommended")
    assert "Less certain" not in Page(render_report(data)).text


def test_what_is_recommended_stands_with_its_command_and_a_sample_of_the_model(data):
    command, sample = "mirrorsd run --schedule out/best.yaml --prompt <b>", ("Why <so>?", "Because\nof & that.")
    html = render_report(replace(data, command=command, sample=sample))
    first = Page(html).text.split("Error of predictions")[0]
    assert data.plan.search.winner.schedule.traits.title.split()[0] in first.lower()
    for words in (command, *sample):
        assert words.replace("\n", " ") in first
    assert html.count(f"<code>{command.replace('<b>', '&lt;b&gt;')}</code>") == 1
    assert html.count('class="copy"') == 1


def test_errors_at_the_speed_of_the_anchors_and_ratios_have_columns_of_their_own(data, page):
    assert page.text.count("+25.0 %") == len(data.results)
    assert "25.0 % corrected" in page.text
    assert "Against plain" not in page.text
    ratio = Ratio(value=1.111, num_pairs=5, prompts_error=0.05)
    results = [replace(result, ratio=ratio) for result in data.results]
    endless = replace(results[-1], ratio=Ratio(value=1.222, num_pairs=1, prompts_error=inf))
    text = Page(render_report(replace(data, results=(*results[:-1], endless)))).text
    assert text.count("1.11× 1.06 to 1.17×") == len(results) - 1
    assert "1.22×" in text
    assert "inf" not in text.split("Words on this page")[0].replace("information", "")


def test_the_fine_print_says_nothing_twice(data):
    profile = data.plan.profile.model_copy(update={"notes": ("Quick.", "One of 60 left the rounds.")})
    made = replace(data, plan=replace(data.plan, profile=profile), footnotes=("One of 60 left the rounds.", "Quick."))
    text = Page(render_report(made)).text
    assert text.count("One of 60 left the rounds.") == text.count("Quick.") == 1


def test_the_machine_is_described_in_plain_words(data):
    host = {"cpu_model": "Xeon", "cores": [0, 1], "memory_gb": 25.3}
    lanes = tuple(
        lane.model_copy(
            update={"anchor": Anchor(context=128, seconds=0.0412, relative_error=0.013), "relative_error": 0.02}
        )
        for lane in data.plan.profile.lanes
    )
    profile = data.plan.profile.model_copy(update={"host": host, "lanes": lanes, "is_row_invariant": False})
    text = Page(render_report(replace(data, plan=replace(data.plan, profile=profile)))).text
    for words in (
        "cpu model Xeon",
        "cores 0, 1",
        "memory gb 25.3",
        "a common error of all its times of ±2 %",
        "anchor: one token, to check the speed 1 41.2 ms 41.2 ms ±1 %",
        "a row's result depends on the other rows of the pass",
    ):
        assert words in text
    assert "[0, 1]" not in text


def test_a_machine_without_a_drafter_still_gets_its_report():
    plain = report_data(machine().model_copy(update={"drafter": None}))
    page = Page(render_report(plain))
    assert "only plain decoding can be predicted" in page.text
    assert set(page.figures) == {"timeline-0"}
    assert "Plain, split, target on draft" in page.text


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_a_draft_that_is_never_or_always_right_gets_its_page(acceptance):
    record = acceptance_record(num_prompts=2, acceptance=acceptance, with_features=False)
    made = report_data(machine(pooled_speed=1.15), record, space=SMALL)
    page = Page(render_report(made))
    assert ("no drafted token was right on these prompts" in page.text) == (acceptance == 0.0)
    assert "What the search found" in page.text
    assert "How many drafted tokens are accepted" in page.text
    assert not re.search(r"\b(nan|inf)\b", page.text)


speedups = st.builds(
    lambda value, error: Ratio(value=value, num_pairs=5, prompts_error=error),
    st.floats(0.2, 5.0),
    st.floats(0.0, 2.0) | st.just(inf),
)


@settings(deadline=None, max_examples=60)
@given(speedup=speedups)
def test_no_number_of_the_answers_tile_contradicts_its_word(data, speedup):
    verdict = judged_runs(speedup)
    value, label = next(iter(tiles(replace(data, measured=verdict))))
    shown = [float(number) for number in re.findall(r"[\d.]+(?=×)", value + label)]
    assert verdict.pays == PAYS[speedup.outcome]
    assert (value == "Cannot tell") == (verdict.pays == "cannot_tell") == (not shown)
    assert all(number >= 1 if verdict.pays == "yes" else number <= 1 for number in shown)


def test_the_dot_of_the_search_is_what_is_recommended_on_whatever_prompts_it_leads(data, page):
    said = "The large dot marks the schedule recommended by prediction."
    other = next(one for one in reversed(data.plan.search.candidates) if one.schedule.num_rows > 1)
    verdict = replace(data.plan.verdict, schedule=other.schedule)
    changed = Page(render_report(replace(data, plan=replace(data.plan, verdict=verdict)))).text
    for plan_page, chosen in ((page.text, data.plan.recommended), (changed, other)):
        assert chosen.schedule.num_rows > 1
        assert said in plan_page
        assert f"chosen: {milliseconds(chosen.tpot_s)}" in plan_page


def test_without_judged_runs_the_answer_is_what_was_predicted(data):
    winner = data.plan.search.winner
    assert data.verdict is data.plan.verdict
    assert data.verdict.schedule == winner.schedule
    (own,) = [one for one in data.results if one.candidate.schedule == winner.schedule]
    assert (tokens_per_second(own.measured_s), "measured, with the recommended schedule") in tiles(data)
    assert "by predicted times: plain decoding and a schedule that drafts were not both run" in render_report(data)


def test_judged_runs_decide_everything_and_the_prediction_stands_second(judged):
    chosen = judged.measured.schedule
    [row] = [row for row in result_rows(judged) if row.is_recommended]
    assert row.result.candidate.schedule == chosen != judged.plan.search.winner.schedule
    assert row.badges == ("recommended", "measured fastest on the same prompts")
    assert all(not other.badges for other in result_rows(judged) if other is not row and other.name != row.name)
    assert (tokens_per_second(row.result.measured_s), "measured, with the recommended schedule") in tiles(judged)
    page = Page(render_report(judged))
    [text] = [words for words in page.words if "target_lane:" in words]
    assert parse_yaml(text, Schedule, source="page") == chosen
    before = page.text.index("What was predicted before the runs")
    assert page.text.index(judged.measured.headline) < before < page.text.index(judged.plan.verdict.headline)
    assert page.text.count("Recommended") == 1
    assert f"Recommended {row.name}" in page.text


def test_runs_that_recommend_nothing_leave_no_command(data):
    nothing = replace(data, measured=judged_runs(Ratio(value=1.0, num_pairs=5, prompts_error=0.1)))
    html = render_report(nothing)
    assert "Recommended" not in Page(html).text
    assert 'class="copy"' not in html
    assert not any("recommended" in label for _, label in tiles(nothing))
