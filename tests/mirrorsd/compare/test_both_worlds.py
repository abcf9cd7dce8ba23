from dataclasses import replace

import pytest

from calibrate.prompts import EncodedPrompt
from decoding.errors import RecordError
from decoding.schedule import Schedule
from decoding.trace import Trace
from mirrorsd.compare.both_worlds import Measured, compare_all, matching_prompts, put_together, run_in_turn
from mirrorsd.compare.outcome import rounds_in_words
from planner.search.search import rank
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine

SCHEDULES = [
    Schedule(method="autoregressive", target_lane="target"),
    Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2),
    Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3),
]
PROMPTS = [EncodedPrompt(f"prompt {index}", "", (1,) * 3) for index in range(4)]


class Notebook:
    """An engine that only notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def generate(self, schedule, prompt, *, max_new_tokens):
        self.asked.append((SCHEDULES.index(schedule), max_new_tokens))
        trace = Trace(world="measured", decode_s=len(self.asked))
        return type("Made", (), {"trace": trace})


def test_schedules_take_turns_on_every_prompt_and_warm_up_before():
    engine = Notebook()
    measured = run_in_turn(engine, SCHEDULES, PROMPTS, max_new_tokens=9)
    assert engine.asked[:3] == [(0, 4), (1, 4), (2, 4)]
    assert [index for index, _ in engine.asked[3:]] == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert measured.num_prompts == 4
    assert [[trace.decode_s for trace in traces] for traces in measured.traces] == [
        [4, 9, 11, 13],
        [5, 7, 12, 14],
        [6, 8, 10, 15],
    ]


def test_when_it_is_enough_every_schedule_has_done_the_same_prompts():
    asked = []

    def enough(num_prompts):
        asked.append(num_prompts)
        return num_prompts == 2

    measured = run_in_turn(Notebook(), SCHEDULES, PROMPTS, max_new_tokens=9, enough=enough)
    assert asked == [1, 2]
    assert (measured.num_prompts, [len(traces) for traces in measured.traces]) == (2, [2, 2, 2])


@pytest.fixture
def evidence():
    profile, record = machine(), acceptance_record(num_prompts=3, num_tokens=24)
    ranked = {one.schedule: one for one in rank(SCHEDULES, profile, record).candidates}
    return profile, record, [ranked[schedule] for schedule in SCHEDULES]


def really(schedule, profile, record, num_prompts):
    """What a real world that agrees with the simulated one would have measured, only slower."""
    traces = simulate(schedule, profile, record)[:num_prompts]
    return [replace(trace, world="measured", decode_s=2 * trace.decode_s) for trace in traces]


def test_predictions_cover_exactly_the_prompts_that_were_run(evidence):
    profile, record, candidates = evidence
    measured = Measured(2, [really(schedule, profile, record, 2) for schedule in SCHEDULES])
    results = put_together(candidates, measured, profile, record)
    assert [result.candidate.schedule for result in results] == SCHEDULES
    assert [result.candidate.prediction.num_tokens for result in results] == [48, 48, 48]
    comparisons = compare_all(results, ["a", "b", "c"], record)
    assert [one.tpot_error for one in comparisons] == pytest.approx([-0.5] * 3)
    assert rounds_in_words(comparisons, "float32") == (
        "All 6 texts went through exactly the rounds that were simulated."
    )


def test_texts_that_part_are_counted_and_the_first_is_explained(evidence):
    profile, record, candidates = evidence
    first = replace(record.prompts[0], margins=record.prompts[0].text * 0 + 0.0625)
    record = replace(record, prompts=(first, *record.prompts[1:]))
    traces = [really(schedule, profile, record, 3) for schedule in SCHEDULES]
    rounds = traces[0][0].rounds
    rounds[5] = rounds[5]._replace(outcome=(0, 999))
    results = put_together(candidates, Measured(3, traces), profile, record)
    comparisons = compare_all(results, ["plain", "b", "c"], record)
    expected = int(record.prompts[0].text[5])
    assert rounds_in_words(comparisons, "bfloat16") == (
        "1 text of 9 left the simulated rounds. The first: plain, prompt prompt 0, round 6, after 5 new tokens: "
        f"predicted 0 of 0 accepted, then token {expected}, measured 0 of 0 accepted, then token 999. The target's two "
        "best logits are 0.062 apart there: a verification of several rows rounds otherwise than one row, and bfloat16 "
        "decides by that."
    )


def test_prompts_come_in_the_order_of_the_record():
    record = acceptance_record(num_prompts=2, num_tokens=24)
    encoded = [EncodedPrompt(p.name, "", (1,) * p.prompt_length) for p in reversed(record.prompts)]
    assert matching_prompts(encoded, record) == tuple(reversed(encoded))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({}, "'prompt 0' is not among the 0 prompts given"),
        ({"prompt 0": 3}, "'prompt 0' has 3 tokens, but was recorded"),
    ],
)
def test_a_prompt_that_is_missing_or_changed_is_named(lengths, message):
    record = acceptance_record(num_prompts=1, num_tokens=24)
    with pytest.raises(RecordError, match=message):
        matching_prompts([EncodedPrompt(name, "", (1,) * length) for name, length in lengths.items()], record)
