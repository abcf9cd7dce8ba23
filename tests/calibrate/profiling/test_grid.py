"""What is measured reaches every size that a schedule may ask for, and no calibration measures more than it must."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.grid import USUAL_BRANCHES, full_effort, quick_effort
from decoding.errors import ConfigError

EFFORTS = [quick_effort, full_effort]
WINDOWS = st.integers(1, 16)
CONTEXTS = st.tuples(st.integers(0, 500), st.integers(1, 4000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.parametrize("effort_of", EFFORTS)
@given(max_window=WINDOWS, contexts=CONTEXTS)
def test_grids_reach_the_longest_window_and_both_contexts(effort_of, max_window, contexts) -> None:
    effort = effort_of(max_window, contexts)
    for grid in (effort.target_rows, effort.part_rows, effort.draft_rows, effort.contexts):
        assert list(grid) == sorted(set(grid))
    assert effort.target_rows[0] == effort.draft_rows[0] == 1
    assert effort.target_rows[-1] == max_window + 1
    assert effort.draft_rows[-1] == USUAL_BRANCHES
    assert (effort.contexts[0], effort.contexts[-1]) == contexts


@pytest.mark.parametrize("effort_of", EFFORTS)
@given(max_window=WINDOWS, max_step=st.integers(1, 1100))
def test_steps_of_the_draft_reach_as_wide_as_asked_and_nothing_else_changes(effort_of, max_window, max_step) -> None:
    effort, usual = effort_of(max_window, (0, 99), max_step=max_step), effort_of(max_window, (0, 99))
    assert list(effort.draft_rows) == sorted(set(effort.draft_rows))
    assert effort.draft_rows[-1] == max(max_step, 16)
    assert effort.draft_rows[-1] in effort.wide_rows
    assert replace(effort, draft_rows=usual.draft_rows) == usual


@pytest.mark.parametrize("effort_of", EFFORTS)
@given(max_window=WINDOWS, contexts=CONTEXTS)
def test_every_size_that_is_taken_apart_was_timed_whole(effort_of, max_window, contexts) -> None:
    effort = effort_of(max_window, contexts)
    assert set(effort.part_rows) <= set(effort.target_rows)
    assert len(effort.part_rows) >= min(2, len(effort.target_rows))  # a line needs two points


@pytest.mark.parametrize("effort_of", EFFORTS)
@given(max_window=WINDOWS, contexts=CONTEXTS)
def test_growth_with_the_context_is_seen_at_both_ends_of_both_grids(effort_of, max_window, contexts) -> None:
    effort = effort_of(max_window, contexts)
    assert effort.wide_rows >= {1, effort.target_rows[-1], effort.draft_rows[-1]}
    assert effort.wide_rows <= {*effort.target_rows, *effort.draft_rows}


@pytest.mark.parametrize("effort_of", EFFORTS)
@given(max_window=WINDOWS, max_tree=st.integers(1, 64))
def test_trees_are_measured_only_where_they_are_wider_than_chains(effort_of, max_window, max_tree) -> None:
    effort = effort_of(max_window, (0, 99), max_tree)
    assert list(effort.tree_rows) == sorted(set(effort.tree_rows))
    assert all(max_window + 1 < rows <= max_tree + 1 for rows in effort.tree_rows)
    assert max(*effort.target_rows, *effort.tree_rows) >= max_tree + 1
    assert effort.head_rows[0] == 1
    without = effort_of(max_window, (0, 99))
    assert (without.tree_rows, without.head_rows) == ((), ())
    assert without.target_rows == effort.target_rows


@given(max_window=st.integers(2, 16), contexts=CONTEXTS)
def test_a_quick_calibration_measures_less(max_window, contexts) -> None:
    quick, full = quick_effort(max_window, contexts), full_effort(max_window, contexts)
    assert quick.least_passes * quick.repeats < full.least_passes * full.repeats
    assert quick.least_passes <= quick.passes
    assert full.least_passes <= full.passes
    assert set(quick.target_rows) <= set(full.target_rows)
    assert len(quick.contexts) <= len(full.contexts)
    assert quick.run_tokens < full.run_tokens


@pytest.mark.parametrize("effort_of", EFFORTS)
@pytest.mark.parametrize("contexts", [(-1, 5), (5, 5), (6, 5)])
def test_contexts_must_be_a_range(effort_of, contexts) -> None:
    with pytest.raises(ConfigError, match="the first must be at least 0 and below the last"):
        effort_of(4, contexts)
