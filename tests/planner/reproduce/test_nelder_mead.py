import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.reproduce.fitted_table import minimize


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=4))
def test_it_finds_the_bottom_of_a_bowl(bottom):
    place = np.array(bottom)
    found = minimize(
        lambda x: float(((x - place) ** 2).sum()), np.zeros(len(place)), step=0.5, tolerance=1e-12, max_calls=2000
    )
    assert found == pytest.approx(place, abs=1e-3)


def test_it_finds_the_end_of_a_bent_valley():
    def rosenbrock(x):
        return float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)

    found = minimize(rosenbrock, np.array([-1.2, 1.0]), step=0.5, tolerance=1e-12, max_calls=2000)
    assert found == pytest.approx([1, 1], abs=1e-3)


def test_it_keeps_to_its_calls_and_to_the_best_it_saw():
    seen = []

    def function(x):
        seen.append((float(np.abs(x - 7).sum()), x.copy()))
        return seen[-1][0]

    found = minimize(function, np.zeros(3), step=0.3, tolerance=0.0, max_calls=40)
    assert 40 <= len(seen) <= 40 + 3 + 2
    assert found.tolist() == min(seen, key=lambda one: one[0])[1].tolist()
