import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pictures.xy_plot import Series, round_ticks, xy_plot

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


def test_names_and_titles_are_text_and_never_markup():
    svg = xy_plot(
        [Series("<b>", [(0, 1)]), Series("other", [(1, 2)], labels=["<i>"])], x_title="<u>", y_title="&", alt='"'
    )
    assert not re.search(r"<[bui]>", svg)
    assert all(text in svg for text in ("&lt;b&gt;", "&lt;i&gt;", "&lt;u&gt;", "&amp;", "&#34;"))


def test_a_level_lies_where_a_point_of_that_height_would():
    svg = xy_plot([Series("a", [(0, 1.0), (1, 2.0)])], x_title="x", y_title="y", alt="", level=1.0)
    level = float(re.search(r'class="level".*? y1="([\d.]+)"', svg)[1])
    assert level == places(svg)[0][1]
