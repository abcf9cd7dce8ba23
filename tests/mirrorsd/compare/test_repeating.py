"""A verdict that rests on texts that repeat themselves says so, and what it would be without them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mirrorsd.compare.outcome_entries import ttft_entry
from mirrorsd.simulation import make_plan, predicted_on_repeating, repeating_sentence
from planner.search.space import judging_part
from sim.evaluator import predict
from tests.mirrorsd.compare.made_up_runs import DRAFTING, PLAIN, SPACE, judged
from tests.planner.synthetic import acceptance_record, machine

BOTH = {PLAIN: 1.0, DRAFTING: 1.0}


def looping(record, names):
    """The same record, some of whose texts are one token again and again: nothing else of them is looked at."""

    def changed(prompt):
        if prompt.name not in names:
            return replace(prompt, text=np.arange(len(prompt.text), dtype=np.int32) + 50)
        return replace(prompt, text=np.full_like(prompt.text, 7))

    return replace(record, prompts=tuple(map(changed, record.prompts)))


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=4, num_tokens=24)


@pytest.mark.parametrize("num_run", [2, 4])
def test_recorded_texts_that_repeat_are_counted_and_left_out_of_a_second_ratio(record, num_run):
    """As the first ratio it is about all recorded prompts, run or not."""
    first, *others = (prompt.name for prompt in record.prompts)
    looped = looping(record, {first})
    found = judged(make_plan(SPACE, machine(), looped), BOTH, num_run)
    assert found.repeating == (first,)
    plain, drafting = (predict(one, machine(), looped).prompt_decode_s[1:] for one in (PLAIN, DRAFTING))
    assert found.speedup_without.value == pytest.approx(sum(plain) / sum(drafting))
    assert found.speedup_without.num_pairs == len(others) == found.verdict.speedup.num_pairs - 1
    sentence = repeating_sentence(found.repeating, found.num_recorded, found.speedup_without)
    assert sentence.startswith(f"1 of 4 answers repeat themselves, which is easy to draft ({first}); without them ")


def test_one_text_that_is_left_shows_no_interval(record):
    found = judged(
        make_plan(SPACE, machine(), looping(record, {prompt.name for prompt in record.prompts[1:]})), BOTH, 4
    )
    assert found.speedup_without.num_pairs == 1
    assert (found.speedup_without.low, found.speedup_without.outcome) == (0, "cannot tell")


def test_no_ratio_is_left_where_all_texts_do_or_nothing_is_compared(record):
    plan = make_plan(SPACE, machine(), looping(record, {prompt.name for prompt in record.prompts}))
    for schedules in (BOTH, {DRAFTING: 1.0}):
        found = judged(plan, schedules)
        assert (len(found.repeating), found.speedup_without) == (4, None)


def test_a_prediction_that_rests_on_them_says_so(record):
    names = {prompt.name for prompt in judging_part(record).prompts[:1]}
    plan = make_plan(SPACE, machine(), looping(record, names))
    said = predicted_on_repeating(plan)
    assert said is not None
    assert said in plan.verdict.warnings
    assert re.search(r"without them drafting has [\d.]+× the speed", said), "of one prompt no interval is known"
    assert predicted_on_repeating(make_plan(SPACE, machine(), looping(record, set()))) is None


def test_times_to_the_first_token_are_compared(record):
    runs = judged(make_plan(SPACE, machine(), record), BOTH)
    assert ttft_entry(runs.results[0]) is None, "nobody measured what reading a prompt takes"
    result = runs.results[0]
    traces = tuple(replace(trace, prefill_s=0.1) for trace in result.measured)
    candidate = replace(result.candidate, prediction=replace(result.candidate.prediction, ttft_s=0.241))
    entry = ttft_entry(replace(result, measured=traces, candidate=candidate))
    assert entry["predicted_s"] == 0.241
    assert entry["measured_s"] > 0.1
    assert entry["error"] == pytest.approx(0.241 / entry["measured_s"] - 1)
