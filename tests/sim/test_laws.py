"""What must hold for any machine: better parts and better drafts do not make a run slower."""

from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from hwprofiles.bounds import SHORTEST_S
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Contention, LinkProfile, Profile
from sim.evaluator import predict
from sim.prediction import Prediction
from sim.world import simulate
from tests.sim.worlds.at_random import profiles, records, schedules
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import drawn

SECONDS = st.just(0.0) | st.floats(SHORTEST_S, 10)
RATE = st.floats(0, 1)
SLACK_S = 1e-9
NUM_PROMPTS = 2


@st.composite
def constant_machines(draw: st.DrawFn) -> Profile:
    """Lanes whose parts cost the same for any rows and contexts."""
    link = LinkProfile(lanes=("target", "draft"), latency_s=draw(SECONDS), bytes_per_s=1e3, source="random")
    return machine(
        lane("target", dispatch_s=draw(SECONDS), layer=draw(SECONDS), lm_head=draw(SECONDS), exit=draw(SECONDS)),
        lane("draft", dispatch_s=draw(SECONDS), draft_step=(step := draw(SECONDS)), draft_step_features=step),
        links=(link,),
        round_overhead_s=draw(SECONDS),
    )


def with_lane_parts(profile: Profile, index: int, share: float, *parts: str) -> Profile:
    """The profile with some parts of a lane taking `share` of their time."""
    lanes = list(profile.lanes)
    tables = {
        part: table.model_copy(update={"seconds": tuple((seconds[0] * share,) for seconds in table.seconds)})
        for part in parts
        if (table := getattr(lanes[index], part))
    }
    lanes[index] = lanes[index].model_copy(update=tables)
    return profile.model_copy(update={"lanes": tuple(lanes)})


def with_traffic(one: LaneProfile, bytes_per_s: float) -> LaneProfile:
    """The lane with parts that take so much of the memory's bandwidth."""
    parts = ("layer", "lm_head", "draft_step", "draft_step_features", "draft_start")
    tables = {part: getattr(one, part) for part in parts}
    return one.model_copy(
        update={
            part: table.model_copy(update={"bytes_per_call": bytes_per_s * table.seconds[0][0]})
            for part, table in tables.items()
        }
    )


def told(schedule: Schedule, profile: Profile, rate: float, hit_rate: float) -> Prediction:
    return predict(schedule, profile, drawn(rate, hit_rate, num_tokens=40, num_prompts=NUM_PROMPTS))


def decode_s(schedule: Schedule, profile: Profile, rate: float, hit_rate: float) -> float:
    return told(schedule, profile, rate, hit_rate).decode_s


def num_asked(prediction: Prediction) -> int:
    """Rounds whose outcome may have a branch: all but the last ones of prompts, where anybody prepares."""
    return 0 if isnan(prediction.reuse_rate) else prediction.num_rounds - NUM_PROMPTS


def num_misses(prediction: Prediction) -> int:
    asked = num_asked(prediction)
    return asked and round(asked * (1 - prediction.reuse_rate))


@given(schedules(drawn=True), constant_machines(), RATE, RATE, RATE)
@settings(deadline=None)
def test_more_acceptance_slows_a_run_by_no_more_than_its_further_misses(schedule, profile, rate, more, hit_rate):
    """It takes no further round, but rounds that end at other tokens may find fewer of them prepared."""
    slow, fast = (told(schedule, profile, one, hit_rate) for one in sorted((rate, more)))
    missing, hitting = (told(schedule, profile, 0, one) for one in (0, 1))
    miss_s = (missing.decode_s - hitting.decode_s) / max(1, num_asked(missing))
    assert fast.num_rounds <= slow.num_rounds
    further = max(0, num_misses(fast) - num_misses(slow))
    assert fast.decode_s <= slow.decode_s + further * miss_s + SLACK_S


@given(schedules(method="mirror", drawn=True), constant_machines(), RATE, RATE, RATE)
@settings(deadline=None)
def test_more_hits_never_slow_a_run(schedule, profile, rate, hit_rate, more):
    low, high = sorted((hit_rate, more))
    assert decode_s(schedule, profile, rate, high) <= decode_s(schedule, profile, rate, low) + SLACK_S


@given(schedules(drawn=True), constant_machines(), RATE, RATE, st.floats(0, 1))
@settings(deadline=None)
def test_a_faster_target_never_slows_a_run(schedule, profile, rate, hit_rate, share):
    faster = with_lane_parts(profile, 0, share, "layer", "lm_head")
    assert decode_s(schedule, faster, rate, hit_rate) <= decode_s(schedule, profile, rate, hit_rate) + SLACK_S


