"""Prompts take the calls that read them: no line between two of them that were measured."""

import pytest

from calibrate.fitting.prompt_times import fit_prompts
from calibrate.fitting.ratios import Estimate
from runtime.backends.openvino.buckets import prompt_calls

CALL_S = {1: 0.02, 16: 0.03, 64: 0.05}
"""Reading the weights takes most of a small call, so the times of calls are not in proportion to their rows."""
LAST = 700


def read_s(rows: int, per_row: float = 0.0) -> float:
    return sum(map(CALL_S.get, prompt_calls(rows))) * (1 + per_row * rows)


def fitted(rows, per_row=0.0, calls=prompt_calls):
    times = {(count, 0): Estimate(value=read_s(count, per_row), variance=0.0, num=2, scatter=0.0) for count in rows}
    return fit_prompts(times, calls, 0.0, "a test")


def test_every_prompt_takes_the_sum_of_its_calls():
    table = fitted([1, 16, 64, LAST])
    for rows in range(1, LAST + 1):
        assert table.at(rows, 0) == pytest.approx(read_s(rows))


def test_calls_take_more_in_longer_prompts_by_as_much_as_was_measured():
    table = fitted([1, 16, 64, 300, LAST], per_row=5e-4)
    assert [table.at(rows, 0) for rows in (300, LAST)] == pytest.approx([read_s(rows, 5e-4) for rows in (300, LAST)])
    for rows in range(64, LAST):
        assert table.at(rows, 0) == pytest.approx(read_s(rows, 5e-4), rel=0.05)


def test_a_call_whose_size_was_not_measured_alone_lies_between_those_that_were():
    """A calibration of before has read no prompts of 1, 16 and 64 tokens."""
    table = fitted([40, 80])
    assert [table.at(rows, 0) for rows in (64, 80)] == pytest.approx([CALL_S[64], read_s(80)])
    assert fitted([1, 16]).rows == (1, 2, 16)


def test_a_lane_that_computes_rows_as_they_are_has_a_line_between_measured_prompts():
    table = fitted([1, 16, 64, LAST], calls=None)
    assert table.rows == (1, 16, 64, LAST)
    assert table.at(40, 0) == pytest.approx((CALL_S[16] + CALL_S[64]) / 2)
