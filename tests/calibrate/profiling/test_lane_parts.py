"""Which parts of lanes, heads, streams and lookups are timed, and that tables are made of exactly these."""

from math import hypot

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.ratios import NORMAL_90, AnchorRatio, Estimate, estimate
from calibrate.profiling.lane_parts import _BENDS, HeadParts, LaneParts
from costs.cost_model import cost_of
from costs.prices import pass_s
from hwprofiles.host import LaneCores
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import Anchor
from runtime.backends.lane_device import Device
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.asked import CONTEXTS, task
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import FakeLane
from tests.calibrate.profiling.fake_machine.laws import NUM_LAYERS, Laws

STEPS = ("draft_step", "draft_step_features", "draft_start")
FEATURES = (1, 3)
ANCHOR = Anchor(context=120, seconds=Laws().target_s("verify", 1, 120, None), relative_error=0.0)


def parts_of(name: str = "a", **changes) -> LaneParts:
    """Of a draft with features and windows of four, on a lane of cores."""
    asked = task(**{"max_window": 4, "exit_features": FEATURES} | changes)
    return LaneParts(asked, LaneCores(name=name, cores=(3,)))


PARTS = parts_of()


def found(parts: LaneParts, estimates: dict[Measurement, Estimate], anchor: Anchor = ANCHOR) -> LaneProfile:
    return parts.profile(estimates, anchor, 2e-4)


def measurements(parts: LaneParts, part: str) -> list[Measurement]:
    return [one for one in parts.measurements() if one.part == part]


def estimates_of(parts: LaneParts, laws: Laws, *around: float) -> dict[Measurement, Estimate]:
    """Everything that is timed over an anchor, so many times: as the law has it times the numbers given."""
    lane = FakeLane("a", laws, FakeEngine({}))
    ratios = {one: lane.seconds(one, contended=False) / ANCHOR.seconds for one in parts.measurements()}
    return {of: estimate([AnchorRatio(one * ratio, 0.05) for one in around or (1.0,)]) for of, ratio in ratios.items()}


@given(
    quick=st.booleans(),
    max_window=st.integers(1, 9),
    exit_layers=st.sampled_from([(), (3,), (4, 6)]),
    draft=st.sampled_from([{"drafter": None}, {"exit_features": ()}, {}]),
    num_streams=st.integers(0, 2),
)
def test_no_part_is_timed_twice_and_all_tables_find_theirs(quick, max_window, exit_layers, draft, num_streams):
    asked = {"quick": quick, "max_window": max_window, "exit_layers": exit_layers, "num_streams": num_streams, **draft}
    parts = parts_of(**asked)
    timed = list(parts.measurements())
    assert len(timed) == len(set(timed))
    lane = found(parts, {one: estimate([AnchorRatio(0.1, 0.05)]) for one in timed})
    assert tuple(lane.exit) == exit_layers
    steps = tuple(name for name in STEPS if getattr(lane, name) is not None)
    assert steps == task(**{"exit_features": FEATURES} | asked).draft_steps


def test_verifications_are_timed_at_every_row_count_and_at_longer_contexts_at_some():
    sizes = {(one.rows, one.context) for one in measurements(PARTS, "verify") if not one.pause_s}
    assert sizes == {(rows, 0) for rows in (1, 2, 3, 5)} | {(rows, CONTEXTS[1]) for rows in (1, 5)}


def test_trees_wider_than_chains_are_verified_as_trees_at_the_first_context():
    parts = parts_of(heads={"m": "medusa"})
    assert {(one.rows, one.context) for one in measurements(parts, "verify_tree")} == {(17, 0), (33, 0)}
    assert measurements(parts, "verify") == measurements(PARTS, "verify")
    lane = found(parts, estimates_of(parts, Laws()))
    for context in (0, *CONTEXTS):
        verify_s = pass_s(cost_of(lane), NUM_LAYERS, 33, context)
        assert verify_s == pytest.approx(NUM_LAYERS * Laws().layer_s(33, context) + Laws().head_s(33))


def test_streams_of_the_draft_are_timed_for_every_number_of_guesses_and_for_few_and_all_branches():
    assert not measurements(PARTS, "draft_streams")
    parts = parts_of(num_streams=3)
    timed = [(one.rows, one.num_guesses, one.context) for one in measurements(parts, "draft_streams")]
    assert timed == [(1, 0, 20), (2, 0, 20), (3, 0, 20), (24, 3, 20), (96, 3, 20)]
    table = found(parts, estimates_of(parts, Laws(speed=2.0))).draft_streams
    assert [table.at(count, 100) for count in (1, 2, 3, 50)] == pytest.approx([2e-3, 3e-3, 4e-3, 51e-3])
    only_torch = parts_of("openvino:CPU", num_streams=2)
    assert not [one for one in only_torch.measurements() if one.part == "draft_streams" or one.num_guesses]


