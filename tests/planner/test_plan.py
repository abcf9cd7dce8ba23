"""The verdict on a search: its facts are those of the ranking, on prompts that were held out."""

import re
from dataclasses import replace

import pytest

from decoding.schedule import Schedule
from planner.paired_ratio import Ratio
from planner.plan import judge, make_plan, short_answers, significantly_slower
from planner.search.search import rank
from planner.search.space import SearchSpace, only
from sim.evaluator import predict
from tests.planner.synthetic import (
    TREES,
    acceptance_record,
    coarse_sweeps,
    half_ignorant,
    machine,
    sampled_record,
    table,
    with_equal_texts,
)

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(4,), uneven_roots=(8,))
WINNERS = {
    "speculative": {"pooled_speed": 1.4},
    "mirror": {"pooled_speed": 1.0},
    "autoregressive": {"draft_step_s": 0.04},
    "speculative_streaming": {"pooled_speed": 1.4},
}


def planned(profile, *, space=SMALL, record=None):
    with coarse_sweeps():
        return make_plan(space, profile, record or acceptance_record(num_prompts=8))


@pytest.fixture(scope="module")
def plans():
    """On machines on which each of these methods wins."""
    with_trees = acceptance_record(num_prompts=8, trees=(TREES[0], TREES[4]))
    return {
        method: planned(machine(**speeds), record=with_trees if "streaming" in method else None)
        for method, speeds in WINNERS.items()
    }


@pytest.mark.parametrize("method", WINNERS)
def test_every_verdict_is_made_of_its_rankings_own_numbers(plans, method):
    verdict, result = plans[method].verdict, plans[method].judged
    assert result.winner.schedule.method == method
    assert verdict.pays == ("no" if method == "autoregressive" else "yes")
    plain, drafting = result.best(kind="plain"), result.best_drafting()
    assert verdict.speedup.value == pytest.approx(plain.tpot_s / drafting.tpot_s)
    assert verdict.headline.endswith("predicted on 4 held-out prompts.")
    assert (verdict.schedule, verdict.world) == (result.winner.schedule, "predicted")
    assert {claim.one for claim in verdict.others} == {verdict.recommended}
    assert verdict.next_step[0].startswith(f'use "{verdict.recommended}" ')
    shares = [int(share) for share in re.findall(r"(\d+) %", verdict.why[-1])]
    assert shares == sorted(shares, reverse=True)
    assert 90 <= sum(shares) <= 100
    assert len(verdict.why) == (2 if method == "autoregressive" else 1), "what speculation spends too, where it loses"
    assert not re.search(r"\b(nan|inf|None)\b", verdict.text)
    for candidate in result.candidates:
        assert sum(candidate.seconds_per_token.values()) == pytest.approx(candidate.tpot_s)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("autoregressive", "only plain decoding can be predicted"),
        ("speculative", "the search left plain decoding out"),
    ],
)
def test_without_another_schedule_to_compare_nothing_can_be_told(method, why):
    verdict = planned(machine(), space=SMALL.model_copy(update={"methods": (method,)})).verdict
    assert (verdict.pays, verdict.claim, verdict.schedule.method) == ("cannot_tell", None, method)
    assert why in verdict.headline


def test_speeds_are_those_on_the_prompts_kept_apart(plans):
    plan = plans["speculative"]
    for candidate in plan.judged.candidates:
        apart = predict(candidate.schedule, plan.profile, only(plan.record, plan.search.halves.judging))
        assert candidate.tpot_s == apart.tpot_s
    assert plan.verdict.speedup.num_pairs == 4


def test_what_is_judged_does_not_depend_on_how_the_choice_came_out_there():
    """Texts on which the draft knows nothing are kept apart: the choice is as before, and the answer is no."""
    space = SMALL.model_copy(update={"exit_features": (False,)})
    plan = planned(machine(pooled_speed=1.4), space=space, record=half_ignorant("judging"))
    before = planned(machine(pooled_speed=1.4), space=space)
    assert plan.search.winner.schedule == before.search.winner.schedule == plan.judged.winner.schedule
    assert plan.search.winner.schedule.method == "speculative"
    assert plan.verdict.pays == "no"
    assert plan.verdict.schedule.method == "autoregressive"


def test_a_yes_of_the_prompts_kept_apart_recommends_what_drafts():
    """Texts on which the draft knows nothing are chosen on: plain decoding leads there, and the answer is yes."""
    space = SMALL.model_copy(update={"exit_features": (False,)})
    plan = planned(machine(pooled_speed=1.4), space=space, record=half_ignorant("choosing"))
    assert plan.search.winner.schedule.method == "autoregressive"
    assert plan.verdict.pays == "yes"
    assert plan.verdict.schedule == plan.judged.best_drafting().schedule == plan.recommended.schedule
    assert plan.verdict.recommended == plan.verdict.claim.one


@pytest.mark.parametrize("num_texts", [1, 2])
def test_few_prompts_are_not_parted_and_it_says_so(num_texts):
    record = with_equal_texts(acceptance_record(num_prompts=3), num_texts)
    verdict = planned(machine(pooled_speed=1.4), record=record).verdict
    assert verdict.headline.endswith("on the 3 prompts that the schedules were chosen on: too few to hold some out.")


