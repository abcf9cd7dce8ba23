"""After real runs the answer is what was measured; nothing that is said contradicts a ratio of two schedules."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from planner.kinds import KINDS, kind_of
from planner.measured_runs import MeasuredSchedule, PromptTime
from planner.measured_verdict import judge_measured
from planner.paired_ratio import paired_ratio

PLAIN = Schedule(method="autoregressive", target_lane="both")
PLAIN_SPLIT = Schedule(method="autoregressive", target_lane="target")
SYNCHRONOUS = Schedule(
    method="speculative", target_lane="both", draft_lane="both", drafter="four-layer", num_speculative_tokens=2
)
WIDER = SYNCHRONOUS.model_copy(update={"num_speculative_tokens": 4})
TREE = Schedule(
    method="eagle3",
    target_lane="both",
    draft_lane="both",
    drafter="eagle-3",
    num_speculative_tokens=2,
    tree_size=8,
    tree_top_k=4,
)
ALL = {"plain": PLAIN, "plain split": PLAIN_SPLIT, "synchronous": SYNCHRONOUS, "wider": WIDER, "tree": TREE}
QUIET = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)
"""Prompts that all agree to one percent."""
NOISY = (1.3, 0.8, 1.1, 0.7, 1.2, 0.9)


def ran(name, tpot_s, *, predicted_s=None, noise=QUIET, tokens=40):
    """A schedule with a time per token that varies by prompt as `noise` says."""
    return MeasuredSchedule(
        name=name,
        schedule=ALL[name],
        predicted_s=predicted_s or tpot_s,
        prompts={f"prompt {place}": PromptTime(tpot_s * tokens * share, tokens) for place, share in enumerate(noise)},
    )


def times_s(one):
    return [prompt.seconds for prompt in one.prompts.values()]


def check(verdict, schedules):
    """No claim contradicts the measured ratio of its two schedules, and all that is read from the verdict agrees."""
    runs = {one.name: one for one in schedules}
    for claim in verdict.claims:
        measured = paired_ratio(times_s(runs[claim.one]), times_s(runs[claim.other]))
        assert claim.outcome == measured.outcome
        assert claim.ratio.value == pytest.approx(measured.value)
    assert not re.search(r"\b(nan|inf|None)\b", verdict.text)
    if verdict.pays != "cannot_tell":
        assert (verdict.schedule.method == "autoregressive") == (verdict.pays == "no")
    recommended = [name for name, badges in verdict.badges.items() if "recommended" in badges]
    assert recommended == ([verdict.recommended] if verdict.recommended else [])
    if verdict.recommended:
        finished = [one for one in schedules if len(one.prompts) == max(len(other.prompts) for other in schedules)]
        for other in finished:
            assert paired_ratio(times_s(other), times_s(runs[verdict.recommended])).outcome != "faster"
        [fastest] = [name for name, badges in verdict.badges.items() if "measured fastest" in badges]
        assert sum(times_s(runs[fastest])) == min(sum(times_s(one)) for one in finished)


def judged(*schedules, **more):
    verdict = judge_measured(schedules, **more)
    check(verdict, schedules)
    return verdict


def test_runs_that_agree_with_the_prediction():
    verdict = judged(ran("plain", 1.0), ran("tree", 0.75))
    assert verdict.pays == "yes"
    assert verdict.recommended == "tree"
    assert verdict.speedup.value == pytest.approx(4 / 3)
    assert verdict.headline.endswith('measured on 6 prompts ("tree" next to "plain").')
    assert verdict.why == ("predicted 1.33×, within the measured interval",)
    assert verdict.next_step == ('use "tree": measured fastest',)
    assert verdict.badges["tree"] == ("recommended", "predicted fastest", "measured fastest")


def test_prediction_says_yes_and_runs_say_no():
    verdict = judged(ran("plain", 1.0), ran("tree", 1.2, predicted_s=0.8))
    assert verdict.pays == "no"
    assert verdict.recommended == "plain"
    assert verdict.why == ("predicted 1.25×, outside the measured interval",)
    assert verdict.badges == {"plain": ("recommended", "measured fastest"), "tree": ("predicted fastest",)}


def test_runs_that_cannot_tell_say_how_many_prompts_would():
    verdict = judged(ran("plain", 1.0), ran("tree", 0.95, noise=NOISY))
    assert verdict.pays == "cannot_tell"
    assert re.match(r'about \d+ prompts like these would tell; until then use "plain": of the', verdict.next_step[0])
    assert verdict.recommended == "plain", "of what cannot be told apart the simplest kind"


def test_one_prompt_tells_nothing():
    verdict = judged(ran("plain", 1.0, noise=(1.0,)), ran("tree", 0.5, noise=(1.0,)))
    assert verdict.pays == "cannot_tell"
    assert (verdict.speedup.low, verdict.speedup.num_pairs) == (0.0, 1)
    assert verdict.next_step[0].startswith("more than one prompt would tell; until then use ")


def test_what_predictions_can_tell_counts_where_runs_cannot():
    schedules = ran("plain", 1.0, noise=(1.0,)), ran("tree", 0.5, noise=(1.0,))
    verdict = judged(*schedules, predicted=lambda one, _other: "faster" if one == TREE else "slower")
    assert verdict.pays == "cannot_tell", "predictions are no runs"
    assert verdict.recommended == "tree"


def test_predictions_are_not_heard_against_what_was_measured_fastest():
    schedules = ran("plain", 1.0), ran("tree", 1.02, predicted_s=0.5, noise=NOISY)
    verdict = judged(*schedules, predicted=lambda one, _other: "faster" if one == TREE else "slower")
    assert verdict.recommended == "plain"


def test_the_one_predicted_fastest_yields_to_one_that_was_faster():
    verdict = judged(ran("plain", 1.0), ran("tree", 0.8, predicted_s=0.5), ran("synchronous", 0.7))
    assert verdict.pays == "yes"
    assert verdict.speedup.value == pytest.approx(1 / 0.8), "the pair was picked by prediction"
    assert verdict.recommended == "synchronous"


def test_the_prediction_has_to_beat_every_plain_schedule():
    verdict = judged(ran("plain", 1.0, predicted_s=0.8), ran("plain split", 0.7), ran("tree", 0.75, predicted_s=0.6))
    assert verdict.pays == "no", "a plain schedule is faster than all that draft"
    assert '("tree" next to "plain split")' in verdict.headline
    assert verdict.recommended == "plain split"


def test_faster_than_one_plain_schedule_and_not_told_from_the_other_is_no_answer():
    split = ran("plain split", 0.76, predicted_s=0.9, noise=NOISY)
    verdict = judged(ran("plain", 1.0, predicted_s=0.8), split, ran("tree", 0.75, predicted_s=0.6))
    assert verdict.pays == "cannot_tell"
    assert re.match(r'"tree" has only 1\.01× \(.*\) the speed of "plain split"', verdict.why[1])
    assert verdict.recommended == "plain split"


def test_the_plain_schedule_that_it_is_not_told_from_is_named_even_if_it_was_slower():
    split = ran("plain split", 1.05, predicted_s=0.9, noise=(1.9, 0.6, 1.6, 0.5, 0.8, 0.6))
    verdict = judged(ran("plain", 1.0, predicted_s=0.8), split, ran("tree", 0.9, predicted_s=0.6))
    assert verdict.pays == "cannot_tell"
    assert re.match(r'"tree" has only 1\.\d\d× \(.*\) the speed of "plain split"', verdict.why[1])
    assert verdict.recommended == "plain split"


def test_slower_than_plain_but_another_one_is_not_is_no_answer():
    tree, synchronous = ran("tree", 1.1, predicted_s=0.6), ran("synchronous", 0.9, predicted_s=0.8, noise=NOISY)
    verdict = judged(ran("plain", 1.0), tree, synchronous)
    assert verdict.pays == "cannot_tell"
    assert re.match(r'"synchronous" has only 1\.11× \(.*\) the speed of "plain"', verdict.why[1])


def test_a_win_of_a_schedule_that_only_the_runs_picked_out_is_recommended_and_no_answer():
    """The best of several runs is partly luck: what predictions picked before them is judged, and nothing else."""
    tree, wider = ran("tree", 0.75, predicted_s=0.8), ran("wider", 1.0, predicted_s=0.6, noise=NOISY)
    verdict = judged(ran("plain", 1.0), tree, wider)
    assert (verdict.pays, verdict.recommended) == ("cannot_tell", "tree")
    assert paired_ratio(times_s(tree), times_s(ran("plain", 1.0))).outcome == "faster"
    assert '("wider" next to "plain").' in verdict.headline
    assert verdict.warnings[0].startswith('"tree" was measured faster than plain decoding, but these very runs')


@pytest.mark.parametrize(
    "others",
    [
        (ran("tree", 0.75, predicted_s=0.6), ran("wider", 0.9)),
        (ran("tree", 0.75), ran("wider", 0.9, predicted_s=0.6)),
        (ran("tree", 0.99, noise=NOISY), ran("wider", 1.2, predicted_s=0.6)),
    ],
    ids=["it was predicted", "the one predicted beats plain decoding too", "nothing beats plain decoding"],
)
def test_no_other_win_is_called_no_answer(others):
    assert not judged(ran("plain", 1.0), *others).warnings


def test_what_cannot_be_told_from_the_winner_is_named():
    verdict = judged(
        ran("plain", 2.0),
        ran("tree", 0.7, noise=NOISY),
        ran("synchronous", 0.72),
        ran("wider", 0.71, noise=NOISY[::-1]),
    )
    assert verdict.recommended == "wider", "of the simplest kind the one measured fastest"
    assert {claim.other for claim in verdict.others if claim.outcome == "cannot tell"} == {"synchronous", "tree"}
    assert 'fastest of 4 schedules "tree"' in verdict.text


def test_without_a_plain_run_nothing_is_said_of_plain_decoding():
    verdict = judged(ran("tree", 1.0), ran("synchronous", 1.2))
    assert (verdict.pays, verdict.speedup, verdict.why) == ("cannot_tell", None, ())
    assert verdict.headline.endswith("no plain schedule finished the runs.")
    assert verdict.recommended == "tree"


def test_with_plain_runs_only_it_cannot_tell():
    verdict = judged(ran("plain", 1.0))
    assert verdict.headline.endswith("no drafting schedule finished the runs.")


def test_a_schedule_that_lacks_a_prompt_is_named_and_not_judged():
    broken = ran("tree", 0.1, noise=QUIET[:5])
    verdict = judged(ran("plain", 1.0), broken, ran("synchronous", 0.8))
    assert verdict.recommended == "synchronous"
    assert dict(verdict.facts)["Not judged, since a prompt is missing"] == ('"tree"',)
    assert not any("tree" in (claim.one, claim.other) for claim in verdict.claims)


@pytest.mark.parametrize("prompt", [PromptTime(0.0, 0), PromptTime(float("nan"), 3)])
def test_a_prompt_without_a_token_or_a_time_is_none(prompt):
    broken = ran("tree", 0.5)
    broken = MeasuredSchedule(
        name="tree", schedule=TREE, predicted_s=0.5, prompts={**broken.prompts, "prompt 1": prompt}
    )
    verdict = judge_measured([ran("plain", 1.0), broken, ran("synchronous", 0.8)])
    assert verdict.recommended == "synchronous"


def test_without_any_finished_run_nothing_is_recommended():
    verdict = judge_measured([ran("plain", 1.0, noise=()), ran("tree", 1.0, noise=())])
    assert (verdict.pays, verdict.recommended) == ("cannot_tell", None)
    assert verdict.next_step == ("run it again: no schedule finished",)


def test_texts_of_other_lengths_are_compared_by_token():
    longer = ran("tree", 0.8, tokens=80)
    verdict = judge_measured([ran("plain", 1.0), longer])
    assert verdict.speedup.value == pytest.approx(1.25)


NOISES = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(st.sets(st.sampled_from(list(ALL)), min_size=1), st.integers(1, 7), st.sampled_from([0.0, 0.03, 0.3]), NOISES)
@example(set(ALL), 4, 0.3, 67312).via("the tree beats both plain schedules, and it is not the one predicted fastest")
def test_whatever_was_measured_nothing_contradicts_it(names, num_prompts, noise, seed):
    random = np.random.default_rng(seed)
    schedules = [
        ran(
            name,
            random.uniform(0.8, 1.25),
            predicted_s=random.uniform(0.5, 1.5),
            noise=tuple(np.exp(random.normal(0, noise, num_prompts))),
        )
        for name in sorted(names)
    ]
    verdict = judged(*schedules)
    winner = next(one for one in schedules if one.name == verdict.recommended)
    simpler = [one for one in KINDS if list(KINDS).index(one) < list(KINDS).index(kind_of(verdict.schedule))]
    plain = [one for one in schedules if kind_of(one.schedule) == "plain"]
    drafting = [one for one in schedules if one not in plain]

    def is_faster(one, other):
        return paired_ratio(times_s(one), times_s(other)).outcome == "faster"

    def beats_plain(one):
        return all(is_faster(one, other) for other in plain)

    if plain and drafting:
        assert (verdict.pays == "yes") == beats_plain(min(drafting, key=lambda one: one.predicted_s))
    for one in schedules:
        if kind_of(one.schedule) in simpler:
            is_beaten = any(is_faster(other, one) for other in schedules)
            assert is_beaten or (beats_plain(winner) and not beats_plain(one))


def test_where_something_beats_plain_decoding_nothing_is_recommended_that_may_not():
    synchronous, tree = ran("synchronous", 0.9, noise=NOISY), ran("tree", 0.85)
    verdict = judged(ran("plain", 1.0), synchronous, tree)
    assert paired_ratio(times_s(synchronous), times_s(tree)).outcome == "cannot tell"
    assert verdict.recommended == "tree"
    simpler = judged(ran("plain", 1.0), ran("synchronous", 0.86), ran("tree", 0.85, noise=NOISY))
    assert simpler.recommended == "synchronous"
