"""One verdict: headline, tiles, badges and recommendation of a page are read from it and never say anything else."""

import re
from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.yaml_file import parse_yaml
from planner.paired_ratio import Ratio
from planner.report.report import render_report, tiles
from planner.report.table import result_rows
from planner.verdict import PAYS
from planner.wording import tokens_per_second
from tests.planner.report.page import Page
from tests.planner.report.synthetic_report import judged_runs

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


def test_without_judged_runs_the_answer_is_what_was_predicted(data):
    winner = data.plan.search.winner
    assert data.verdict is data.plan.verdict
    assert data.verdict.schedule == winner.schedule
    assert (tokens_per_second(winner.tpot_s), "predicted, with what is recommended") in tiles(data)


def test_judged_runs_decide_everything_and_the_prediction_stands_second(judged):
    chosen = judged.measured.schedule
    [row] = [row for row in result_rows(judged) if row.is_recommended]
    assert row.result.candidate.schedule == chosen != judged.plan.search.winner.schedule
    assert row.badges == ("recommended", "measured fastest")
    assert all(not other.badges for other in result_rows(judged) if other is not row and other.name != row.name)
    assert (tokens_per_second(row.result.measured_s), "measured, with what is recommended") in tiles(judged)
    page = Page(render_report(judged))
    [text] = [words for words in page.words if "target_lane:" in words]
    assert parse_yaml(text, Schedule, source="page") == chosen
    before = page.text.index("What had been predicted before the runs")
    assert page.text.index(judged.measured.headline) < before < page.text.index(judged.plan.verdict.headline)
    assert page.text.count("Recommended") == 1
    assert f"Recommended {row.name}" in page.text


def test_runs_that_recommend_nothing_leave_no_command(data):
    nothing = replace(data, measured=judged_runs(Ratio(value=1.0, num_pairs=5, prompts_error=0.1)))
    html = render_report(nothing)
    assert "Recommended" not in Page(html).text
    assert 'class="copy"' not in html
    assert not any("recommended" in label for _, label in tiles(nothing))
