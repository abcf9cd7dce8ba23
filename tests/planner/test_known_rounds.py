"""Where the rounds of recorded prompts are known, the answer is about all of them, and says what was run."""

from dataclasses import replace

import pytest

from planner.measured_verdict import KnownTime, MeasuredSchedule, PromptTime, Runs, judge_measured
from tests.planner.test_measured_verdict import ALL, QUIET, ran, ran_as_simulated


def test_what_was_run_is_told_apart_from_what_is_known():
    plain, wider = (
        ran_as_simulated(name, dict.fromkeys("ab", time_s), dict.fromkeys("abc", time_s))
        for name, time_s in (("plain", 1.0), ("wider", 0.5))
    )
    noisy = replace(plain, prompts={**plain.prompts, "b": PromptTime(1.1, 8, 1.0)})
    verdict = judge_measured([noisy, wider])
    assert "measured on 2 of 3 recorded prompts" in verdict.headline
    assert "; 2.10× on the 2 that were run, for answers of up to 8 tokens" in verdict.lines[1]


def test_a_single_run_has_no_interval_to_lie_within():
    """The rounds of three prompts are known, and what a round costs is not."""
    plain, wider = (
        ran_as_simulated(name, {"a": time_s}, dict(zip("abc", (time_s, 1.0, 1.1), strict=True)))
        for name, time_s in (("plain", 1.0), ("wider", 0.5))
    )
    verdict = judge_measured([plain, wider])
    assert verdict.claim.ratio.num_pairs == 3
    assert verdict.why[0] == "predicted 1.19×"


def test_a_prediction_is_of_these_prompts_and_held_against_what_they_took():
    """Half of these prompts are drafted three times as well, so that others may well have the ratio predicted."""
    plain, tree = (
        MeasuredSchedule(
            name=name,
            schedule=ALL[name],
            predicted_s=1.0,
            prompts={
                name: PromptTime(cost * off * time, 8, time)
                for (name, time), off in zip(known.items(), QUIET, strict=True)
            },
            recorded={name: KnownTime(time) for name, time in known.items()},
        )
        for name, cost, known in (
            ("plain", 1.0, dict.fromkeys("abcdef", 6.0)),
            ("tree", 1.1, dict(zip("abcdef", (2.0, 6.0) * 3, strict=True))),
        )
    )
    runs = Runs.of([replace(plain, prompts=dict(zip("abcdef", reversed(plain.prompts.values()), strict=True))), tree])
    ratio = runs.ratio(tree, runs.side(plain=True)[0])
    assert ratio.low < 1.5 < ratio.high
    assert ratio.on_these.high < 1.5
    assert (
        judge_measured(runs.finished).why[0] == "predicted 1.50×, outside the measured interval on these very prompts"
    )


def test_known_rounds_are_those_of_prompts_that_both_have_recorded():
    """Runs cost what is simulated but for a tenth of the tree's; what one has not recorded is not compared."""
    plain, tree = (
        MeasuredSchedule(
            name=name,
            schedule=ALL[name],
            predicted_s=1.0,
            prompts={"a": PromptTime(cost * one, 8, one), "b": PromptTime(cost * other, 8, other)},
            recorded={place: KnownTime(time) for place, time in known.items()},
        )
        for name, cost, one, other, known in (
            ("plain", 1.0, 2.0, 4.0, {"a": 2.0, "b": 4.0, "c": 4.0}),
            ("tree", 1.1, 1.0, 3.0, {"a": 1.0, "b": 3.0}),
        )
    )
    runs = Runs.of([plain, tree])
    found = runs.ratio(tree, plain)
    assert (found.value, found.num_pairs) == (pytest.approx(6 / 4 / 1.1), 2)
    assert runs.predicted(tree, plain) == pytest.approx(6 / 4), "on the prompts that the answer is about"
    unknown = ran("synchronous", 0.5)
    named = {"a": unknown.prompts["prompt 0"], "b": unknown.prompts["prompt 1"]}
    mixed = Runs.of([plain, tree, replace(unknown, prompts=named)])
    assert mixed.ratio(tree, plain) == mixed.as_run(tree, plain), "rounds of one are not known"
    assert mixed.predicted(tree, plain) == 1.0, "by the times per token predicted"
