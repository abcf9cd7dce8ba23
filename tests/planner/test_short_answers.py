"""Where reading the prompt was measured, another kind may finish a short answer first."""

from dataclasses import replace

import pytest

from decoding.schedule import Schedule
from planner.search.search import rank
from planner.short_answers import short_answers
from tests.planner.synthetic import acceptance_record, machine

PLAIN = Schedule(method="autoregressive", target_lane="both")
SYNCHRONOUS = Schedule(
    method="speculative", target_lane="both", draft_lane="both", drafter="four-layer", num_speculative_tokens=2
)


def ranking(**requests):
    """Plain decoding, and synchronous speculation that is faster, with (prefill, time per token) of each method."""
    found = rank([PLAIN, SYNCHRONOUS], machine(), acceptance_record(num_prompts=2))
    candidates = [
        replace(
            one,
            prediction=replace(
                one.prediction,
                prefill_s=requests[one.schedule.method][0],
                tpot_s=requests[one.schedule.method][1],
            ),
        )
        for one in found.candidates
    ]
    return replace(found, candidates=tuple(sorted(candidates, key=lambda one: one.tpot_s)))


def test_a_draft_that_has_to_read_the_prompt_too_pays_only_later():
    # Equal at 50 tokens; 2 % of a request apart up to 49 of them.
    found = ranking(autoregressive=(0.5, 0.03), speculative=(1.0, 0.02))
    [said] = short_answers(found, ("plain",))
    last = max(n for n in range(16, 2001) if 0.5 + 0.03 * n < 0.98 * (1.0 + 0.02 * n))
    assert last == 46
    assert said == (
        "With the time to read the prompt, plain decoding is predicted to finish answers of 16 to 46 tokens first."
    )


def test_what_the_prompt_does_not_decide_is_not_mentioned():
    assert list(short_answers(ranking(autoregressive=(0.5, 0.03), speculative=(0.55, 0.02)), ("plain",))) == []


def test_kinds_that_cannot_be_told_apart_are_not_ordered():
    assert list(short_answers(ranking(autoregressive=(0.5, 0.03), speculative=(1.0, 0.02)), ())) == []


@pytest.mark.parametrize("known", [None, 0.5])
def test_nothing_is_said_where_reading_was_not_measured(known):
    found = ranking(autoregressive=(known, 0.03), speculative=(None, 0.02))
    assert list(short_answers(found, ("plain",))) == []


def test_a_winner_whose_own_kind_is_told_slower_than_another_is_no_rival_of_its_own():
    found = ranking(autoregressive=(0.5, 0.03), speculative=(1.0, 0.02))
    assert list(short_answers(found, ("synchronous",))) == []
