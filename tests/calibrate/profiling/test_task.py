"""What is measured reaches every size that a schedule may ask for, and what is fitted is judged by other schedules."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.task import USUAL_BRANCHES, effort_for, schedules_of
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from runtime.backends.openvino.buckets import PROMPT_ROWS
from tests.calibrate.profiling.fake_machine.asked import task

WINDOWS = st.integers(1, 16)
CONTEXTS = st.tuples(st.integers(0, 500), st.integers(1, 4000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(max_window=WINDOWS, contexts=CONTEXTS, quick=st.booleans())
def test_grids_reach_the_longest_window_and_every_shorter_context(max_window, contexts, quick):
    effort = effort_for(max_window, contexts, quick=quick)
    for grid in (effort.target_rows, effort.part_rows, effort.draft_rows, effort.contexts):
        assert list(grid) == sorted(set(grid))
    assert (effort.target_rows[0], effort.target_rows[-1]) == (1, max_window + 1)
    assert all(after <= 2 * before for before, after in pairwise(effort.target_rows)), "few lie far from one measured"
    assert (effort.draft_rows[0], effort.draft_rows[-1]) == (1, USUAL_BRANCHES)
    assert (effort.contexts[0], effort.contexts[-1]) == (0, contexts[1])
    assert {1, contexts[1], *(size for size in PROMPT_ROWS if size <= contexts[1])} <= {*effort.prefill_rows}
    assert effort.prefill_rows[-1] == contexts[1]
    # what is taken apart was timed whole, a line needs two points, and growth is seen at both ends of both grids
    assert set(effort.part_rows) <= set(effort.target_rows)
    assert len(effort.part_rows) >= 2
    assert {1, max_window + 1, USUAL_BRANCHES} <= effort.wide_rows <= {*effort.target_rows, *effort.draft_rows}


@given(max_window=WINDOWS, max_step=st.integers(1, 1100), quick=st.booleans())
def test_steps_of_the_draft_reach_as_wide_as_asked_and_nothing_else_changes(max_window, max_step, quick):
    effort, usual = (effort_for(max_window, (0, 99), quick=quick, **asked) for asked in ({"max_step": max_step}, {}))
    assert list(effort.draft_rows) == sorted(set(effort.draft_rows))
    assert effort.draft_rows[-1] == max(max_step, 16)
    assert effort.draft_rows[-1] in effort.wide_rows
    assert replace(effort, draft_rows=usual.draft_rows) == usual


@given(max_window=WINDOWS, max_tree=st.integers(1, 64), quick=st.booleans())
def test_trees_are_measured_only_where_they_are_wider_than_chains(max_window, max_tree, quick):
    effort, without = (effort_for(max_window, (0, 99), nodes, quick=quick) for nodes in (max_tree, 0))
    assert list(effort.tree_rows) == sorted(set(effort.tree_rows))
    assert all(max_window + 1 < rows <= max_tree + 1 for rows in effort.tree_rows)
    assert max(*effort.target_rows, *effort.tree_rows) >= max_tree + 1
    assert effort.head_rows[0] == 1
    assert (without.tree_rows, without.head_rows) == ((), ())
    assert without.target_rows == effort.target_rows


@given(max_window=st.integers(2, 16), contexts=CONTEXTS)
def test_a_quick_calibration_measures_less(max_window, contexts):
    quick, full = (effort_for(max_window, contexts, quick=is_quick) for is_quick in (True, False))
    assert quick.least_passes * quick.repeats < full.least_passes * full.repeats
    assert quick.least_passes <= quick.passes
    assert full.least_passes <= full.passes
    assert set(quick.target_rows) <= set(full.target_rows)
    assert len(quick.contexts) <= len(full.contexts)
    assert quick.run_tokens < full.run_tokens


@pytest.mark.parametrize("contexts", [(5,), (), (1, 2, 3)])
def test_contexts_are_two_numbers(contexts):
    with pytest.raises(ConfigError, match=r"contexts are \(.*\): they are two numbers, the fewest and the most cached"):
        effort_for(4, contexts, quick=True)


@pytest.mark.parametrize("contexts", [(-1, 5), (5, 5), (6, 5)])
def test_contexts_must_be_a_range(contexts):
    with pytest.raises(ConfigError, match="the first must be at least 0 and below the last"):
        effort_for(4, contexts, quick=True)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ("draft_step",)),
        ({"exit_features": (1, 3)}, ("draft_step", "draft_step_features", "draft_start")),
        ({"drafter": None}, ()),
    ],
)
def test_steps_are_measured_in_every_kind_the_draft_has(changes, kinds):
    assert task(**changes).draft_steps == kinds


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
