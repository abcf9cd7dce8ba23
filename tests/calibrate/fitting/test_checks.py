"""Held-back runs show what is off beyond the errors that are known, and for whom."""

from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.checks import Check, CheckErrors, check_errors, check_of, note_on
from calibrate.fitting.ratios import NORMAL_90, AnchorRatio
from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Contention, Profile

LANES = ("a", "b")
PLAIN = Schedule(method="autoregressive", target_lane="a")
DRAFTING = {"target_lane": "a", "draft_lane": "b", "num_speculative_tokens": 2}
SPECULATIVE = Schedule(method="speculative", **DRAFTING)
WITH_FEATURES = SPECULATIVE.model_copy(update={"exit_features": True})
MIRROR = Schedule(method="mirror", root_source="draft", draft_top_k=2, **DRAFTING)
MEDUSA = Schedule(method="medusa", tree_size=4, drafter="m", **DRAFTING)


def table(error: float):
    return LatencyTable(rows=(1, 8), contexts=(0,), seconds=((1.0,), (1.0,)), relative_error=error, source="test")


def profile() -> Profile:
    lanes = [
        LaneProfile(
            name=name,
            device="test",
            dispatch_s=0.0,
            layer=table(0.01 + place),
            draft_step=table(0.02 + place),
            draft_step_features=table(0.03 + place),
            heads={"m": table(0.04 + place)},
        )
        for place, name in enumerate(LANES)
    ]
    contention = [Contention(lanes=("a", "b"), slowdown=(1.0, 1.0), relative_error=0.5, source="test")]
    return Profile(
        host={}, target="t", drafter="d", dtype="float32", num_layers=2, lanes=tuple(lanes), contention=contention
    )


def check(residual: float, lane: str = "a", model: float = 0.0, chance: float = 0.0) -> Check:
    return Check(lane, residual, model, chance)


# One check


def test_a_prediction_above_what_was_measured_is_off_upwards():
    found = check_of(PLAIN, [(AnchorRatio(0.8, 0.03), {}), (AnchorRatio(0.8, 0.04), {})], profile())
    assert (found.lane, found.error) == ("a", pytest.approx(0.25))
    assert found.chance == pytest.approx(0.05 / 2)


def test_runs_of_a_schedule_are_taken_together():
    found = check_of(PLAIN, [(AnchorRatio(exp(0.1), 0.03), {}), (AnchorRatio(exp(0.3), 0.03), {})], profile())
    assert found.residual == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("schedule", "errors"),
    [
        (PLAIN, {"target a": 0.01}),
        (SPECULATIVE, {"target a": 0.01, "draft b": 1.02}),
        (WITH_FEATURES, {"target a": 0.01, "draft b": 1.03}),
        (MEDUSA, {"target a": 0.01, "draft b": 1.04}),
        (MIRROR, {"target a": 0.01, "draft b": sqrt(1.02**2 + 0.5**2)}),
    ],
)
def test_a_prediction_may_be_off_by_its_tables_as_far_as_they_share_in_it(schedule, errors):
    shares = dict(zip(errors, (0.75, 0.25), strict=False))
    found = check_of(schedule, [(AnchorRatio(1.0, 0.03), shares)], profile(), level_error=0.07)
    expected = sqrt(0.07**2 + sum((share * errors[name]) ** 2 for name, share in shares.items()))
    assert found.model == pytest.approx(expected / NORMAL_90)


@pytest.mark.parametrize(("predicted", "is_doubtful"), [(1.14, False), (1.16, True), (0.86, False), (0.84, True)])
def test_a_check_is_doubtful_from_fifteen_percent_on(predicted, is_doubtful):
    assert check(log(predicted)).is_doubtful is is_doubtful


def test_the_note_names_those_that_are_doubtful_with_how_far_they_are_off():
    found = {PLAIN: check(log(1.2)), SPECULATIVE: check(0.0), MIRROR: check(log(0.7), "b")}
    (note,) = note_on(found)
    assert note == (
        "Calibration's own checks are off by more than 15 %: "
        "autoregressive with the target on a +20 %, mirror with the target on a -30 %."
    )
    assert list(note_on({SPECULATIVE: check(0.1)})) == []


# All of them


@given(st.integers(0, 12))
def test_checks_that_are_right_show_nothing(num):
    assert check_errors([check(0.0, LANES[place % 2]) for place in range(num)], LANES) == CheckErrors(
        0.0, {"a": 0.0, "b": 0.0}, 0.0
    )


def test_what_all_are_off_by_is_common():
    for sign in (-1, 1):
        found = check_errors([check(sign * residual, lane) for lane in LANES for residual in (0.19, 0.2, 0.21)], LANES)
        assert found.common == pytest.approx(0.2)
        assert found.own == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(("apart", "common"), [(0.11, 0.2), (0.125, 0.0)])
def test_three_checks_show_a_common_error_only_beyond_students_t(apart, common):
    """The mean of three is 0.2; its 90 % half-width is 2.92 / sqrt(3) = 1.69 times as far as they lie apart."""
    found = check_errors([check(residual) for residual in (0.2 - apart, 0.2, 0.2 + apart)], ())
    assert found.common == pytest.approx(common)


def test_what_one_lane_is_off_by_is_its_own():
    checks = [
        check(residual, lane) for lane, at in (("a", 0.2), ("b", -0.2)) for residual in (at - 0.01, at, at + 0.01)
    ]
    found = check_errors(checks, LANES)
    assert (found.common, found.own) == (0.0, {"a": pytest.approx(0.2), "b": pytest.approx(0.2)})
    assert found.schedules < 0.03


def test_scatter_that_chance_or_the_tables_explain_is_no_error_of_schedules():
    residuals = [0.1, -0.1, 0.1, -0.1]
    assert check_errors([check(one) for one in residuals], ()).schedules > 0.1
    assert check_errors([check(one, chance=0.1) for one in residuals], ()).schedules == 0
    assert check_errors([check(one, model=0.1) for one in residuals], ()).schedules == 0
    partly = check_errors([check(one, model=0.06) for one in residuals], ()).schedules
    assert partly == pytest.approx(0.8 * check_errors([check(one) for one in residuals], ()).schedules)
