"""Which parts are timed, and that tables are made of exactly these."""

from dataclasses import replace
from math import hypot

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.ratios import NORMAL_90, Estimate, Ratio, estimate
from calibrate.profiling.grid import full_effort, quick_effort
from calibrate.profiling.lane_parts import _BENDS, LaneParts, prefill
from hwprofiles.host import LaneCores
from hwprofiles.profile import Anchor, LaneProfile
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import FakeLane
from tests.calibrate.profiling.fake_machine.laws import DRAFT_PREFILL, NUM_LAYERS, Laws

CONTEXTS = (20, 220)
STEPS = ("draft_step", "draft_step_features", "draft_start")
PARTS = LaneParts(
    effort=quick_effort(4, CONTEXTS),
    num_layers=NUM_LAYERS,
    exit_layers=(4, 6),
    draft_steps=STEPS,
    num_streams=0,
    max_branches=32,
    source="a test",
)


ANCHOR = Anchor(context=120, seconds=Laws().target_s("verify", 1, 120, None), relative_error=0.0)


def found(parts: LaneParts, estimates: dict[Measurement, Estimate], anchor: Anchor = ANCHOR) -> LaneProfile:
    return parts.on("a").profile(LaneCores(name="a", cores=(3,), num_threads=1), estimates, anchor, 2e-4)


def measurements(parts: LaneParts, part: str):
    return [one for one in parts.on("a").measurements() if one.part == part]


def estimates_of(
    parts: LaneParts, laws: Laws, *around: float, anchor_s: float = ANCHOR.seconds
) -> dict[Measurement, Estimate]:
    """Everything that is timed over an anchor, so many times: as the law has it times the numbers given."""
    lane = FakeLane("a", laws, FakeEngine({}))
    ratios = {one: lane.seconds(one, contended=False) / anchor_s for one in parts.on("a").measurements()}
    return {of: estimate([Ratio(one * ratio, 0.05) for one in around or (1.0,)]) for of, ratio in ratios.items()}


