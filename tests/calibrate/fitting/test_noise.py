"""What noise explains is taken out of times; more rows take no less time, unless they were seen to more than once."""

import random
from itertools import pairwise
from math import hypot
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.noise import Noise, between, cliffs, doubtful, rising
from calibrate.fitting.ratios import NORMAL_90, Estimate, Ratio, estimate

SECONDS = st.floats(1e-4, 1e-2)
ROWS = (1, 2, 3, 4, 5, 6, 9, 17, 33)
LINE = {rows: 40e-3 + 1.4e-3 * rows for rows in ROWS}


@pytest.mark.parametrize("num", [2, 5])
@pytest.mark.parametrize("doubt", [0.03, 0.05, 0.2])
def test_the_variance_is_that_of_estimates_whatever_their_doubts_claim(num, doubt):
    """Doubts say how certain ratios are compared with each other; how much they scatter, the ratios say."""
    draw = random.Random(3)
    estimates = [estimate([Ratio(draw.gauss(1.0, 0.05), doubt) for _ in range(num)]) for _ in range(2000)]
    assert Noise.of(estimates).variance == pytest.approx(0.05**2 / num, rel=0.1)


def test_a_table_is_as_uncertain_as_the_line_that_its_points_share():
    """A line has two numbers: of many points, each brings less than its own noise to the whole table."""
    noise = Noise(variance=0.1**2)
    assert noise.half_width(1) == noise.half_width(2) == pytest.approx(NORMAL_90 * 0.1)
    assert noise.half_width(8) == pytest.approx(NORMAL_90 * 0.1 / 2)


def test_bends_that_noise_hides_stay_however_many_points_there_are():
    for num_points in (1, 8, 1000):
        straight, bent = (Noise(variance=0.1**2, bends=bends).half_width(num_points) for bends in (0.0, 0.03))
        assert bent == pytest.approx(hypot(straight, NORMAL_90 * 0.03))
    assert Noise.of([], bends=0.03).half_width(8) == pytest.approx(NORMAL_90 * 0.03)


def test_the_width_of_a_table_holds_nine_means_of_ten():
    draw, noise = random.Random(5), Noise(variance=0.02**2)
    width = noise.half_width(len(ROWS))
    errors = []
    for _ in range(1000):
        smoothed = noise.smoothed({rows: seconds * draw.gauss(1.0, 0.02) for rows, seconds in LINE.items()})
        errors.append(fmean(smoothed[rows] / LINE[rows] for rows in ROWS) - 1)
    assert fmean(abs(error) <= width for error in errors) > 0.9


@given(slope=st.floats(0, 1e-4), more=st.just(0.0) | st.floats(5e-3, 1e-2), knot=st.sampled_from(ROWS[2:-2]))
def test_a_line_that_bends_upwards_is_left_as_it_is(slope, more, knot):
    """Reading the weights hides the arithmetic of a few rows, and from some number of rows on it does not."""
    bent = {rows: 30e-3 + slope * rows + more * max(0, rows - knot) for rows in ROWS}
    assert Noise(variance=0.02**2).smoothed(bent) == pytest.approx(bent, rel=1e-6)


@given(st.dictionaries(st.integers(1, 64), SECONDS, min_size=1, max_size=9))
def test_times_without_noise_are_believed(seconds):
    assert Noise(variance=0.0).smoothed(seconds) == seconds


def test_a_step_that_noise_cannot_explain_is_kept():
    """As where a kernel takes another path from eight rows on."""
    taken = {rows: seconds * (1.5 if rows > 8 else 1.0) for rows, seconds in LINE.items()}
    assert Noise(variance=0.005**2).smoothed(taken) == pytest.approx(taken, rel=0.01)


TIMES = st.dictionaries(st.integers(1, 64), SECONDS, min_size=1).map(lambda times: dict(sorted(times.items())))


def seen(*values: float) -> Estimate:
    return estimate([Ratio(value, 0.03) for value in values])


# Rising times


@given(TIMES)
def test_times_rise_and_keep_their_sum(times):
    found = rising(times)
    assert list(found) == list(times)
    assert all(before <= after for before, after in pairwise(found.values()))
    assert sum(found.values()) == pytest.approx(sum(times.values()))


@given(TIMES, TIMES)
def test_nothing_that_rises_is_nearer(times, others):
    other = dict(zip(times, sorted(others.values()), strict=False))
    if len(other) == len(times):

        def distance(found):
            return sum((found[rows] - times[rows]) ** 2 for rows in times)

        assert distance(rising(times)) <= distance(other) * (1 + 1e-9) + 1e-12


@given(TIMES)
def test_a_time_without_noise_stays(times):
    first = min(times)
    assert rising(times, known=first)[first] == pytest.approx(times[first], rel=1e-6)


# What is doubted, and what stands


def test_a_peak_and_a_fall_are_doubted_until_they_were_seen_twice():
    peak = [("5", seen(25.0)), ("9", seen(54.0)), ("17", seen(37.0))]
    assert set(doubtful(peak)) == {"9", "17"}
    first_call = [("38", seen(157.0)), ("215", seen(45.0))]
    assert set(doubtful(first_call)) == {"38", "215"}
    assert not set(doubtful([("9", seen(54.0, 53.0)), ("17", seen(37.0, 36.0))]))


@given(TIMES)
def test_what_rises_or_bends_a_little_is_not_doubted(times):
    line = dict(zip(times, sorted(times.values()), strict=True))
    bent = [(rows, seen(one * (1.05 if rows % 2 else 0.95))) for rows, one in line.items()]
    assert not list(doubtful(bent))


def test_a_fall_stands_once_visits_agree():
    assert cliffs({8: seen(54.0, 54.5), 9: seen(37.0, 37.2)}) == {9}
    assert cliffs({8: seen(54.0), 9: seen(37.0)}) == frozenset(), "one visit each is none that confirms"
    assert cliffs({8: seen(54.0, 25.0), 9: seen(37.0, 36.0)}) == frozenset(), "the second visit says otherwise"
    assert cliffs({8: seen(40.0, 40.1), 9: seen(37.0, 37.1)}) == frozenset(), "kernels bend by as much"
    assert cliffs({8: seen(40.0, 40.0), 9: seen(32.0, 32.0)}) == frozenset(), "one spike at each visit"


def test_stretches_end_before_a_cliff():
    assert list(between((1, 2, 4, 9), {4})) == [[1, 2], [4, 9]]
    assert list(between((1, 2), ())) == [[1, 2]]
    assert list(between((), {4})) == []
