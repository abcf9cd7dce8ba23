"""What noise explains is taken out of times by rows, and no more than that."""

import random
from math import sqrt
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.noise import Noise, spread

SECONDS = st.floats(1e-4, 1e-2)
ROWS = (1, 2, 3, 4, 5, 6, 9, 17, 33)
LINE = {rows: 40e-3 + 1.4e-3 * rows for rows in ROWS}


def test_the_noise_of_several_lists_is_their_spread_over_their_shortest() -> None:
    samples = [[1.0, 2.0, 3.0, 4.0, 5.0], [7.0] * 8]
    assert Noise.of(samples) == Noise(relative_error=spread(samples), num_samples=5)


def test_the_variance_is_that_of_medians_of_normally_distributed_samples() -> None:
    draw = random.Random(3)
    samples = [[draw.gauss(1.0, 0.05) for _ in range(31)] for _ in range(2000)]
    medians = [sorted(taken)[15] for taken in samples]
    centre = fmean(medians)
    found = fmean((one - centre) ** 2 for one in medians)
    assert Noise.of(samples).variance == pytest.approx(found, rel=0.15)


@given(start=st.floats(1e-3, 0.1), slope=st.floats(0, 1e-2), error=st.floats(0, 0.5))
def test_a_straight_line_is_left_as_it_is(start: float, slope: float, error: float) -> None:
    line = {rows: start + slope * rows for rows in ROWS}
    smoothed = Noise(relative_error=error, num_samples=4).smoothed(line)
    assert smoothed == pytest.approx(line, rel=1e-6)


@given(st.dictionaries(st.integers(1, 64), SECONDS, min_size=1, max_size=9))
def test_times_without_noise_are_believed(seconds: dict[int, float]) -> None:
    assert Noise(relative_error=0.0, num_samples=2).smoothed(seconds) == seconds


def test_two_times_are_their_own_line() -> None:
    assert Noise(relative_error=0.3, num_samples=2).smoothed({1: 3.0, 8: 2.0}) == {1: 3.0, 8: 2.0}


def test_scatter_that_noise_explains_is_mostly_gone() -> None:
    draw = random.Random(0)
    noise = Noise(relative_error=0.6745 * 0.1, num_samples=4)
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
    smoothed = Noise(relative_error=0.01, num_samples=12).smoothed(taken)
    assert smoothed == pytest.approx(taken, rel=0.01)


@given(st.dictionaries(st.sampled_from(ROWS), SECONDS, min_size=3), st.floats(0.5, 3))
def test_smoothing_has_no_unit(seconds: dict[int, float], factor: float) -> None:
    noise = Noise(relative_error=0.1, num_samples=4)
    scaled = noise.smoothed({rows: one * factor for rows, one in seconds.items()})
    assert scaled == pytest.approx({rows: one * factor for rows, one in noise.smoothed(seconds).items()})


def test_spread_is_half_the_central_half_over_the_median() -> None:
    assert spread([[1.0, 2.0, 3.0, 4.0, 5.0]]) == pytest.approx(1 / 3)
    assert spread([[2.0, 2.0, 2.0, 99.0, 2.0]]) == 0
    assert spread([[1.0, 2.0, 3.0, 4.0, 5.0], [7.0, 7.0]]) == pytest.approx(1 / 6)
    assert spread([[1.0]]) == spread([]) == 0


@given(st.lists(st.lists(SECONDS, min_size=1, max_size=9), min_size=1, max_size=4), st.floats(0.1, 10))
def test_spread_has_no_unit_and_no_order(samples: list[list[float]], factor: float) -> None:
    scaled = [[seconds * factor for seconds in reversed(taken)] for taken in samples]
    assert spread(scaled) == pytest.approx(spread(samples), abs=1e-12)
    assert spread(samples) >= 0
