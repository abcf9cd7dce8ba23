"""Anchors tell what their mean may be off by: what all lanes share, and what a lane has for itself."""

import random
from math import exp, hypot
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.ratios import NORMAL_90, AnchorErrors, anchor_errors

LANES = ("a", "b", "c")
STRETCHES = 8


def taken(common: float, own: float, seed: int, lanes: tuple[str, ...] = LANES):
    """Anchors of a machine whose speed is another in every eighth of the time; (anchors, log mean by lane)."""
    draw = random.Random(seed)
    shifts = [draw.gauss(0.0, common) for _ in range(STRETCHES)]
    logs = {lane: [shift + draw.gauss(0.0, own) for shift in shifts] for lane in lanes}
    anchors = {
        lane: [
            (10 * place + at, (1 + index) * exp(value)) for place, value in enumerate(logs[lane]) for at in (0, 4, 9)
        ]
        for index, lane in enumerate(lanes)
    }
    return anchors, {lane: fmean(values) for lane, values in logs.items()}


@given(st.floats(0.1, 10.0), st.integers(1, 60))
def test_a_machine_that_keeps_its_speed_leaves_no_error(seconds, count):
    samples = {lane: [(float(at), seconds) for at in range(count)] for lane in LANES}
    assert anchor_errors(samples) == AnchorErrors(
        pytest.approx(0, abs=1e-9), dict.fromkeys(LANES, pytest.approx(0, abs=1e-9))
    )


def test_what_all_lanes_do_together_is_common_and_nobodys_own():
    errors = anchor_errors(taken(0.1, 0.0, 1)[0])
    assert errors.common > 0.03
    assert list(errors.own.values()) == pytest.approx([0.0] * 3, abs=1e-9)


def test_nine_intervals_of_ten_hold_the_ratio_of_two_lanes_and_the_mean_of_all():
    pairs, levels, singles = [], [], []
    for seed in range(1000):
        anchors, off = taken(0.05, 0.08, seed)
        errors = anchor_errors(anchors)
        pairs.append(abs(off["a"] - off["b"]) <= hypot(errors.own["a"], errors.own["b"]))
        levels.append(abs(fmean(off.values())) <= errors.common)
        singles.append(abs(off["c"]) <= hypot(errors.common, errors.own["c"]))
    assert 0.87 < fmean(pairs) < 0.94
    assert 0.87 < fmean(levels) < 0.93
    assert 0.87 < fmean(singles) < 0.96


def test_the_error_of_a_single_lane_is_all_common():
    hits = []
    for seed in range(1000):
        anchors, off = taken(0.03, 0.08, seed, LANES[:1])
        errors = anchor_errors(anchors)
        assert errors.own == {"a": 0.0}
        hits.append(abs(off["a"]) <= errors.common)
    assert 0.87 < fmean(hits) < 0.93


def test_a_lane_that_slept_for_a_stretch_is_taken_to_have_been_as_before():
    anchors, _ = taken(0.05, 0.05, 4)
    anchors["b"] = [sample for sample in anchors["b"] if not 30 <= sample[0] < 40]
    filled = {**anchors, "b": sorted([*anchors["b"], *((30.0 + at, anchors["b"][8][1]) for at in (0, 4, 9))])}
    assert anchor_errors(anchors).own == pytest.approx(anchor_errors(filled).own)


def test_where_there_are_too_few_anchors_for_stretches_all_their_scatter_is_common():
    errors = anchor_errors({"a": [(0.0, 1.0), (1.0, exp(0.2)), (2.0, 1.0)], "b": [(0.0, 1.0)]})
    spread = pstdev([0.0, 0.2, 0.0]) * (3 / 2) ** 0.5
    assert errors == AnchorErrors(pytest.approx(NORMAL_90 * spread), {"a": 0.0, "b": 0.0})