def test_steps_of_more_rows_than_branches_verify_guesses_in_them():
    parts = parts_of(num_streams=2)
    wide = [one for one in measurements(parts, "draft_step") if one.num_guesses]
    assert [(one.rows, one.num_guesses, one.num_proposals) for one in wide] == [(96, 2, None)]
    assert max(one.rows for one in measurements(parts, "draft_start")) == 36
    table = found(parts, estimates_of(parts, Laws())).draft_step
    assert table.at(96, 120) == pytest.approx(Laws().step_s(96, 120))
    assert not any(one.num_guesses for one in measurements(PARTS, "draft_step"))


def test_heads_and_the_first_exit_are_timed_alone():
    for part, exit_layers in (("lm_head", {None}), ("exit", {4})):
        timed = measurements(PARTS, part)
        assert {one.exit_layer for one in timed} == exit_layers
        assert [one.rows for one in timed] == [1, 5]


def test_steps_are_timed_as_they_occur():
    """One row has no features; several with features read what was committed, and only the last one proposes."""
    steps, rows = measurements(PARTS, "draft_step"), {1, 2, 4, 8, 16, 32, 36}
    assert not any(one.with_features for one in steps if one.rows == 1)
    assert {one.rows for one in steps if one.num_proposals == 1 and one.with_features} == {2, 4, 5}
    assert {one.rows for one in steps if one.num_proposals is None} == rows
    starts = measurements(PARTS, "draft_start")
    assert {(one.rows, one.num_proposals) for one in starts} == {(count, count - 3) for count in rows if count > 3}
    assert all(one.with_features for one in starts)


def test_prompts_are_read_once_as_they_are_and_by_the_draft_where_there_is_one():
    timed = [one for one in PARTS.measurements() if "prefill" in one.part]
    assert [(one.part, one.rows) for one in timed] == [
        (p, n) for p in ("prefill", "draft_prefill") for n in (1, 16, 64, 220)
    ]
    assert {(one.repeats, one.warm_up) for one in timed} == {(1, 0)}
    plain = parts_of(drafter=None)
    assert found(plain, estimates_of(plain, Laws())).draft_prefill is None


def test_tables_tell_how_certain_they_are_and_their_source():
    lane = found(PARTS, estimates_of(PARTS, Laws(), 0.9, 1.1))
    assert (lane.name, lane.cores, lane.num_threads, lane.dispatch_s) == ("a", (3,), 1, 2e-4)
    # two ratios 0.2 apart: their mean has a standard deviation of 0.1
    for table in (lane.draft_step, lane.layer, lane.lm_head, lane.prefill):
        assert table.relative_error == pytest.approx(NORMAL_90 * 0.1)
        assert table.source == "a quick calibration"


def test_noise_of_steps_is_none_of_the_targets():
    noisy = estimates_of(PARTS, Laws(), 0.9, 1.1)
    steady = estimates_of(PARTS, Laws(), 1.0, 1.0)
    lane = found(PARTS, {of: (noisy if of.part.startswith("draft") else steady)[of] for of in noisy})
    assert max(lane.layer.relative_error, lane.prefill.relative_error) < 1e-12
    assert min(lane.draft_step.relative_error, lane.draft_prefill.relative_error) > 0.05


@pytest.mark.parametrize(("name", "kind"), [("a", "cpu"), ("openvino:NPU", "npu"), ("cuda:0", "gpu")])
def test_a_lane_says_what_it_is(name, kind):
    parts = parts_of(name)
    assert found(parts, estimates_of(parts, Laws())).kind == kind


@pytest.mark.parametrize(("part", "last"), [("draft_step", 36), ("verify", 5)])
def test_on_an_npu_lines_between_the_rows_timed_are_the_steps_of_its_graphs(part, last):
    """A step of 3 rows costs what one of 4 does, and so on."""
    timed = sorted({one.rows for one in measurements(parts_of("openvino:NPU"), part) if one.num_proposals is None})
    assert (timed[0], timed[-1]) == (1, last)

    def cost(rows):
        return 1.0 + next(size for size in (1, 2, 4, 8, 16, 32, 64) if size >= rows)

    every = range(1, last + 1)
    found = np.interp(every, timed, [cost(rows) for rows in timed])
    assert found == pytest.approx([cost(rows) for rows in every])


