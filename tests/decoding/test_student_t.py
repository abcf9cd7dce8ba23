"""Quantiles are those of the distribution: its density is integrated here, and the table's neighbours are known."""

from math import exp, lgamma, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.student_t import t_quantile


def share_within(bound: float, freedom: int) -> float:
    """How much of the distribution lies between -bound and bound."""
    places = np.linspace(-bound, bound, 20_001)
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)
    density = scale * (1 + places**2 / freedom) ** (-(freedom + 1) / 2)
    return float((density[1:] + density[:-1]).sum() / 2 * (places[1] - places[0]))


@pytest.mark.parametrize("freedom", [*range(1, 61), 100, 1_000])
def test_ninety_percent_lie_within(freedom):
    assert share_within(t_quantile(freedom), freedom) == pytest.approx(0.9, abs=2e-5)


@given(st.integers(max_value=0))
def test_one_sample_shows_nothing(freedom):
    with pytest.raises(ValueError, match="two samples or more"):
        t_quantile(freedom)