@given(schedules(method="speculative", drawn=True), constant_machines(), RATE, st.floats(0, 1))
@settings(deadline=None)
def test_a_faster_draft_never_slows_synchronous_decoding(schedule, profile, rate, share):
    faster = with_lane_parts(profile, 1, share, "draft_step", "draft_step_features", "draft_start")
    assert decode_s(schedule, faster, rate, 0) <= decode_s(schedule, profile, rate, 0) + SLACK_S


@given(schedules(method="mirror", drawn=True), constant_machines(), RATE, RATE, st.floats(0, 1))
@settings(deadline=None)
def test_a_faster_draft_costs_mirror_at_most_a_step_per_round(schedule, profile, rate, hit_rate, share):
    """Faster steps may end so that a miss has just missed a boundary: nothing is cut in the middle of a step."""
    faster = with_lane_parts(profile, 1, share, "draft_step", "draft_step_features", "draft_start")
    acceptance = drawn(rate, hit_rate, num_tokens=40)
    slow, fast = predict(schedule, profile, acceptance), predict(schedule, faster, acceptance)
    table = faster.lanes[1].draft_step
    assert table is not None
    assert fast.decode_s <= slow.decode_s + fast.num_rounds * table.seconds[0][0] + SLACK_S


@given(schedules(method="mirror"), profiles(contended=False), records())
@settings(max_examples=50, deadline=None)
def test_contention_that_costs_nothing_changes_nothing(schedule, profile, record):
    """A memory pool that never binds takes the other way through both simulators."""
    unbound = profile.model_copy(update={"memory_pool_bytes_per_s": 1e30})
    assert predict(schedule, unbound, record).decode_s == pytest.approx(
        predict(schedule, profile, record).decode_s, abs=SLACK_S
    )
    for trace, expected in zip(simulate(schedule, unbound, record), simulate(schedule, profile, record), strict=True):
        assert [entry[2:] for entry in trace.rounds] == [entry[2:] for entry in expected.rounds]
        assert sorted(trace.spans) == sorted(expected.spans)


@given(schedules(method="mirror", drawn=True), constant_machines(), RATE, RATE, st.floats(1, 5))
@settings(deadline=None)
def test_a_draft_that_slows_the_target_never_speeds_up_a_run(schedule, profile, rate, hit_rate, slowdown):
    contention = Contention(lanes=("target", "draft"), slowdown=(slowdown, 1), source="random")
    slowed = profile.model_copy(update={"contention": (contention,)})
    assert decode_s(schedule, profile, rate, hit_rate) <= decode_s(schedule, slowed, rate, hit_rate) + SLACK_S


@given(schedules(method="mirror", drawn=True), st.floats(0.01, 5), st.floats(1, 5), RATE, RATE, st.floats(1, 4))
@settings(deadline=None)
def test_a_wider_memory_costs_mirror_at_most_a_step_per_round(
    schedule, step_s, pool_bytes_per_s, rate, hit_rate, factor
):
    """Both lanes would like 2 bytes a second; what a faster draft may cost stands above."""
    lanes = lane("target"), lane("draft", draft_step=step_s, draft_step_features=step_s)
    lanes = tuple(with_traffic(one, 2.0) for one in lanes)
    narrow = machine(*lanes, memory_pool_bytes_per_s=pool_bytes_per_s)
    wide = machine(*lanes, memory_pool_bytes_per_s=pool_bytes_per_s * factor)
    acceptance = drawn(rate, hit_rate, num_tokens=30)
    slow, fast = predict(schedule, narrow, acceptance), predict(schedule, wide, acceptance)
    assert fast.decode_s <= slow.decode_s + fast.num_rounds * step_s + SLACK_S


@given(schedules(method="speculative", drawn=True), st.floats(1, 5), RATE)
@settings(max_examples=30, deadline=None)
def test_lanes_that_take_turns_never_share_a_memory(schedule, pool_bytes_per_s, rate):
    lanes = tuple(with_traffic(lane(name), 2.0) for name in ("target", "draft"))
    shared = machine(*lanes, memory_pool_bytes_per_s=pool_bytes_per_s)
    assert decode_s(schedule, shared, rate, 0) == decode_s(schedule, machine(*lanes), rate, 0)


@given(schedules(), profiles(), records())
@settings(max_examples=50, deadline=None)
def test_lanes_do_one_thing_at_a_time_and_never_before_the_start(schedule, profile, record):
    for trace in simulate(schedule, profile, record):
        for name in {span.lane for span in trace.spans if "->" not in span.lane}:
            spans = sorted(span[2:4] for span in trace.spans if span.lane == name)
            assert all(start >= 0 and end > start for start, end in spans)
            assert all(before[1] <= after[0] + SLACK_S for before, after in pairwise(spans))
        assert trace.decode_s == trace.rounds[-1].end_s
        assert all(span.start_s < trace.decode_s for span in trace.spans)