def test_tables_of_compiled_lanes_are_less_certain_for_kernels_do_better_at_some_rows(monkeypatch):
    monkeypatch.setattr(Device, "num_slots", lambda _device, num_positions: num_positions)
    estimates = estimates_of(PARTS, Laws(), 0.9, 1.1)
    lanes = [found(parts_of(name), estimates) for name in ("a", "openvino:CPU@3")]
    for part in ("layer", "lm_head", "draft_step", "draft_start", "prefill"):
        known, less = (getattr(lane, part).relative_error for lane in lanes)
        assert less == pytest.approx(hypot(known, NORMAL_90 * _BENDS))
        if part != "prefill":  # which compiled lanes read in calls of a few sizes
            assert getattr(lanes[0], part).seconds == getattr(lanes[1], part).seconds


ANCHOR_S = 40e-3


def parts(method: str, *, quick: bool = True) -> HeadParts:
    return HeadParts(task(heads={"d": method}, quick=quick), "d")


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_steps_and_prompts_of_heads_are_timed_and_their_tables_hold_at_any_context(method, quick):
    head = parts(method, quick=quick)
    timed = head.measurements()
    steps = [one for one in timed if one.part == "head_step"]
    assert [one.rows for one in steps] == ([1, 4, 8, 16] if quick else [1, 2, 3, 4, 6, 8, 12, 16])
    assert {one.context for one in steps} == {CONTEXTS[0]}
    ratios = {of: [AnchorRatio(around * (0.1 + 0.01 * of.rows), 0.05) for around in (0.9, 0.9, 1.2)] for of in timed}
    tables = head.tables(ratios, ANCHOR_S)
    for rows in (1, 4, 16):
        assert tables["heads"].at(rows, 12345) == pytest.approx(ANCHOR_S * (0.1 + 0.01 * rows))
    assert tables["heads"].relative_error > 0.05
    prompts = [one.rows for one in timed if one.part == "draft_prefill"]
    assert prompts == ([1, 16, 64, 220] if quick else [1, 16, 64, 110, 220])
    for rows in prompts:
        assert tables["head_prefill"].at(rows, 0) == pytest.approx(ANCHOR_S * (0.1 + 0.01 * rows))


def test_a_lookup_is_one_row_whatever_it_finds():
    lookup = parts("prompt_lookup")
    (step,) = lookup.measurements()
    assert (step.part, step.rows) == ("head_step", 1)
    tables = lookup.tables({step: [AnchorRatio(1e-4, 0.05)]}, ANCHOR_S)
    assert tables.keys() == {"heads"}
    assert tables["heads"].at(1, 99) == pytest.approx(4e-6)


# Streams


STREAMS = parts("speculative_streaming")


def ratios(verify: list[float], stream: list[float]) -> dict[Measurement, list[AnchorRatio]]:
    without, with_them = dict.fromkeys(STREAMS.measurements())
    return {without: [AnchorRatio(one, 0.05) for one in verify], with_them: [AnchorRatio(one, 0.05) for one in stream]}


def test_streams_are_timed_in_turn_with_the_same_verification_without_them():
    timed = STREAMS.measurements()
    assert [one.part for one in timed] == ["verify_tree", "stream"] * 4
    assert {(one.rows, one.context, one.repeats) for one in timed} == {(6, CONTEXTS[0], 1)}


def test_what_streams_add_is_the_mean_difference_and_the_same_for_all_rows():
    table = STREAMS.tables(ratios([1.5, 1.5, 1.5], [1.5 * 1.2, 1.5 * 1.2, 1.5 * 1.5]), ANCHOR_S)["streams"]
    for rows in (1, 9, 33):
        assert table.at(rows, 500) == pytest.approx(0.3 * 1.5 * ANCHOR_S)


def test_a_machine_that_changed_its_speed_between_pairs_changes_no_difference():
    """Each verification is compared with its own: what all anchors have in common is no noise of streams."""
    table = STREAMS.tables(ratios([1.0, 1.4, 1.2], [1.1, 1.54, 1.32]), ANCHOR_S)["streams"]
    assert table.at(6, 20) == pytest.approx(0.1 * 1.2 * ANCHOR_S)
    assert table.relative_error == pytest.approx(0.0, abs=1e-9)


def test_their_error_is_that_of_the_difference_and_not_of_the_verification():
    some = STREAMS.tables(ratios([1.0, 1.0], [1.05, 1.15]), ANCHOR_S)["streams"]
    few = STREAMS.tables(ratios([1.0, 1.0], [1.01, 1.02]), ANCHOR_S)["streams"]
    # two samples 0.1 apart: half of that is the standard error of their mean; t is 6.31
    assert some.relative_error == pytest.approx(6.3138 * 0.05 / 0.1)
    assert few.relative_error == pytest.approx(6.3138 * 0.005 / 0.015)


@pytest.mark.parametrize("added", [0.0, -0.02])
def test_streams_that_seem_to_cost_nothing_have_no_table(added):
    assert STREAMS.tables(ratios([1.0, 1.0], [1.125, 0.875 + 2 * added]), ANCHOR_S) == {}
