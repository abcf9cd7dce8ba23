"""One answer: whatever a verdict says, headline, tiles, badges and recommendation never say anything else."""

import re
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.yaml_file import parse_yaml
from planner.report.answer import answer_of, recommended_name, tiles
from planner.report.report import render_report
from planner.report.table import result_rows
from planner.wording import tokens_per_second
from tests.planner.report.page import Page
from tests.planner.report.synthetic_report import Judged, Speedup, Winner

ratios = st.floats(0.2, 5.0)
ends = st.floats(0.2, 5.0) | st.sampled_from([0.0, inf])
speedups = st.builds(
    lambda value, one, other: Speedup(value, min(value, one, other), max(value, one, other)), ratios, ends, ends
)


def predicted(data, **changes):
    """The report with another prediction."""
    return replace(data, plan=replace(data.plan, verdict=replace(data.plan.verdict, **changes)))


def numbers(text):
    return [float(number) for number in re.findall(r"[\d.]+(?=×)", text)]


@settings(deadline=None, max_examples=200)
@given(pays=st.sampled_from(["yes", "no", "cannot_tell"]), speedup=speedups, promised=ratios)
def test_no_number_of_the_answers_tile_contradicts_its_word(data, pays, speedup, promised):
    verdict = Judged(pays=pays, speedup=speedup)
    value, label = next(iter(tiles(replace(predicted(data, speedup=promised, pays="yes"), measured=verdict))))
    shown = numbers(value + label)
    if pays == "yes":
        assert "Cannot" not in value
        assert all(number >= 1 for number in shown)
    elif pays == "no":
        assert "Cannot" not in value
        assert all(number <= 1 for number in shown)
    else:
        assert value == "Cannot tell"
        assert not shown or shown[0] <= 1 <= shown[-1]


@pytest.mark.parametrize(
    ("pays", "speedup", "tile"),
    [
        ("yes", Speedup(1.34, 1.2, 1.5), ("1.34×", "the speed of plain decoding, measured (1.20× to 1.50×)")),
        ("yes", Speedup(1.34, 0.0, inf), ("1.34×", "the speed of plain decoding, measured")),
        ("no", Speedup(0.81, 0.7, 0.9), ("0.81×", "the speed of plain decoding, measured (0.70× to 0.90×)")),
        ("no", Speedup(1.16, 1.1, 1.2), ("No", "speculation is not faster than plain decoding, by what was measured")),
        (
            "cannot_tell",
            Speedup(1.16, 0.94, 1.29),
            (
                "Cannot tell",
                "whether speculation is faster than plain decoding, by what was measured (0.94× to 1.29×)",
            ),
        ),
    ],
)
def test_the_answers_tile(data, pays, speedup, tile):
    assert next(iter(tiles(replace(data, measured=Judged(pays=pays, speedup=speedup))))) == tile


def test_no_difference_in_the_headline_leaves_no_speed_up_in_the_tiles(data):
    unclear = predicted(
        data, pays="cannot_tell", speedup=Speedup(1.16, 0.96, 1.4), headline="Cannot tell: 1.16× give or take 20 %."
    )
    values = [value for value, _ in tiles(unclear)]
    assert values[0] == "Cannot tell"
    assert not any("×" in value for value in values)


def test_without_judged_runs_the_answer_is_what_was_predicted(data):
    answer, winner = answer_of(data), data.plan.search.winner
    assert (answer.world, answer.headline) == ("predicted", data.plan.verdict.headline)
    assert answer.schedule == winner.schedule
    assert (tokens_per_second(winner.tpot_s), "predicted, with what is recommended") in tiles(data)


def test_judged_runs_decide_everything_and_the_prediction_stands_second(judged):
    chosen = judged.measured.winner.schedule
    [row] = [row for row in result_rows(judged) if row.is_recommended]
    assert row.result.candidate.schedule == chosen != judged.plan.search.winner.schedule
    assert row.badges == ("recommended", "measured fastest")
    assert all(not other.badges for other in result_rows(judged) if other is not row and other.name != row.name)
    assert (tokens_per_second(row.result.measured_s), "measured, with what is recommended") in tiles(judged)
    page = Page(render_report(judged))
    [text] = [words for words in page.words if "target_lane:" in words]
    assert parse_yaml(text, Schedule, source="page") == chosen
    words = page.text
    assert words.index("The runs have spoken: so it is.") < words.index(judged.plan.verdict.prediction[:10])
    assert words.index("This is what they showed.") < words.index("What had been predicted before the runs")
    assert words.count("Recommended") == 1
    assert f"Recommended {row.name}" in words


def test_runs_that_recommend_nothing_leave_no_command(data):
    html = render_report(replace(data, measured=Judged(pays="cannot_tell")))
    assert "Recommended" not in Page(html).text
    assert 'class="copy"' not in html
    assert not any("recommended" in label for _, label in tiles(replace(data, measured=Judged(pays="no"))))


def test_a_schedule_that_is_not_in_the_table_has_a_name_and_no_measured_speed(data):
    known = data.results[0].candidate.schedule
    rest = replace(data, results=data.results[1:], measured=Judged(pays="no", winner=Winner(known)))
    assert recommended_name(rest, known) == data.names[0]
    assert not any("recommended" in label for _, label in tiles(rest))
