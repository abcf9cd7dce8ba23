import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Anchor
from mirrorsd.compare.pace import expected_steps, pace
from mirrorsd.compare.runs import Run, SpeedSample
from mirrorsd.compare.speed_probe import num_plain_tokens, probe_prompt
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine

PROFILE, RECORD = machine(), acceptance_record(num_prompts=3, num_tokens=24)
EXPECTED = expected_steps(PROFILE, RECORD)
SPLIT = Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2)
PREDICTION = predict(SPLIT, PROFILE, RECORD)
paces = st.floats(0.2, 5.0)


def run_with(*samples):
    around = tuple(SpeedSample(work, lane, 0.0, factor * EXPECTED[work, lane]) for work, lane, factor in samples)
    return Run(trace=Trace(world="measured"), around=around)


def paced(*samples, schedule=SPLIT, prediction=PREDICTION):
    return pace(run_with(*samples), schedule, prediction, EXPECTED)


def test_plain_steps_are_expected_to_take_what_is_predicted_of_the_same_text():
    plain = Schedule(method="autoregressive", target_lane="both")
    alone = acceptance_record(num_prompts=3, num_tokens=24)
    shortest = min(alone.prompts, key=lambda prompt: prompt.prompt_length)
    place = alone.prompts.index(shortest)
    trace = simulate(plain, PROFILE, alone, max_new_tokens=8)[place]
    assert EXPECTED["plain", "both"] == pytest.approx(trace.decode_s / 8)
    assert probe_prompt(RECORD).name == shortest.name


def test_texts_shorter_than_a_look_are_decoded_whole():
    short = acceptance_record(num_prompts=2, num_tokens=5)
    assert num_plain_tokens(short) == 5
    assert expected_steps(PROFILE, short)["plain", "target"] > 0


def test_anchors_are_those_of_calibration_or_a_verification_by_the_tables():
    anchor = Anchor(context=64, seconds=0.5)
    lanes = (PROFILE.lanes[0].model_copy(update={"anchor": anchor}), *PROFILE.lanes[1:])
    found = expected_steps(PROFILE.model_copy(update={"lanes": lanes}), RECORD)
    assert found["anchor", "target"] == 0.5
    assert found["anchor", "draft"] == pytest.approx(PROFILE.lane("draft").verify_s(30, 1, 64))
    length = probe_prompt(RECORD).prompt_length
    assert EXPECTED["anchor", "target"] == pytest.approx(PROFILE.lane("target").verify_s(30, 1, length))


@given(paces)
def test_a_machine_that_is_slower_by_a_factor_has_that_pace(factor):
    samples = [("anchor", "target", factor), ("plain", "target", factor), ("anchor", "draft", factor)]
    assert paced(*samples) == pytest.approx(factor)


@given(paces, paces)
def test_lanes_count_by_their_share_of_the_predicted_work(target, draft):
    draft_s = PREDICTION.hidden_draft_s + PREDICTION.exposed_draft_s
    share = PREDICTION.target_busy_s / (PREDICTION.target_busy_s + draft_s)
    found = paced(("anchor", "target", target), ("anchor", "draft", draft))
    assert found == pytest.approx(share * target + (1 - share) * draft)
    assert 0.5 < share < 1


def test_before_and_after_are_averaged():
    assert paced(("anchor", "target", 1.0), ("anchor", "target", 2.0)) == pytest.approx(1.5)


def test_another_lane_says_nothing():
    assert paced(("anchor", "target", 1.2), ("anchor", "both", 9.0)) == pytest.approx(1.2)


def test_a_pooled_schedule_has_the_pace_of_its_lane():
    pooled = Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=2)
    found = paced(("anchor", "both", 1.4), schedule=pooled, prediction=predict(pooled, PROFILE, RECORD))
    assert found == pytest.approx(1.4)


def test_where_nothing_was_timed_the_pace_is_that_of_calibration():
    assert paced() == 1.0
