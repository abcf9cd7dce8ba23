"""Draws belong to places."""

import numpy as np

from runtime.verification.rules import uniform


def test_seeds_streams_and_positions_have_draws_of_their_own():
    draws = {
        uniform(seed, stream, position)
        for seed in (0, 1, -1, 10**30)
        for stream in ("target", "accept", "draft")
        for position in range(50)
    }
    assert len(draws) == 4 * 3 * 50


def test_rivals_for_a_position_have_draws_of_their_own():
    draws = {uniform(7, "accept", *place) for place in [(1,), (11,), (1, 0), (1, 1), (11, 0), (1, 10), (1, 1, 0)]}
    assert len(draws) == 7


def test_draws_fill_the_unit_interval_evenly():
    draws = np.array([uniform(3, "accept", position) for position in range(20_000)])
    counts, _ = np.histogram(draws, bins=50, range=(0.0, 1.0))
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert counts.sum() == 20_000
    assert chi_square < 85.4  # 99.9 % of chi-square with 49 degrees of freedom


def test_neighbouring_draws_are_not_correlated():
    draws = np.array([uniform(3, "target", position) for position in range(20_000)])
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.025
