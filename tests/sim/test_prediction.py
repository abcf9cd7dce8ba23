from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from hwprofiles.profile import LinkProfile
from sim.error_shares import ratio_error, relative_error
from sim.evaluator import Evaluator, predict
from sim.prediction import Bottlenecks
from tests.sim.worlds.at_random import profiles, records, schedules
from tests.sim.worlds.machines import lane, machine, reading
from tests.sim.worlds.records import TREES, drawn, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

TEXTS = record(prompt("1010111", "0100000"))


def test_what_streams_add_to_a_pass_counts_as_drafting():
    profile = machine(lane("target", dispatch_s=2, streams=4), round_overhead_s=1)
    found = predict(tree(TREES[-1], 7), profile, drawn(0, 0, num_tokens=5))
    assert found.bottlenecks == Bottlenecks(target_verify=5 * 11, draft=5 * 4, overhead=5 * 3)
    assert found.target_busy_s == 5 * 15


def test_bottlenecks_of_a_run_by_hand():
    """The run of `test_world_by_hand.test_mirror_from_the_exit`."""
    link = LinkProfile(lanes=("target", "draft"), latency_s=1, bytes_per_s=16, source="by hand")
    profile = machine(lane("target", dispatch_s=2), lane("draft", dispatch_s=4), links=(link,), round_overhead_s=1)
    found = predict(mirror("exit"), profile, TEXTS)
    # three rounds' dispatches and driver times, three handings over of a window
    overhead = 3 * (2 + 1) + 3 * 4
    # three windows of 16 bytes, two verdicts of 8; exit messages arrive while the target computes
    channel = 3 * (1 + 1) + 2 * (0.5 + 1)
    assert found.bottlenecks == Bottlenecks(
        target_prefix=15, target_suffix=21, draft=2, fallback=2, channel=channel, overhead=overhead
    )
    assert found.decode_s == 70
    assert (found.num_tokens, found.num_rounds, found.num_accepted_tokens) == (7, 3, 4)
    assert found.mean_acceptance_length == 7 / 3
    assert found.reuse_rate == 0.5


def test_waiting_for_the_exit_message_is_the_channels_fault():
    link = LinkProfile(lanes=("target", "draft"), latency_s=0, bytes_per_s=4, source="by hand")
    found = predict(mirror("exit"), machine(links=(link,)), TEXTS)
    # it leaves the link 17 s into rounds that are committed after 12 s; windows take 4 s and verdicts 2 s
    assert found.bottlenecks.channel == 3 * 4 + 2 * (5 + 2)


def test_how_much_prompts_differ_is_no_error_of_a_prediction_for_them():
    assert predict(speculative(), machine(), record(prompt("1111"), prompt("000000"))).relative_error == 0


def test_texts_that_are_drawn_err_by_chance_as_far_as_they_differ():
    found = predict(speculative(), machine(), drawn(0.5, 0, num_tokens=20, num_prompts=4, seed=1))
    each_s = found.prompt_decode_s
    mean_s = sum(each_s) / 4
    variance = sum((one - mean_s) ** 2 for one in each_s) / 3
    assert len(set(each_s)) > 1
    students_t = 2.3534  # of 3 degrees of freedom, 90 %
    assert found.relative_error == pytest.approx(students_t * (variance / 4) ** 0.5 / mean_s, rel=1e-4)


RATES = (0.2, 0.5, 0.9)


def sampled(seed, num_texts, rates=RATES):
    """Texts of three prompts, sampled again by each seed; a draft knows another share of each prompt's tokens."""
    random, texts = np.random.default_rng(seed), []
    for place, rate in enumerate(rates):
        for _ in range(num_texts):
            text = prompt("".join(str(int(one < rate)) for one in random.random(64)))
            accepted = np.full(text.rollouts.shape, rate, dtype=np.float32)
            own = {"draft_acceptance": accepted, "refused_drafts": text.rollouts, "prompt_hash": str(place)}
            texts.append(replace(text, **own))
    return record(*texts, temperature=1.0)


