"""The event world and the recurrence are two programs for one thing: they agree in every number."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import metrics
from decoding.schedule import Schedule
from decoding.trace import Trace
from hwprofiles.profile import Profile
from sim.acceptance.replay import Acceptance
from sim.evaluator import Evaluator, predict
from sim.prediction import Prediction
from sim.world import simulate
from tests.sim.playing import by_rows, together_s
from tests.sim.worlds.at_random import profiles, random_prompt, records, schedules
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import LOOKUP, TREES, record
from tests.sim.worlds.schedules import mirror

TOLERANCE_S = 1e-9


def assert_same(prediction: Prediction, traces: list[Trace], schedule: Schedule) -> None:
    assert prediction.num_rounds == metrics.num_rounds(traces)
    assert prediction.num_tokens == metrics.num_tokens(traces)
    assert prediction.num_accepted_tokens == metrics.num_accepted_tokens(traces)
    assert prediction.mean_acceptance_length == metrics.mean_acceptance_length(traces)
    reuse_rate = metrics.reuse_rate(traces)
    assert prediction.reuse_rate == reuse_rate or math.isnan(prediction.reuse_rate + reuse_rate)
    assert abs(prediction.decode_s - metrics.decode_s(traces)) < TOLERANCE_S
    for name in ("prefill_s", "ttft_s", "e2e_s"):
        assert getattr(prediction, name) == pytest.approx(getattr(metrics, name)(traces), abs=TOLERANCE_S)
    assert prediction.prompt_decode_s == pytest.approx([trace.decode_s for trace in traces], abs=TOLERANCE_S)
    assert abs(sum(prediction.bottlenecks) - prediction.decode_s) < TOLERANCE_S
    if schedule.is_pooled or schedule.draft_lane is None:
        return
    target, draft = schedule.target_lane, schedule.draft_lane
    hidden_s = together_s(traces, target, draft)
    assert abs(prediction.target_busy_s - together_s(traces, target)) < TOLERANCE_S
    assert abs(prediction.hidden_draft_s - hidden_s) < TOLERANCE_S
    assert abs(prediction.exposed_draft_s - (together_s(traces, draft) - hidden_s)) < TOLERANCE_S


def check(schedule: Schedule, profile: Profile, acceptance: Acceptance, most: int | None) -> None:
    prediction = predict(schedule, profile, acceptance, max_new_tokens=most)
    assert_same(prediction, simulate(schedule, profile, acceptance, max_new_tokens=most), schedule)


@given(st.one_of(schedules(), schedules(method="mirror"), schedules(method="tree")), profiles(), records(), st.data())
@settings(max_examples=200, deadline=None)
def test_they_agree_on_every_schedule_machine_and_cut(schedule, profile, record, data):
    check(schedule, profile, record, data.draw(st.none() | st.integers(1, record.max_new_tokens)))


@given(schedules(), profiles(), records())
@settings(max_examples=30, deadline=None)
def test_a_trace_without_spans_has_the_same_rounds(schedule, profile, record):
    with_spans = simulate(schedule, profile, record)
    without = simulate(schedule, profile, record, trace=False)
    assert not any(trace.spans for trace in without)
    assert [trace.rounds for trace in without] == [trace.rounds for trace in with_spans]


@given(st.lists(schedules(), min_size=2, max_size=4), profiles(), records())
@settings(max_examples=30, deadline=None)
def test_schedules_do_not_influence_each_other(several, profile, record):
    together = map(Evaluator(profile, record).predict, several)
    assert repr([*together]) == repr([predict(schedule, profile, record) for schedule in several])


def test_they_agree_where_the_exits_message_comes_before_any_branch_has_begun():
    """With streams all branches then start in one step without guesses, and go on with them."""
    draft = lane("draft", layer=10.0).model_copy(update={"draft_step": by_rows(50.0, 0.5)})
    profile = machine(lane("target", layer=10.0), draft)
    texts = random_prompt(3, num_tokens=30, vocabulary=7, prompt_length=2)
    check(
        mirror("hybrid", num_tokens=4, draft_streams=2),
        profile,
        record(texts, trees=TREES, chains=(LOOKUP,), num_streams=2),
        None,
    )
