"""Where the rounds of recorded prompts are known, the answer is about all of them, and says what was run."""

from dataclasses import replace
from math import exp

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
    assert "; 2.10× on the 2 prompts that were run, for answers of up to 8 tokens" in verdict.lines[1]


def test_a_single_run_has_no_interval_to_lie_within():
    """The rounds of three prompts are known, and what a round costs is not."""
    plain, wider = (
        ran_as_simulated(name, {"a": time_s}, dict(zip("abc", (time_s, 1.0, 1.1), strict=True)))
        for name, time_s in (("plain", 1.0), ("wider", 0.5))
    )
    verdict = judge_measured([plain, wider])
    assert verdict.claim.ratio.num_pairs == 3
    assert verdict.why[0] == "predicted 1.19×"
    assert verdict.why[1].endswith("on the prompt that was run, for answers of up to 8 tokens")
    assert verdict.why[2] == "runs of one prompt show no noise, so there is no interval: a second one was missing"


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
    unknown = replace(unknown, prompts=named)
    mixed = Runs.of([plain, tree, unknown])
    assert mixed.ratio(tree, plain) == found
    assert mixed.ratio(tree, unknown) == mixed.as_run(tree, unknown), "rounds of one are not known"
    assert mixed.predicted(tree, unknown) == 0.5, "by the times per token predicted"


def cost_as_simulated(name, run_s, off):
    """Runs that took so many times what was simulated."""
    return MeasuredSchedule(
        name=name,
        schedule=ALL[name],
        predicted_s=1.0,
        prompts={prompt: PromptTime(off.get(prompt, 1.0) * time_s, 8, time_s) for prompt, time_s in run_s.items()},
        recorded={prompt: KnownTime(time_s) for prompt, time_s in run_s.items()},
    )


def test_a_short_run_does_not_tell_as_much_of_the_cost_of_rounds_as_a_long_one():
    """Seven texts of 256 tokens took what was simulated, and one of 17 took 1.47 times that when it was drafted."""
    tokens = dict.fromkeys("abcdefg", 256) | {"h": 17}
    plain, tree = cost_as_simulated("plain", tokens, {}), cost_as_simulated("tree", tokens, {"h": exp(0.383)})
    took = sum(time.seconds for time in plain.done.values()) / sum(time.seconds for time in tree.done.values())
    assert Runs.of([plain, tree]).ratio(tree, plain).value == pytest.approx(took, rel=1e-3)


def test_runs_that_did_not_go_through_their_rounds_tell_no_cost_of_them():
    tokens = dict.fromkeys("abcd", 256)
    plain, tree = cost_as_simulated("plain", tokens, {"a": 1.1}), cost_as_simulated("tree", tokens, {"b": 0.9})
    parted = replace(tree, prompts=tree.prompts | {"d": PromptTime(64.0, 2)})
    alone = {prompt: time for prompt, time in tree.prompts.items() if prompt != "d"}
    expected, found = (Runs.of([plain, one]).ratio(one, plain) for one in (replace(tree, prompts=alone), parted))
    assert (found.value, found.machine_error) == pytest.approx((expected.value, expected.machine_error))
    none = replace(tree, prompts={prompt: time._replace(simulated_s=None) for prompt, time in tree.prompts.items()})
    runs = Runs.of([plain, none])
    assert runs.ratio(none, plain) == runs.as_run(none, plain)
