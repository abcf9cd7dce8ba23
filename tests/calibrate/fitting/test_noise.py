"""What noise explains is taken out of times by rows, and no more than that."""

import random
from math import hypot, sqrt
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.noise import Noise
from calibrate.fitting.ratios import NORMAL_90, Ratio, estimate

SECONDS = st.floats(1e-4, 1e-2)
ROWS = (1, 2, 3, 4, 5, 6, 9, 17, 33)
LINE = {rows: 40e-3 + 1.4e-3 * rows for rows in ROWS}


@pytest.mark.parametrize("num", [2, 5])
@pytest.mark.parametrize("doubt", [0.03, 0.05, 0.2])
def test_the_variance_is_that_of_estimates_whatever_their_doubts_claim(num: int, doubt: float) -> None:
    """Doubts say how certain ratios are compared with each other; how much they scatter, the ratios say."""
    draw = random.Random(3)
    estimates = [estimate([Ratio(draw.gauss(1.0, 0.05), doubt) for _ in range(num)]) for _ in range(2000)]
    assert Noise.of(estimates).variance == pytest.approx(0.05**2 / num, rel=0.1)


def test_a_table_is_as_uncertain_as_the_line_that_its_points_share() -> None:
    """A line has two numbers: of many points, each brings less than its own noise to the whole table."""
    noise = Noise(variance=0.1**2)
    assert noise.half_width(1) == noise.half_width(2) == pytest.approx(NORMAL_90 * 0.1)
    assert noise.half_width(8) == pytest.approx(NORMAL_90 * 0.1 / 2)


def test_bends_that_noise_hides_stay_however_many_points_there_are() -> None:
    for num_points in (1, 8, 1000):
        straight, bent = (Noise(variance=0.1**2, bends=bends).half_width(num_points) for bends in (0.0, 0.03))
        assert bent == pytest.approx(hypot(straight, NORMAL_90 * 0.03))
    assert Noise.of([], bends=0.03).half_width(8) == pytest.approx(NORMAL_90 * 0.03)


def test_the_width_of_a_table_holds_nine_means_of_ten() -> None:
    draw, noise = random.Random(5), Noise(variance=0.02**2)
    width = noise.half_width(len(ROWS))
    errors = []
    for _ in range(1000):
        smoothed = noise.smoothed({rows: seconds * draw.gauss(1.0, 0.02) for rows, seconds in LINE.items()})
        errors.append(fmean(smoothed[rows] / LINE[rows] for rows in ROWS) - 1)
    assert fmean(abs(error) <= width for error in errors) > 0.9


@given(start=st.floats(1e-3, 0.1), slope=st.floats(0, 1e-2), error=st.floats(0, 0.5))
def test_a_straight_line_is_left_as_it_is(start: float, slope: float, error: float) -> None:
    line = {rows: start + slope * rows for rows in ROWS}
    assert Noise(variance=error**2).smoothed(line) == pytest.approx(line, rel=1e-6)


@given(slope=st.floats(0, 1e-4), more=st.floats(5e-3, 1e-2), knot=st.sampled_from(ROWS[2:-2]))
def test_a_line_that_bends_upwards_is_left_as_it_is(slope: float, more: float, knot: int) -> None:
    """Reading the weights hides the arithmetic of a few rows, and from some number of rows on it does not."""
    bent = {rows: 30e-3 + slope * rows + more * max(0, rows - knot) for rows in ROWS}
    assert Noise(variance=0.02**2).smoothed(bent) == pytest.approx(bent, rel=1e-6)


def test_rows_that_cost_next_to_nothing_are_not_dear_because_many_rows_are() -> None:
    """A Zen 4 computes nine rows in the time of one, and 33 in two and a half times that time."""
    draw, noise, taken_s = (
        random.Random(7),
        Noise(variance=0.05**2),
        dict(zip(ROWS, [1.0] * 7 + [1.5, 2.5], strict=True)),
    )
    found = [noise.smoothed({rows: one * draw.gauss(1.0, 0.05) for rows, one in taken_s.items()}) for _ in range(200)]
    assert fmean(one[9] / one[1] for one in found) == pytest.approx(1.0, abs=0.03)


@given(st.dictionaries(st.integers(1, 64), SECONDS, min_size=1, max_size=9))
def test_times_without_noise_are_believed(seconds: dict[int, float]) -> None:
    assert Noise(variance=0.0).smoothed(seconds) == seconds


def test_scatter_that_noise_explains_is_mostly_gone() -> None:
    draw = random.Random(0)
    noise = Noise(variance=0.05**2)
    before, after = [], []
    for _ in range(200):
        taken = {rows: seconds * draw.gauss(1.0, sqrt(noise.variance)) for rows, seconds in LINE.items()}
        smoothed = noise.smoothed(taken)
        before += [taken[rows] / LINE[rows] - 1 for rows in ROWS]
        after += [smoothed[rows] / LINE[rows] - 1 for rows in ROWS]
    assert fmean(one**2 for one in after) < 0.45 * fmean(one**2 for one in before)


def test_a_step_that_noise_cannot_explain_is_kept() -> None:
    """As where a kernel takes another path from eight rows on."""
    taken = {rows: seconds * (1.5 if rows > 8 else 1.0) for rows, seconds in LINE.items()}
    assert Noise(variance=0.005**2).smoothed(taken) == pytest.approx(taken, rel=0.01)
