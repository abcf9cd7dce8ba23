"""After real runs the answer is what was measured; nothing that is said contradicts a ratio of two schedules."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from planner.measured_verdict import KnownTime, MeasuredSchedule, PromptTime, Runs, judge_measured
from planner.paired_ratio import paired_ratio
from planner.wording import KINDS, kind_of

PLAIN = Schedule(method="autoregressive", target_lane="both")


PLAIN_SPLIT = Schedule(method="autoregressive", target_lane="target")


SYNCHRONOUS = Schedule(
    method="speculative", target_lane="both", draft_lane="both", drafter="four-layer", num_speculative_tokens=2
)


LOOKUP = SYNCHRONOUS.model_copy(update={"method": "prompt_lookup", "drafter": "lookup"})


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


ALL = {
    "plain": PLAIN,
    "plain split": PLAIN_SPLIT,
    "lookup": LOOKUP,
    "synchronous": SYNCHRONOUS,
    "wider": WIDER,
    "tree": TREE,
}


QUIET = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)
"""Prompts that all agree to one percent."""


NOISY = (1.3, 0.8, 1.1, 0.7, 1.2, 0.9)


def ran(name, tpot_s, *, predicted_s=None, noise=QUIET, tokens=40):
    """A schedule with a time per token that varies by prompt as `noise` says."""
    return MeasuredSchedule(
        name=name,
        schedule=ALL[name],
        predicted_s=predicted_s or tpot_s,
        prompts={
            f"prompt {place}": PromptTime(tpot_s * tokens * share, tokens) for place, share in enumerate(noise) if share
        },
    )


def ran_as_simulated(name, run_s, known_s):
    return MeasuredSchedule(
        name=name,
        schedule=ALL[name],
        predicted_s=run_s["a"],
        prompts={prompt: PromptTime(seconds, 8, seconds) for prompt, seconds in run_s.items()},
        recorded={prompt: KnownTime(seconds) for prompt, seconds in known_s.items()},
    )


def times_s(one):
    return [prompt.seconds for prompt in one.prompts.values()]


def check(verdict, schedules):
    """No claim contradicts the measured ratio of its two schedules, and all that is read from the verdict agrees."""
    runs = {one.name: one for one in schedules}

    def measured_of(claim):
        one, other = (runs[name].done for name in (claim.one, claim.other))
        return paired_ratio(*([side[name].seconds for name in one if name in other] for side in (one, other)))

    for claim in (*verdict.others, *([verdict.claim] if verdict.claim else [])):
        measured = measured_of(claim)
        assert claim.outcome == measured.outcome
        assert claim.ratio.value == pytest.approx(measured.value)
    assert not re.search(r"\b(nan|inf|None)\b", verdict.text)
    if verdict.pays != "cannot_tell":
        assert (verdict.schedule.method == "autoregressive") == (verdict.pays == "no")
    recommended = [name for name, badges in verdict.badges.items() if "recommended" in badges]
    assert recommended == ([verdict.recommended] if verdict.recommended else [])
    if verdict.recommended:
        finished = [one for one in schedules if len(one.prompts) == max(len(other.prompts) for other in schedules)]
        if runs[verdict.recommended] in finished:
            for other in finished:
                assert paired_ratio(times_s(other), times_s(runs[verdict.recommended])).outcome != "faster"
        fastest = [name for name, badges in verdict.badges.items() if "measured fastest on the same prompts" in badges]
        if len(finished) == len(schedules):
            assert sum(times_s(runs[fastest[0]])) == pytest.approx(min(sum(times_s(one)) for one in finished))


def judged(*schedules, **more):
    verdict = judge_measured(schedules, **more)
    check(verdict, schedules)
    return verdict


NOISE = {
    "": QUIET,
    "noisy": NOISY,
    "otherwise noisy": NOISY[::-1],
    "very noisy": (1.9, 0.6, 1.6, 0.5, 0.8, 0.6),
    "once": (1.0,),
    "cut short": QUIET[:5],
    "elsewhere": (0, 0, 0, 0, 0, 0, 1.0),
}


def ran_as(text):
    """Schedules such as `plain 1.0, tree 0.8 predicted 0.5 noisy`."""
    for part in text.split(", "):
        name, time, predicted, noise = re.fullmatch(r"(\D+) ([\d.]+)(?: predicted ([\d.]+))? ?(.*)", part).groups()
        yield ran(name, float(time), predicted_s=predicted and float(predicted), noise=NOISE[noise])


CASES = {
    "plain 1.0, tree 0.75": (
        ("yes", "tree"),
        r'6 prompts \("tree" against "plain"\).*predicted 1\.33×, within the .*use "tree": measured fastest',
    ),
    "plain 1.0, tree 1.2 predicted 0.8": (("no", "plain"), "predicted 1.25×, outside the measured interval"),
    "plain 1.0, tree 0.95 noisy": (
        ("cannot_tell", "plain"),
        r'about \d+ prompts like these would decide; until then use "plain": the simplest kind that was not',
    ),
    "plain 1.0 once, tree 0.5 once": (("cannot_tell", "plain"), "more than one prompt would decide; until then use "),
    "plain 1.0 predicted 0.8, plain split 0.7, tree 0.75 predicted 0.6": (
        ("no", "plain split"),
        r'\("tree" against "plain split"\)',
    ),
    "plain 1.0 predicted 0.8, plain split 1.05 predicted 0.9 very noisy, tree 0.9 predicted 0.6": (
        ("cannot_tell", "plain split"),
        r'here: 1\.\d\d× \(.*\("tree" against "plain split"\)',
    ),
    "plain 1.0, tree 1.1 predicted 0.6, synchronous 0.9 predicted 0.8 noisy": (
        ("cannot_tell", "plain"),
        r'"synchronous" has 1\.11× \(.*\) the speed of "plain"',
    ),
    "plain 1.0, tree 0.75 predicted 0.8, wider 1.0 predicted 0.6 noisy": (
        ("cannot_tell", "tree"),
        r'\("wider" against "plain"\)\..*"tree" was measured faster than plain decoding, but it was chosen because',
    ),
    "plain 2.0, tree 0.72 noisy, synchronous 0.72, wider 0.71 predicted 0.74 otherwise noisy": (
        ("yes", "wider"),
        r'Speed of "wider" over that of: .*"tree" [^;]* would decide; "synchronous" [^;]* would decide',
    ),
    "plain 2.0, synchronous 0.71 predicted 0.6, tree 0.7 noisy, lookup 0.75 otherwise noisy": (
        ("yes", "synchronous"),
        r'use "synchronous": faster than plain decoding, and no other schedule is surely faster than it',
    ),
    "plain 1.0, synchronous 0.86, tree 0.85 noisy": (
        ("cannot_tell", "synchronous"),
        "the simplest kind that is faster than plain decoding.*but it was chosen because",
    ),
    "tree 1.0, synchronous 1.2": (("cannot_tell", "tree"), "no plain schedule finished the runs"),
    "plain 1.0": (("cannot_tell", "plain"), "no drafting schedule finished the runs"),
    "plain 1.0, tree 0.7 cut short, synchronous 0.8": (("yes", "tree"), r'5 prompts \("tree" against "plain"\)'),
    "plain 1.0, tree 0.7 elsewhere, synchronous 0.8": (
        ("yes", "synchronous"),
        'Not judged, since they share no prompt with the others: "tree"',
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_the_choice_and_what_is_said(case):
    expected, said = CASES[case]
    verdict = judged(*ran_as(case))
    assert (verdict.pays, verdict.recommended) == expected
    assert re.search(said, verdict.text, re.DOTALL)
    assert bool(verdict.warnings) == ("chosen because" in said)


def test_badges_mark_what_is_best_at_what():
    verdict = judged(ran("plain", 1.0), ran("tree", 1.2, predicted_s=0.8))
    assert verdict.badges == {
        "plain": ("recommended", "measured fastest on the same prompts"),
        "tree": ("predicted fastest on all prompts",),
    }


@pytest.mark.parametrize("prompt", [PromptTime(0.0, 0), PromptTime(float("nan"), 3)])
def test_a_prompt_without_a_token_or_a_time_is_none(prompt):
    prompts = {**ran("tree", 0.5).prompts, "prompt 1": prompt}
    broken = MeasuredSchedule(name="tree", schedule=TREE, predicted_s=0.5, prompts=prompts)
    verdict = judge_measured([ran("plain", 1.0), broken, ran("synchronous", 0.8)])
    assert verdict.recommended == "tree"
    assert [claim.ratio.num_pairs for claim in verdict.others] == [5, 5]


def test_without_any_finished_run_nothing_is_recommended():
    verdict = judge_measured([ran("plain", 1.0, noise=()), ran("tree", 1.0, noise=())])
    assert (verdict.pays, verdict.recommended) == ("cannot_tell", None)
    assert verdict.next_step == ("repeat the runs, since no schedule finished",)


def test_the_headline_yields_to_a_simpler_kind_that_was_faster_not_to_the_simplest():
    noises = [tuple(np.roll((0.8, 1.0, 1.2, 0.9, 1.1, 1.0), place)) for place in range(4)]
    times = {"plain": (1.0, 1.0), "lookup": (0.8, 1.4), "wider": (0.69, 1.0), "tree": (0.71, 0.7)}
    schedules = [
        ran(name, measured_s, predicted_s=predicted_s, noise=noise)
        for (name, (measured_s, predicted_s)), noise in zip(times.items(), noises, strict=True)
    ]
    verdict = judged(*schedules)
    assert (verdict.pays, verdict.claim.one, verdict.recommended) == ("yes", "tree", "wider")


def test_a_yes_is_told_of_the_plain_decoding_that_ran_most_of_the_prompts():
    """A plain schedule that was dropped after two prompts has to be beaten, but tells little of by how much."""
    dropped = ran("plain split", 0.0099, noise=QUIET[:2])
    verdict = judged(ran("plain", 0.01), dropped, ran("lookup", 0.005))
    assert verdict.pays == "yes"
    assert verdict.claim.other == "plain"
    assert "measured on 6 prompts" in verdict.text

    as_fast = ran("plain split", 0.0049, noise=QUIET[:2])
    assert judged(ran("plain", 0.01), as_fast, ran("lookup", 0.005)).claim.other == "plain split"


def test_texts_of_other_lengths_are_compared_by_token():
    verdict = judge_measured([ran("plain", 1.0), ran("tree", 0.8, tokens=80)])
    assert verdict.speedup.value == pytest.approx(1.25)


NOISES = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(st.sets(st.sampled_from(list(ALL)), min_size=1), st.integers(1, 7), st.sampled_from([0.0, 0.03, 0.3]), NOISES)
@example(set(ALL), 4, 0.3, 67312).via("the tree beats both plain schedules, and it is not the one predicted fastest")
@example({"lookup", "plain", "tree", "wider"}, 6, 0.3, 17652).via("a simpler kind than the headline's is the fastest")
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
            is_slower = verdict.pays == "yes" and sum(times_s(one)) > sum(times_s(winner))
            assert is_beaten or is_slower or (beats_plain(winner) and not beats_plain(one))


@pytest.mark.parametrize(
    ("as_run", "corrected", "pays", "said"),
    [
        (0.8, 0.8, "yes", None),
        (0.8, 1.25, "cannot_tell", "no"),
        (1.25, 0.8, "cannot_tell", "yes"),
        (1.0, 0.8, "cannot_tell", "yes"),
        (0.8, 1.0, "yes", "cannot tell"),
        (1.25, 1.0, "no", "cannot tell"),
    ],
)
def test_what_anchors_alone_would_turn_cannot_be_told(as_run, corrected, pays, said):
    runs, at_anchors = ([ran("plain", 1.0), ran("synchronous", tpot_s)] for tpot_s in (as_run, corrected))
    verdict = judge_measured(runs, at_anchors=at_anchors)
    check(verdict, runs)
    assert verdict.pays == pays
    told = [why for why in verdict.why if "anchors" in why]
    assert told == ([] if said is None else [f'with times corrected by the anchors the answer would be "{said}"'])


def test_fastest_is_what_no_ratio_with_another_denies():
    """Of "wider" more prompts are recorded, on which drafting gains less: on those of both it is the faster one."""
    plain = ran_as_simulated("plain", dict.fromkeys("ab", 1.0), dict.fromkeys("abcd", 1.0))
    wider_s = dict.fromkeys("ab", 0.5)
    wider = ran_as_simulated("wider", wider_s, wider_s | dict.fromkeys("cd", 1.0))
    synchronous = ran_as_simulated("synchronous", *[dict.fromkeys("ab", 0.6)] * 2)
    runs = Runs.of([plain, wider, synchronous])
    assert runs.ratio(synchronous, plain).value > runs.ratio(wider, plain).value
    assert runs.ratio(wider, synchronous).value == pytest.approx(1.2)
    assert runs.fastest == wider
    assert judge_measured([plain, wider, synchronous]).recommended == "wider"


def test_measured_fastest_is_what_the_table_shows():
    """Trees lead by a hair on all recorded prompts, and are the slower ones on those that were run."""
    run = {place: 1.0 + 0.01 * number for number, place in enumerate("abcd")}
    plain, synchronous, tree = (
        ran_as_simulated(
            name,
            {place: share * second for place, second in run.items()},
            {place: share * second for place, second in run.items()} | dict.fromkeys("efgh", unseen),
        )
        for name, share, unseen in (("plain", 1.0, 1.0), ("synchronous", 0.60, 0.60), ("tree", 0.66, 0.53))
    )
    runs = Runs.of([plain, synchronous, tree])
    assert runs.fastest_of([synchronous, tree]) == tree
    assert runs.fastest == synchronous
    verdict = judge_measured([plain, synchronous, tree])
    assert "measured fastest on the same prompts" in verdict.badges["synchronous"]
    assert ("measured fastest on the same prompts" in verdict.next_step[0]) == (verdict.recommended == "synchronous")


def test_a_recommendation_of_another_schedule_than_the_answers_says_how_much_faster_it_is():
    """The answer is about "synchronous", predicted fastest; "lookup" was as fast, and is simpler."""
    names = ("plain", 1.0, 1.0), ("synchronous", 0.60, 0.5), ("lookup", 0.59, 0.55)
    verdict = judge_measured([replace(ran(name, run_s), predicted_s=predicted) for name, run_s, predicted in names])
    assert (verdict.claim.one, verdict.recommended) == ("synchronous", "lookup")
    assert '"lookup": measured fastest on the same prompts, 1.02× (' in verdict.next_step[0]
    assert verdict.next_step[0].endswith(') the speed of "synchronous"')
    alone = judge_measured([ran("plain", 1.0), ran("lookup", 0.59)])
    assert alone.next_step == ('use "lookup": measured fastest on the same prompts',)
