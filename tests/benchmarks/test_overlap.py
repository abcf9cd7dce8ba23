"""Overlap of two lanes, by its ends and its middle."""

import pytest

from tests.benchmarks.scripts import load_script


@pytest.mark.parametrize(("parallel_s", "expected"), [(10, 1), (14, 0), (12, 0.5)])
def test_overlap_efficiency(parallel_s, expected):
    assert load_script("overlap").overlap_efficiency(10, 4, parallel_s) == expected
