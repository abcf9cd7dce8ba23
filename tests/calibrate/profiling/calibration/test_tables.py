"""Tables of a machine whose laws are known: every part follows its law, as wide as it was asked for."""

from dataclasses import replace

import numpy as np
import pytest

from decoding.errors import OutOfRangeError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from sim.evaluator import predict
from tests.calibrate.profiling.calibration.asked import SPEEDS, TOLERANCE, calibrate, machine, task
from tests.calibrate.profiling.fake_machine.laws import GUESS_S
from tests.planner.synthetic import acceptance_record


@pytest.mark.parametrize("quick", [True, False])
def test_every_part_of_every_lane_follows_its_law(quick):
    engine = machine()
    profile = calibrate(engine, task(quick=quick))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        for rows in (1, 2, 5, 6, 9):
            assert lane.lm_head.at(rows, 100) == pytest.approx(laws.head_s(rows), **TOLERANCE)
            for context in (20, 71, 220):
                assert lane.layer.at(rows, context) == pytest.approx(laws.layer_s(rows, context), **TOLERANCE)
            for layer in (4, 6):
                assert lane.exit[layer].at(rows, 0) == pytest.approx(laws.exit_s(rows), **TOLERANCE)
        for rows in (1, 7, 16, 32):
            assert lane.draft_step.at(rows, 150) == pytest.approx(laws.step_s(rows, 150), **TOLERANCE)
        assert lane.draft_step_features is None


def test_steps_with_features_have_a_table_of_their_own():
    engine = machine()
    profile = calibrate(engine, task(exit_features=(1, 3)))
    for lane in profile.lanes:
        laws = engine.laws[lane.name]
        assert lane.draft_step_features.at(1, 20) == pytest.approx(laws.step_s(1, 20), **TOLERANCE)
        for rows in (4, 9):
            with_features = laws.step_s(rows, 20, with_features=True)
            assert lane.draft_step_features.at(rows, 20) == pytest.approx(with_features, **TOLERANCE)
        for rows in (4, 9, 40):
            assert lane.draft_start.at(rows, 20) == pytest.approx(laws.start_s(rows, 20), **TOLERANCE)
    assert profile.features_bytes_per_row == 2 * 16 * 2


def wide_record(exit_features: tuple[int, ...] = ()) -> AcceptanceRecord:
    """A text that meets every context from the 20 of calibration on, and an exit with 65 ids per row."""
    usual = acceptance_record(num_prompts=1)
    prompt = replace(usual.prompts[0], prompt_length=21, exits={6: np.tile(np.arange(65, dtype=np.int32), (60, 1))})
    return replace(usual, exit_layers=(6,), feature_layers=exit_features, prompts=(prompt,))


@pytest.mark.parametrize("exit_features", [(), (1, 3)])
@pytest.mark.parametrize("roots", [{"exit_top_k": 16}, {"roots_per_row": (64,)}])
def test_as_many_branches_can_be_priced_as_were_asked_for(roots, exit_features):
    schedule = Schedule(
        method="mirror",
        target_lane="cpu0",
        draft_lane="cpu1",
        num_speculative_tokens=3,
        root_source="exit",
        exit_layer=6,
        exit_features=bool(exit_features),
        drafter="d",
        **roots,
    )
    wide = calibrate(machine(), task(exit_features=exit_features, max_branches=64))
    assert predict(schedule, wide, wide_record(exit_features)).tpot_s > 0
    if not exit_features:
        with pytest.raises(OutOfRangeError, match="more than 32 rows were not measured"):
            predict(schedule, calibrate(machine(), task()), wide_record())


def test_streams_of_the_draft_are_timed_where_it_has_some_at_the_level_of_its_steps_in_runs():
    engine = machine(step_in_run=1.2)
    for lane in calibrate(engine, task(num_streams=2)).lanes:
        alone_s = GUESS_S / SPEEDS[lane.name]
        assert lane.draft_streams.rows == (1, 2, 16, 64)
        assert lane.draft_streams.at(1, 100) == pytest.approx(1.2 * 2 * alone_s, rel=0.02)
        assert lane.draft_streams.at(2, 100) == pytest.approx(1.2 * 3 * alone_s, rel=0.02)
    assert all(lane.draft_streams is None for lane in calibrate(machine(), task()).lanes)


@pytest.mark.parametrize("exit_features", [(), (1, 3)])
def test_as_many_branches_can_be_priced_with_streams_as_were_asked_for(exit_features):
    profile = calibrate(machine(), task(num_streams=3, exit_features=exit_features, max_branches=12))
    record = wide_record(exit_features)
    hits = np.zeros((60, record.max_window), dtype=np.int32)
    known = replace(record.prompts[0], stream_hits=hits, feature_stream_hits=hits)
    record = replace(record, num_streams=3, prompts=(known,))
    schedule = Schedule(
        method="mirror",
        target_lane="cpu0",
        draft_lane="cpu1",
        num_speculative_tokens=5,
        root_source="exit",
        exit_layer=6,
        exit_top_k=2,
        exit_features=bool(exit_features),
        draft_streams=3,
    )
    assert predict(schedule, profile, record).tpot_s > 0  # 12 branches of 4 rows each
    with pytest.raises(OutOfRangeError, match="more than .* rows were not measured"):
        predict(schedule.model_copy(update={"exit_top_k": 3}), profile, record)