@pytest.mark.parametrize(("num_texts", "rates"), [(1, RATES[1:2]), (4, RATES), (1, RATES)])
def test_intervals_of_sampled_texts_hold_what_other_texts_of_the_prompts_take(num_texts, rates):
    """By match, so that the texts decide: nine in ten; those of one text a prompt hold more, as prompts differ too."""
    truth = predict(speculative(), machine(), sampled(0, 2000, rates)).tpot_s
    found = [predict(speculative(), machine(), sampled(1 + seed, num_texts, rates)) for seed in range(60)]
    inside = sum(one.tpot_s_low <= truth <= one.tpot_s_high for one in found)
    assert inside >= 50
    if (num_texts, rates) != (1, RATES):
        assert inside <= 58, "no wider than they need to be"


@pytest.mark.parametrize("others", [{0: 2}, {0: 2, 1: 2}])
def test_a_text_or_two_that_are_there_twice_make_no_interval_vanish(others):
    alone = sampled(3, 1, RATES)
    texts = [one for place, one in enumerate(alone.prompts) for _ in range(others.get(place, 1))]
    found = predict(speculative(), machine(), replace(alone, prompts=tuple(texts)))
    assert found.relative_error > predict(speculative(), machine(), alone).relative_error / 4


def test_the_chance_of_texts_is_no_error_of_a_ratio_of_two_times_of_them():
    """How their times differ from prompt to prompt holds it."""
    one, other = (predict(schedule, machine(), sampled(0, 2)).errors for schedule in (speculative(), AUTOREGRESSIVE))
    assert relative_error(one) > 0
    assert ratio_error(one, other) == 0


def test_a_request_is_read_before_it_is_decoded():
    lanes = [reading(lane(name), prefill=0.5, draft_prefill=0.25, head_prefill=1) for name in ("target", "draft")]
    texts = record(prompt("1111", prompt_length=5), prompt("000000", prompt_length=9))
    found = predict(speculative(), machine(*lanes), texts)
    # 13 s a round: two rounds for four tokens, six for six
    assert found.prompt_decode_s == (26, 78)
    assert (found.prefill_s, found.ttft_s, found.e2e_s) == (6, 3 + 13, 3 + 52)
    assert found.e2e_at(100) == 3 + 100 * found.tpot_s


def test_without_a_measured_prefill_nothing_is_said_of_requests():
    found = predict(speculative(), machine(), TEXTS)
    assert (found.prefill_s, found.ttft_s, found.e2e_s, found.e2e_at(9)) == (None, None, None, None)


@given(schedules(), profiles(), records(), records())
@settings(deadline=None)
def test_a_time_alone_and_one_of_other_texts_are_those_of_whole_predictions(schedule, profile, texts, others):
    evaluator = Evaluator(profile, texts)
    assert evaluator.tpot_s(schedule) == predict(schedule, profile, texts).tpot_s
    there, known = evaluator.with_texts(others).predict(schedule), predict(schedule, profile, others)
    assert (there.prompt_decode_s, there.errors, there.source) == (known.prompt_decode_s, known.errors, known.source)


@pytest.mark.parametrize(
    ("error", "low", "high"), [(0.2, 0.8, 1.2), (0.5, 0.5, 1.5), (1.0, 0.25, 2.0), (3.0, 1 / 12, 4.0)]
)
def test_a_time_that_may_be_off_by_all_of_itself_still_takes_some(error, low, high):
    found = predict(AUTOREGRESSIVE, machine(relative_error=error), TEXTS)
    assert (found.tpot_s_low, found.tpot_s_high) == pytest.approx((low * found.tpot_s, high * found.tpot_s))


@pytest.mark.parametrize("schedule", [AUTOREGRESSIVE, speculative(3), mirror("exit")])
def test_a_record_whose_texts_are_cut_is_predicted_as_one_that_is_cut_when_it_is_played(schedule):
    cut = replace(TEXTS, prompts=tuple(prompt.cut(4) for prompt in TEXTS.prompts))
    ours, theirs = predict(schedule, machine(), cut), predict(schedule, machine(), TEXTS, max_new_tokens=4)
    assert ours.prompt_decode_s == theirs.prompt_decode_s
    assert [len(prompt.cut(99).text) for prompt in TEXTS.prompts] == [len(prompt.text) for prompt in TEXTS.prompts]
