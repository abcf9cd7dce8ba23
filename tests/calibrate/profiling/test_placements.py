"""What is fitted is judged by other schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.task import schedules_of
from decoding.schedule import Schedule
from tests.calibrate.profiling.calibration.asked import task


def schedules(*, is_check: bool = False, **changes) -> list[Schedule]:
    """Of a draft with features."""
    return schedules_of(task(**{"exit_features": (1, 3)} | changes), None, is_check=is_check)


@pytest.mark.parametrize("max_window", [1, 3, 8])
@pytest.mark.parametrize("exit_layers", [(), (4, 6)])
def test_every_lane_and_every_placement_is_fitted_with_every_kind_of_step(max_window, exit_layers):
    found = schedules(max_window=max_window, exit_layers=exit_layers)
    plain = [one.target_lane for one in found if one.method == "autoregressive"]
    assert plain == ["cpu0", "cpu1", "cpu0+1"]
    drafting = {(s.target_lane, s.draft_lane, s.exit_features) for s in found if s.method == "speculative"}
    placements = [("cpu0", "cpu1"), ("cpu1", "cpu0"), ("cpu0+1", "cpu0+1")]
    assert drafting == {(*placement, features) for placement in placements for features in (False, True)}
    mirrors = [one for one in found if one.method == "mirror"]
    kinds = [False, True] if exit_layers else [False]
    assert [(one.target_lane, one.draft_lane, one.exit_features) for one in mirrors] == [
        (*placement, features) for features in kinds for placement in placements[:2]
    ]
    assert {one.exit_layer for one in mirrors} == ({6} if exit_layers else {None})
    assert all(one.num_speculative_tokens <= max_window for one in found if one.draft_lane is not None)


@given(max_window=st.integers(3, 16), exit_layers=st.sampled_from([(), (4, 6)]))
def test_no_schedule_is_judged_by_itself(max_window, exit_layers):
    asked = {"max_window": max_window, "exit_layers": exit_layers}
    fitted, checks = schedules(**asked), schedules(**asked, is_check=True)
    assert checks
    assert set(fitted).isdisjoint(checks)
    assert {(one.method, one.target_lane) for one in checks} == {
        (one.method, one.target_lane) for one in fitted if one.method != "autoregressive"
    }


def test_without_a_draft_plain_decoding_alone_is_fitted_and_nothing_checked():
    assert {one.method for one in schedules(drafter=None)} == {"autoregressive"}
    assert schedules(drafter=None, is_check=True) == []
