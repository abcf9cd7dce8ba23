"""Times are as certain as they scatter; more rows take no less time, unless they were seen to more than once."""

import random
from itertools import pairwise
from math import hypot, sqrt
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.noise import between, cliffs, doubtful, half_width_of, rising
from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, Estimate, estimate

SECONDS = st.floats(1e-4, 1e-2)


@pytest.mark.parametrize("num", [2, 5])
@pytest.mark.parametrize("doubt", [0.03, 0.05, 0.2])
def test_the_error_is_that_of_estimates_whatever_their_doubts_claim(num, doubt):
    """Doubts say how certain ratios are compared with each other; how much they scatter, the ratios say."""
    draw = random.Random(3)
    estimates = [estimate([AnchorRatio(draw.gauss(1.0, 0.05), doubt) for _ in range(num)]) for _ in range(2000)]
    width = half_width_of(estimates)
    assert width == pytest.approx(NORMAL_90 * 0.05 / sqrt(num), rel=0.05)
    assert fmean(abs(one.value - 1) <= width for one in estimates) == pytest.approx(0.9, abs=0.02)


def test_bends_that_noise_hides_are_an_error_of_their_own():
    estimates = [estimate([AnchorRatio(1.0 + 0.1 * sign, 0.03) for sign in (-1, 1)])] * 8
    straight, bent = (half_width_of(estimates, bends=bends) for bends in (0.0, 0.03))
    assert bent == pytest.approx(hypot(straight, NORMAL_90 * 0.03))
    assert half_width_of([], bends=0.03) == pytest.approx(NORMAL_90 * 0.03)


TIMES = st.dictionaries(st.integers(1, 64), SECONDS, min_size=1).map(lambda times: dict(sorted(times.items())))


def seen(*values: float) -> Estimate:
    return estimate([AnchorRatio(value, 0.03) for value in values])


# Rising times


@given(TIMES)
def test_times_rise_and_keep_their_sum(times):
    found = rising(times)
    assert list(found) == list(times)
    assert all(before <= after for before, after in pairwise(found.values()))
    assert sum(found.values()) == pytest.approx(sum(times.values()))


@given(TIMES)
def test_nothing_that_rises_is_nearer(times):
    """A place has the largest of the least means of stretches around it (Barlow and others, 1972)."""
    seconds, places = list(times.values()), range(len(times))
    for place, found in enumerate(rising(times).values()):
        least = (min(fmean(seconds[start : stop + 1]) for stop in places[place:]) for start in places[: place + 1])
        assert found == pytest.approx(max(least))


@given(TIMES)
def test_a_time_without_noise_stays(times):
    first = min(times)
    assert rising(times, known=first)[first] == pytest.approx(times[first], rel=1e-6)


# What is doubted, and what stands


def test_a_peak_and_a_fall_are_doubted_until_they_were_seen_three_times():
    peak = [("5", seen(25.0)), ("9", seen(54.0)), ("17", seen(37.0))]
    assert set(doubtful(peak)) == {"9", "17"}
    first_call = [("38", seen(157.0)), ("215", seen(45.0))]
    assert set(doubtful(first_call)) == {"38", "215"}
    assert set(doubtful([("9", seen(54.0, 53.0)), ("17", seen(37.0, 36.0))])) == {"9", "17"}
    assert not set(doubtful([("9", seen(54.0, 53.0, 53.5)), ("17", seen(37.0, 36.0, 36.5))]))


@given(TIMES)
def test_what_rises_or_bends_a_little_is_not_doubted(times):
    line = dict(zip(times, sorted(times.values()), strict=True))
    bent = [(rows, seen(one * (1.05 if rows % 2 else 0.95))) for rows, one in line.items()]
    assert not list(doubtful(bent))


def test_a_fall_stands_once_three_visits_agree():
    assert cliffs({8: seen(54.0, 54.5, 53.8), 9: seen(37.0, 37.2, 36.9)}) == {9}
    assert cliffs({8: seen(54.0), 9: seen(37.0)}) == frozenset(), "one visit each is none that confirms"
    assert cliffs({8: seen(54.0, 54.0), 9: seen(37.0, 37.0, 37.0)}) == frozenset(), "both may have met a spike"
    assert cliffs({8: seen(54.0, 25.0, 26.0), 9: seen(37.0, 36.0, 37.0)}) == frozenset(), "others say otherwise"
    assert cliffs({8: seen(40.0, 40.1, 40.2), 9: seen(37.0, 37.1, 37.2)}) == frozenset(), "kernels bend by as much"
    assert cliffs({8: seen(40.0, 40.0, 40.0), 9: seen(34.0, 34.0, 34.0)}) == frozenset(), "it is hardly more than that"


def test_stretches_end_before_a_cliff():
    assert list(between((1, 2, 4, 9), {4})) == [[1, 2], [4, 9]]
    assert list(between((1, 2), ())) == [[1, 2]]
    assert list(between((), {4})) == []