@pytest.mark.parametrize(
    ("machine_error", "prompts_error", "temperature", "said"),
    [
        (0.5, 0.1, 0.0, "runs of both on more prompts would decide"),
        (0.5, 0.1, 1.0, "a profile with narrower intervals would decide"),
        (0.01, 0.5, 0.0, r"about \d+ prompts like these would decide"),
    ],
)
def test_where_it_cannot_tell_it_says_what_would(plans, machine_error, prompts_error, temperature, said):
    """Runs to compare are greedy."""
    plan = plans["speculative"]
    times = {one.schedule: one.tpot_s for one in plan.judged.candidates}

    def compare(one, other):
        ratio = times[other] / times[one]
        return Ratio(value=ratio, num_pairs=8, machine_error=machine_error, prompts_error=prompts_error)

    record = sampled_record(0.5, num_prompts=8) if temperature else plan.record
    verdict = judge(plan.search, plan.judged, record, compare, plan.find_sensitivity)
    assert verdict.pays == "cannot_tell"
    assert re.match(said, verdict.next_step[0])
    assert {claim.outcome for claim in verdict.others} == {"cannot tell"}


def test_a_draft_that_is_never_right_is_named_as_the_reason():
    plan = planned(machine(), record=acceptance_record(num_prompts=3, acceptance=0.0, with_features=False))
    assert (plan.verdict.pays, plan.verdict.speedup.outcome) == ("no", "slower")
    assert plan.verdict.why[0].startswith("no drafted token was right")


@pytest.mark.parametrize(("acceptance", "pays", "trees"), [(0.0, "no", ()), (0.01, "no", TREES), (1.0, "yes", TREES)])
def test_the_ends_of_acceptance_get_a_verdict(acceptance, pays, trees):
    record = acceptance_record(num_prompts=3, acceptance=acceptance, trees=trees)
    verdict = planned(machine(pooled_speed=1.15), record=record).verdict
    assert verdict.pays == pays
    assert "no drafted token" not in verdict.text, "exit features make the draft right now and then"
    assert not re.search(r"\b(nan|inf)\b", verdict.text)


def test_lanes_that_are_faster_together_leave_no_negative_part():
    together = machine(pooled_speed=1.0).contention[0].model_copy(update={"slowdown": (0.9, 0.95)})
    profile = machine(pooled_speed=1.0).model_copy(update={"contention": (together,)})
    mirror = planned(profile).judged.best(method="mirror")
    assert mirror.prediction.bottlenecks.contention < 0
    assert min(mirror.seconds_per_token.values()) == 0
    assert sum(mirror.seconds_per_token.values()) == pytest.approx(mirror.tpot_s)


def test_it_says_what_would_have_to_change(plans):
    facts = plans["speculative"].verdict.slow_facts()
    [plain, *_] = [item for item in facts["Fastest instead"] if "right, not" in item]
    assert re.match(r"plain decoding, if \d+ % \(\d+ % to \d+ %\) of the draft model's tokens are right, not", plain)
    assert any(re.search(r"drafting is [\d.]+× \(.*\) slower", item) for item in facts["Fastest instead"])
    parts = facts["Tokens per second if one part were 10 % faster"]
    assert [item.split()[0] for item in parts] == ["target", "draft", "link"]
    accepted = [item for item in plans["mirror"].verdict.slow_facts()["Fastest instead"] if "right, not" in item]
    assert all(item.startswith("plain decoding") for item in accepted), "a worse draft helps no kind that uses it"


def test_nothing_is_said_of_longer_answers_than_were_recorded():
    """Plain decoding reads the prompt faster, by more than any answer that was recorded gains."""
    lanes = tuple(
        one.model_copy(update={"prefill": table(1.0), "draft_prefill": table(9.0)}) for one in machine().lanes
    )
    plan = planned(machine(pooled_speed=1.4).model_copy(update={"lanes": lanes}))
    [said] = plan.verdict.facts["Faster for short answers, reading the prompt included"]
    assert said.endswith(f"16 to {plan.record.max_new_tokens} tokens, the longest predicted")


def test_kinds_that_cannot_be_told_from_the_winner_have_no_lead_to_lose(plans):
    result = plans["speculative"].judged
    assert significantly_slower(result, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2)) == ()
    told = significantly_slower(
        result, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2 if one == other else 0.0)
    )
    assert set(told) == {"plain", "mirror"}, "all but the winner's own"


def requests(**known):
    """Plain decoding, and speculation that is faster, with (prefill, time per token) of each method."""
    drafting = {"draft_lane": "both", "drafter": "four-layer", "num_speculative_tokens": 2}
    schedules = [
        Schedule(method="autoregressive", target_lane="both"),
        Schedule(method="speculative", target_lane="both", **drafting),
    ]
    candidates = []
    for one in rank(schedules, machine(), acceptance_record(num_prompts=2)).candidates:
        prefill_s, tpot_s = known[one.schedule.method]
        both_s = prefill_s and 2 * prefill_s
        candidates.append(replace(one, prediction=replace(one.prediction, prefill_s=both_s, tpot_s=tpot_s)))
    return sorted(candidates, key=lambda one: one.tpot_s)


def test_a_draft_that_has_to_read_the_prompt_too_pays_only_later():
    # Equal at 50 tokens; 2 % of a request apart up to 46 of them.
    winner, plain = requests(autoregressive=(0.5, 0.03), speculative=(1.0, 0.02))
    assert max(n for n in range(16, 65) if 0.5 + 0.03 * n < 0.98 * (1.0 + 0.02 * n)) == 46
    for longest, end in (
        (64, "46 tokens"),
        (46, "46 tokens, the longest predicted"),
        (30, "30 tokens, the longest predicted"),
    ):
        assert list(short_answers(winner, [plain], longest)) == [f'"plain, pooled", 16 to {end}']
    for similar_or_unknown in (0.55, None):
        winner, plain = requests(autoregressive=(0.5, 0.03), speculative=(similar_or_unknown, 0.02))
        assert list(short_answers(winner, [plain], 64)) == []