@given(
    effort_of=st.sampled_from([quick_effort, full_effort]),
    max_window=st.integers(1, 9),
    exit_layers=st.sampled_from([(), (3,), (4, 6)]),
    draft_steps=st.sampled_from([(), STEPS[:1], STEPS]),
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
    timed = list(parts.on("a").measurements())
    assert len(timed) == len(set(timed))
    lane = found(parts, {one: estimate([Ratio(0.1, 0.05)]) for one in timed})
    assert tuple(lane.exit) == exit_layers
    assert tuple(name for name in STEPS if getattr(lane, name) is not None) == draft_steps


def test_verifications_are_timed_at_every_row_count_and_at_longer_contexts_at_some() -> None:
    sizes = {(one.rows, one.context) for one in measurements(PARTS, "verify")}
    rows = PARTS.effort.target_rows
    assert {size for size in sizes if size[1] == CONTEXTS[0]} == {(count, CONTEXTS[0]) for count in rows}
    assert {count for count, context in sizes if context == CONTEXTS[1]} == PARTS.effort.wide_rows & set(rows)


def test_trees_wider_than_chains_are_verified_as_trees_at_the_first_context() -> None:
    parts = replace(PARTS, effort=quick_effort(4, CONTEXTS, 32))
    assert {(one.rows, one.context) for one in measurements(parts, "verify_tree")} == {(17, 20), (33, 20)}
    assert measurements(parts, "verify") == measurements(PARTS, "verify")
    lane = found(parts, estimates_of(parts, Laws()))
    for context in CONTEXTS:
        verify_s = lane.verify_s(NUM_LAYERS, 33, context)
        assert verify_s == pytest.approx(NUM_LAYERS * Laws().layer_s(33, context) + Laws().head_s(33))


def test_streams_of_the_draft_are_timed_for_every_number_of_guesses_and_for_few_and_all_branches() -> None:
    assert not measurements(PARTS, "draft_streams")
    parts = replace(PARTS, num_streams=3)
    timed = [(one.rows, one.num_guesses, one.context) for one in measurements(parts, "draft_streams")]
    assert timed == [(1, 0, 20), (2, 0, 20), (3, 0, 20), (24, 3, 20), (96, 3, 20)]
    table = found(parts, estimates_of(parts, Laws(speed=2.0))).draft_streams
    assert [table.at(count, 100) for count in (1, 2, 3, 50)] == pytest.approx([2e-3, 3e-3, 4e-3, 51e-3])


def test_steps_of_more_rows_than_branches_verify_guesses_in_them() -> None:
    parts = replace(PARTS, num_streams=2)
    wide = [one for one in measurements(parts, "draft_step") if one.num_guesses]
    assert [(one.rows, one.num_guesses, one.num_proposals) for one in wide] == [(96, 2, None)]
    assert max(one.rows for one in measurements(parts, "draft_start")) == PARTS.effort.draft_rows[-1]
    table = found(parts, estimates_of(parts, Laws())).draft_step
    assert table.at(96, 120) == pytest.approx(Laws().step_s(96, 120))
    assert not any(one.num_guesses for one in measurements(PARTS, "draft_step"))


def test_streams_are_timed_where_lanes_are_torchs_own() -> None:
    parts = replace(PARTS, num_streams=2)
    timed = list(parts.on("openvino:CPU").measurements())
    assert not [one for one in timed if one.part == "draft_streams" or one.num_guesses]


def test_heads_and_the_first_exit_are_timed_alone() -> None:
    for part, exit_layers in (("lm_head", {None}), ("exit", {4})):
        timed = measurements(PARTS, part)
        assert {one.exit_layer for one in timed} == exit_layers
        assert [one.rows for one in timed] == list(PARTS.effort.part_rows)
    assert measurements(replace(PARTS, exit_layers=()), "exit") == []


def test_steps_are_timed_as_they_occur() -> None:
    """One row has no features; several with features read what was committed, and only the last one proposes."""
    steps = measurements(PARTS, "draft_step")
    assert not any(one.with_features for one in steps if one.rows == 1)
    reading = [one for one in steps if one.num_proposals == 1]
    assert {one.rows for one in reading if one.with_features} == {2, 4, 5}
    assert {one.rows for one in steps if one.num_proposals is None} == set(PARTS.effort.draft_rows)


def test_the_step_that_starts_branches_reads_a_window_and_proposes_for_every_branch() -> None:
    starts = measurements(PARTS, "draft_start")
    assert {one.rows for one in starts} == {rows for rows in PARTS.effort.draft_rows if rows > 3}
    assert all(one.with_features for one in starts)
    assert {one.rows - one.num_proposals for one in starts} == {3}
    without = replace(PARTS, draft_steps=("draft_step",))
    assert measurements(without, "draft_start") == []


def test_tables_state_means_at_the_speed_of_the_lanes_anchors() -> None:
    laws = Laws()
    for slower in (1.0, 1.3):
        anchor = ANCHOR.model_copy(update={"seconds": slower * ANCHOR.seconds})
        lane = found(PARTS, estimates_of(PARTS, laws, 0.9, 0.9, 1.2), anchor)
        assert lane.anchor == anchor
        for rows in (1, 3, 5):
            assert lane.layer.at(rows, 120) == pytest.approx(slower * laws.layer_s(rows, 120))
            assert lane.lm_head.at(rows, 120) == pytest.approx(slower * laws.head_s(rows))
            assert lane.exit[6].at(rows, 120) == pytest.approx(slower * laws.exit_s(rows))
        assert lane.draft_step.at(16, 120) == pytest.approx(slower * laws.step_s(16, 120))
        with_features_s = laws.step_s(5, 20, with_features=True)
        assert lane.draft_step_features.at(5, 20) == pytest.approx(slower * with_features_s)
        assert lane.draft_start.at(16, 20) == pytest.approx(slower * laws.start_s(16, 20))
        assert lane.prefill.at(220, 0) == pytest.approx(slower * laws.prefill_s(220))
        assert lane.draft_prefill.at(220, 0) == pytest.approx(slower * DRAFT_PREFILL * laws.prefill_s(220))


def test_prompts_are_read_once_as_they_are_and_by_the_draft_where_there_is_one() -> None:
    timed = [one for one in PARTS.on("a").measurements() if "prefill" in one.part]
    rows = PARTS.effort.prefill_rows
    assert timed == [prefill(part, count) for part in ("prefill", "draft_prefill") for count in rows]
    assert {(one.repeats, one.warm_up) for one in timed} == {(1, 0)}
    plain = replace(PARTS, draft_steps=())
    assert measurements(plain, "draft_prefill") == []
    assert found(plain, estimates_of(plain, Laws())).draft_prefill is None


def test_tables_tell_how_certain_they_are_and_their_source() -> None:
    lane = found(PARTS, estimates_of(PARTS, Laws(), 0.9, 1.1))
    assert (lane.name, lane.cores, lane.num_threads, lane.dispatch_s) == ("a", (3,), 1, 2e-4)
    # two ratios 0.2 apart: their mean has a standard deviation of 0.1; a line's two numbers share all rows
    for table in (lane.draft_step, lane.layer, lane.lm_head, lane.prefill):
        assert table.relative_error == pytest.approx(NORMAL_90 * 0.1 * (2 / max(2, len(table.rows))) ** 0.5)
        assert table.source == "a test"


def test_noise_of_steps_is_none_of_the_targets() -> None:
    noisy = estimates_of(PARTS, Laws(), 0.9, 1.1)
    steady = estimates_of(PARTS, Laws(), 1.0, 1.0)
    lane = found(PARTS, {of: (noisy if of.part.startswith("draft") else steady)[of] for of in noisy})
    assert max(lane.layer.relative_error, lane.prefill.relative_error) < 1e-12
    assert min(lane.draft_step.relative_error, lane.draft_prefill.relative_error) > 0.05


@pytest.mark.parametrize("field", ["draft_step", "verify"])
def test_on_an_npu_lines_between_the_rows_timed_are_the_steps_of_its_graphs(field) -> None:
    """A step of 3 rows costs what one of 4 does, and so on."""
    effort = PARTS.effort
    last = effort.draft_rows[-1] if field == "draft_step" else effort.target_rows[-1]
    timed = sorted({one.rows for one in PARTS.on("openvino:NPU").measurements() if _is(one, field)})
    assert (timed[0], timed[-1]) == (1, last)

    def cost(rows):
        return 1.0 + next(size for size in (1, 2, 4, 8, 16, 32, 64) if size >= rows)

    every = range(1, last + 1)
    found = np.interp(every, timed, [cost(rows) for rows in timed])
    assert found == pytest.approx([cost(rows) for rows in every])


def _is(measurement, part):
    return measurement.part == part and measurement.num_proposals is None


def test_tables_of_compiled_lanes_are_less_certain_for_kernels_do_better_at_some_rows() -> None:
    eager, compiled = (
        LaneCores(name="a", cores=(3,), num_threads=1),
        LaneCores(name="openvino:CPU@3", cores=(3,), num_threads=1),
    )
    estimates = estimates_of(PARTS, Laws(), 0.9, 1.1)
    lanes = [PARTS.profile(lane, estimates, ANCHOR, 2e-4) for lane in (eager, compiled)]
    for part in ("layer", "lm_head", "draft_step", "draft_start", "prefill"):
        known, less = (getattr(lane, part).relative_error for lane in lanes)
        assert less == pytest.approx(hypot(known, NORMAL_90 * _BENDS))
        assert getattr(lanes[0], part).seconds == getattr(lanes[1], part).seconds
