"""A verdict that rests on texts that repeat themselves says so, and what it would be without them."""

from dataclasses import replace

import numpy as np
import pytest

from mirrorsd.compare.outcome import ttft_entry
from mirrorsd.simulation import make_plan, measured_on_repeating, predicted_on_repeating, repeating_sentence
from planner.search.space import judging_part
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


def test_texts_of_runs_that_repeat_are_counted_and_left_out_of_a_second_ratio(record):
    first, *others = (prompt.name for prompt in record.prompts)
    looped = looping(record, {first})
    runs = judged(make_plan(SPACE, machine(), looped), BOTH)
    names, speedup = measured_on_repeating(runs, looped)
    assert names == [first]
    plain, drafting = (one.at_anchor_s[1:] for one in runs.comparisons)
    assert speedup.value == pytest.approx(sum(plain) / sum(drafting))
    assert speedup.num_pairs == len(others)
    sentence = repeating_sentence(names, 4, speedup)
    assert sentence.startswith(f"1 of 4 answers repeat themselves, which is easy to draft ({first}); without them ")


def test_of_a_schedule_that_ended_early_the_prompts_that_both_ran_count(record):
    looped = looping(record, {record.prompts[0].name})
    runs = judged(make_plan(SPACE, machine(), looped), BOTH)
    short = tuple(replace(one, measured=one.measured[: 4 - place]) for place, one in enumerate(runs.results))
    _, speedup = measured_on_repeating(replace(runs, results=short), looped)
    assert speedup.num_pairs == 2


def test_no_ratio_is_left_where_all_texts_do(record):
    every = looping(record, {prompt.name for prompt in record.prompts})
    names, speedup = measured_on_repeating(judged(make_plan(SPACE, machine(), every), BOTH), every)
    assert (len(names), speedup) == (4, None)


def test_a_prediction_that_rests_on_them_says_so(record):
    names = {prompt.name for prompt in judging_part(record).prompts[:1]}
    plan = make_plan(SPACE, machine(), looping(record, names))
    said = predicted_on_repeating(plan)
    assert said is not None
    assert said in plan.verdict.warnings
    assert "without them drafting has " in said
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
