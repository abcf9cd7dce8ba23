"""Which parts are timed, and that tables are made of exactly these."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.fit import CATCH_UP_ROWS
from calibrate.profiling.grid import full_effort, quick_effort
from calibrate.profiling.lane_parts import LaneParts
from calibrate.profiling.visits import Samples
from hwprofiles.host import LaneCores
from hwprofiles.profile import LaneProfile
from tests.calibrate.profiling.fake_machine import NUM_LAYERS, FakeEngine, FakeLane, Laws

CONTEXTS = (20, 220)
BOTH_STEPS = ("draft_step", "draft_step_features")
PARTS = LaneParts(
    effort=quick_effort(4, CONTEXTS),
    num_layers=NUM_LAYERS,
    exit_layers=(4, 6),
    draft_steps=BOTH_STEPS,
    num_streams=0,
    source="a test",
)


def found(parts: LaneParts, samples: Samples, name: str = "a") -> LaneProfile:
    return parts.lane_profile(LaneCores(name=name, cores=(3,), num_threads=1), samples)


def measurements(parts: LaneParts, part: str):
    return [cell.measurement for cell in parts.cells("a") if cell.measurement.part == part]


def samples_of(parts: LaneParts, laws: Laws, *lanes: str) -> Samples:
    """Three samples of everything that is timed: two by the law, and one far off."""
    samples = Samples()
    for name in lanes:
        lane = FakeLane(name, laws, FakeEngine({}))
        samples.dispatch_s[name] += [1e-4, 9e-4, 2e-4]
        for cell in parts.cells(name):
            seconds = lane.seconds(cell.measurement, contended=False)
            samples.seconds[cell] += [seconds, 3 * seconds, seconds]
    return samples


@given(
    effort_of=st.sampled_from([quick_effort, full_effort]),
    max_window=st.integers(1, 9),
    exit_layers=st.sampled_from([(), (3,), (4, 6)]),
    draft_steps=st.sampled_from([(), BOTH_STEPS[:1], BOTH_STEPS]),
    num_streams=st.integers(0, 2),
)
def test_no_part_is_timed_twice_and_all_tables_find_theirs(
    effort_of, max_window, exit_layers, draft_steps, num_streams
) -> None:
    parts = replace(
        PARTS,
        effort=effort_of(max_window, CONTEXTS),
        exit_layers=exit_layers,
        draft_steps=draft_steps,
        num_streams=num_streams,
    )
    cells = list(parts.cells("a"))
    assert len(cells) == len(set(cells))
    samples = Samples()
    samples.dispatch_s["a"].append(1e-4)
    for cell in cells:
        samples.seconds[cell].append(1e-3)
    lane = found(parts, samples)
    assert tuple(lane.exit) == exit_layers
    assert (lane.draft_step is None, lane.draft_step_features is None) == (
        "draft_step" not in draft_steps,
        "draft_step_features" not in draft_steps,
    )


def test_verifications_are_timed_at_every_row_count_and_at_longer_contexts_at_some() -> None:
    sizes = {(one.rows, one.context) for one in measurements(PARTS, "verify")}
    rows = PARTS.effort.target_rows
    assert {size for size in sizes if size[1] == CONTEXTS[0]} == {(count, CONTEXTS[0]) for count in rows}
    assert {count for count, context in sizes if context == CONTEXTS[1]} == PARTS.effort.wide_rows & set(rows)


def test_trees_wider_than_chains_are_verified_as_trees_at_the_first_context() -> None:
    parts = replace(PARTS, effort=quick_effort(4, CONTEXTS, 32))
    assert {(one.rows, one.context) for one in measurements(parts, "verify_tree")} == {(17, 20), (33, 20)}
    assert measurements(parts, "verify") == measurements(PARTS, "verify")
    lane = found(parts, samples_of(parts, Laws(), "a"))
    for context in CONTEXTS:
        verify_s = lane.verify_s(NUM_LAYERS, 33, context)
        assert verify_s == pytest.approx(NUM_LAYERS * Laws().layer_s(33, context) + Laws().head_s(33))


def test_streams_of_the_draft_are_timed_for_every_number_of_guesses() -> None:
    assert not measurements(PARTS, "draft_streams")
    parts = replace(PARTS, num_streams=3)
    assert [(one.rows, one.context) for one in measurements(parts, "draft_streams")] == [(1, 20), (2, 20), (3, 20)]
    table = found(parts, samples_of(parts, Laws(speed=2.0), "a")).draft_streams
    assert [table.at(count, 100) for count in (1, 2, 3)] == pytest.approx([2e-3, 3e-3, 4e-3])


def test_heads_and_the_first_exit_are_timed_alone() -> None:
    for part, exit_layers in (("lm_head", {None}), ("exit", {4})):
        timed = measurements(PARTS, part)
        assert {one.exit_layer for one in timed} == exit_layers
        assert [one.rows for one in timed] == list(PARTS.effort.part_rows)
    assert measurements(replace(PARTS, exit_layers=()), "exit") == []


def test_steps_are_timed_as_they_occur() -> None:
    """One row has no features; a few rows with features catch up, and only the last one proposes."""
    steps = measurements(PARTS, "draft_step")
    assert not any(one.with_features for one in steps if one.rows == 1)
    assert {one.rows for one in steps if one.with_features} == set(PARTS.effort.draft_rows) - {1}
    for one in steps:
        catches_up = one.with_features and one.rows <= CATCH_UP_ROWS
        alone_in_a_step_with_features = one.rows == 1 and one.num_proposals == 1
        assert one.num_proposals == (1 if catches_up or alone_in_a_step_with_features else None)


def test_tables_state_the_medians_of_the_lane_they_are_asked_for() -> None:
    laws = {"a": Laws(), "b": Laws(speed=0.5)}
    samples = samples_of(PARTS, laws["a"], "a")
    others = samples_of(PARTS, laws["b"], "b")
    samples.seconds |= others.seconds
    samples.dispatch_s |= others.dispatch_s
    for name, law in laws.items():
        lane = found(PARTS, samples, name)
        for rows in (1, 3, 5):
            assert lane.layer.at(rows, 120) == pytest.approx(law.layer_s(rows, 120))
            assert lane.lm_head.at(rows, 120) == pytest.approx(law.head_s(rows))
            assert lane.exit[6].at(rows, 120) == pytest.approx(law.exit_s(rows))
        assert lane.draft_step.at(16, 120) == pytest.approx(law.step_s(16, 120))
        assert lane.draft_step_features.at(16, 20) == pytest.approx(law.step_s(16, 20, with_features=True))


def test_tables_tell_the_spread_of_their_samples_and_their_source() -> None:
    lane = found(PARTS, samples_of(PARTS, Laws(), "a"))
    assert (lane.name, lane.cores, lane.num_threads, lane.dispatch_s) == ("a", (3,), 1, 2e-4)
    assert lane.draft_step.relative_error == lane.lm_head.relative_error == pytest.approx(0.5)
    assert lane.draft_step.source == lane.layer.source == "a test"
