"""The verdict says yes, no or cannot tell, and each branch in words."""

import re
from dataclasses import replace

import pytest

from planner.paired_ratio import Ratio
from planner.plan import make_plan
from planner.search.halves import halves, only
from planner.search.space import SearchSpace
from planner.verdict import judge, per_token, told_slower
from sim.evaluator import predict
from tests.planner.synthetic import TREES, acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(4,), uneven_roots=(8,))


def verdict_on(profile, *, space=SMALL, record=None):
    plan = make_plan(space, profile, record or acceptance_record(num_prompts=8))
    return plan.verdict, plan.judged.result


def blurred(profile):
    """The same machine with its lanes and all that drafts timed badly: an error of all times would change no ratio."""

    def badly(lane):
        step = lane.draft_step.model_copy(update={"relative_error": 3.0})
        heads = {name: head.model_copy(update={"relative_error": 5.0}) for name, head in lane.heads.items()}
        found = {"draft_step": step, "draft_step_features": step, "heads": heads}
        return lane.model_copy(update={"relative_error": 0.5} | found)

    return profile.model_copy(update={"lanes": tuple(map(badly, profile.lanes))})


@pytest.fixture(scope="module")
def synchronous_wins():
    return verdict_on(machine(pooled_speed=1.4))


@pytest.fixture(scope="module")
def mirror_wins():
    return verdict_on(machine(pooled_speed=1.0))


@pytest.fixture(scope="module")
def plain_wins():
    return verdict_on(machine(draft_step_s=0.04))


def test_yes_with_a_factor_and_both_speeds(synchronous_wins):
    verdict, result = synchronous_wins
    plain = result.best(method="autoregressive")
    speedup = verdict.speedup
    assert verdict.pays == "yes"
    assert speedup.value == pytest.approx(plain.tpot_s / result.winner.tpot_s)
    assert 1 < speedup.low < speedup.value < speedup.high
    assert verdict.headline == (
        f"Yes, speculation pays here: {speedup.value:.2f}× ({speedup.low:.2f}× to {speedup.high:.2f}×) the speed of "
        "plain decoding."
    )
    assert verdict.prediction == (
        f"Predicted: synchronous speculation {1 / result.winner.tpot_s:.1f} tokens/s and "
        f"plain decoding {1 / plain.tpot_s:.1f} tokens/s, on 4 prompts that nothing was fitted to or chosen on."
    )


def test_speeds_are_those_on_the_prompts_kept_apart():
    record = acceptance_record(num_prompts=8)
    plan = make_plan(SMALL, machine(pooled_speed=1.4), record)
    for candidate in plan.judged.result.candidates:
        apart = predict(candidate.schedule, plan.profile, only(record, plan.search.halves.judging))
        assert candidate.tpot_s == apart.tpot_s
    assert plan.verdict.speedup.num_pairs == 4


def test_what_is_judged_does_not_depend_on_how_the_choice_came_out_there():
    """Texts on which the draft knows nothing are kept apart: the choice is as before, and the answer is no."""
    record, ignorant = acceptance_record(num_prompts=8), acceptance_record(num_prompts=8, acceptance=0.0)
    parts = halves(record)
    mixed = [ignorant.prompts[place] if place in parts.judging else record.prompts[place] for place in range(8)]
    space = SMALL.model_copy(update={"exit_features": (False,)})
    plan = make_plan(space, machine(pooled_speed=1.4), replace(record, prompts=tuple(mixed)))
    assert plan.search.winner.schedule == make_plan(space, machine(pooled_speed=1.4), record).search.winner.schedule
    assert plan.search.winner.schedule.method == "speculative"
    assert plan.judged.result.winner.schedule == plan.search.winner.schedule
    assert plan.verdict.pays == "no"
    assert plan.verdict.lead.outcome == "slower"


def test_few_prompts_are_not_parted_and_it_says_so():
    verdict, _ = verdict_on(machine(pooled_speed=1.4), record=acceptance_record(num_prompts=3))
    assert verdict.prediction.endswith("on the 3 prompts that they were chosen on: too few to keep some apart.")


def test_the_winner_comes_with_settings_and_lanes(synchronous_wins):
    verdict, result = synchronous_wins
    window = result.winner.schedule.num_speculative_tokens
    assert verdict.choice[0].startswith(
        f"Chosen by prediction is synchronous speculation: draft {window} tokens per round"
    )
    assert verdict.choice[1] == "Target and draft take turns on lane both (cpu, 2 cores)."
    assert any(re.fullmatch(r"Mirror speculation needs [\d.]+ ms per token, \d+ % more\.", s) for s in verdict.choice)


def test_mirror_can_win_and_says_what_hides(mirror_wins):
    verdict, result = mirror_wins
    assert result.winner.schedule.method == "mirror"
    assert verdict.pays == "yes"
    assert "branches" in verdict.choice[0]
    assert re.search(
        r"The target runs on lane \w+ \(cpu, core \d\), the draft on lane \w+ \(cpu, core \d\)", verdict.text
    )
    assert re.search(
        r"\d+ % of the rounds find their next window ready, and \d+ % of the draft's work is done while", verdict.text
    )


@pytest.fixture(scope="module")
def tree_wins():
    """A head that is not worth it, and streams that are."""
    return verdict_on(machine(pooled_speed=1.4), record=acceptance_record(num_prompts=8, trees=(TREES[0], TREES[4])))


def test_a_tree_can_win_and_is_called_by_its_method(tree_wins):
    verdict, result = tree_wins
    schedule = result.winner.schedule
    assert schedule.method == "speculative_streaming"
    assert verdict.choice[0] == (
        "Chosen by prediction is speculative streaming: the target's own streams draft a tree of "
        f"{schedule.tree_size} tokens per round, 3 deep."
    )
    assert verdict.choice[1] == "The target runs on lane both (cpu, 2 cores)."
    assert re.search(r"Speculative streaming split needs [\d.]+ ms per token, \d+ % more\.", verdict.text)
    assert re.search(
        r"the target's whole pass \(\d+ %\) and drafting while the target waits \(\d+ %\)", verdict.because[0]
    )


def test_of_all_trees_the_best_is_the_one_compared(tree_wins):
    """Of the winner's own kind nothing else is named beside the others."""
    said = " ".join(tree_wins[0].choice)
    for other in ("Plain decoding", "Synchronous speculation", "Mirror speculation"):
        assert f"{other} needs" in said
    assert "Medusa" not in said


def test_a_head_is_called_by_its_name():
    space = SMALL.model_copy(update={"methods": ("autoregressive", "eagle3"), "tree_sizes": (8,)})
    verdict, result = verdict_on(machine(), space=space, record=acceptance_record(num_prompts=8, trees=TREES))
    expected = (
        "Chosen by prediction is EAGLE-3: "
        "eagle-3 drafts a tree of 8 tokens per round, 4 deep, 4 nodes expanded per level."
    )
    assert verdict.choice[0] == expected
    assert verdict.choice[1] == "The target and its head take turns on lane both (cpu, 2 cores)."
    assert result.winner.placement == "pooled"


def test_a_tree_that_loses_is_compared_and_moves_with_the_draft():
    record = acceptance_record(num_prompts=8, trees=TREES[:1])
    verdict, _ = verdict_on(machine(pooled_speed=1.4), record=record)
    assert re.search(r"Medusa( needs [\d.]+ ms per token, \d+ % more|.* \([\d.]+ ms per token\))", verdict.text)
    assert "accepted less often" in verdict.changes[0]
    assert verdict.changes[0].count("and all other drafted tokens by the same share") == 1


def test_plain_decoding_can_win(plain_wins):
    verdict, result = plain_wins
    assert result.winner.schedule.method == "autoregressive"
    assert verdict.pays == "no"
    assert verdict.speedup.high < 1
    assert verdict.headline.startswith("No, speculation does not pay here: its best has 0.")
    assert verdict.choice[1] == "The target runs on lane both (cpu, 2 cores)."
    assert "more on waiting for the draft" in verdict.text


def judged_with(*, machine_error, prompts_error):
    """The verdict on a machine that is known so well, and prompts that differ so much."""
    judged = make_plan(SMALL, machine(pooled_speed=1.4), acceptance_record(num_prompts=8)).judged
    times = {one.schedule: one.tpot_s for one in judged.result.candidates}

    def compare(one, other):
        ratio = times[other] / times[one]
        return Ratio(value=ratio, num_pairs=8, machine_error=machine_error, prompts_error=prompts_error)

    return judge(judged, machine(pooled_speed=1.4), compare), judged.result


@pytest.fixture(scope="module")
def cannot_tell():
    return judged_with(machine_error=0.5, prompts_error=0.1)


def test_predictions_that_cannot_tell_are_no_claim_that_both_are_as_fast(cannot_tell):
    verdict, result = cannot_tell
    assert verdict.pays == "cannot_tell"
    assert re.fullmatch(
        r"Cannot tell from predictions whether speculation pays here: 1\.\d\d× \(0\.\d\d× to 2\.\d\d×\) the speed of "
        r"plain decoding\. More prompts would not tell, as the machine is not known so well; running both would\.",
        verdict.headline,
    )
    plain = result.best(method="autoregressive")
    assert "cannot tell whether it is faster or slower than synchronous speculation split (" in verdict.text
    assert f"plain decoding ({plain.tpot_s * 1e3:.1f} ms per token)" in verdict.text
    assert re.search(
        r"What would tell: runs, not more prompts, for synchronous .* and mirror speculation\.", verdict.text
    )


def test_where_prompts_differ_it_says_how_many_would_tell():
    verdict, _ = judged_with(machine_error=0.01, prompts_error=0.5)
    assert verdict.pays == "cannot_tell"
    assert re.search(r"of plain decoding\. About \d+ prompts like these would tell\.$", verdict.headline)
    assert re.search(r"What would tell: about \d+ prompts like these for synchronous speculation split", verdict.text)
    assert "running both" not in verdict.text


def test_every_order_that_is_stated_is_one_that_the_interval_shows(
    synchronous_wins, mirror_wins, plain_wins, cannot_tell
):
    for verdict, result in (synchronous_wins, mirror_wins, plain_wins, cannot_tell):
        assert not re.search(r"about as fast|better choice|no (measurable )?difference", verdict.text)
        assert verdict.claims
        for claim in verdict.claims:
            is_told = claim.ratio.low > 1 or claim.ratio.high < 1
            assert (claim.outcome != "cannot tell") == is_told
        told = [rest for rest in verdict.choice if "per token, " in rest]
        rivals = [claim for claim in verdict.claims if claim.one == verdict.lead.one]
        assert len(told) <= sum(claim.outcome != "cannot tell" for claim in rivals)
        assert verdict.lead.ratio.value == min(claim.ratio.value for claim in rivals)
        assert result.winner is result.candidates[0]


def test_the_predictions_cannot_tell_two_kinds_apart():
    verdict, result = verdict_on(machine(pooled_speed=1.18))
    ratio = result.best(method="mirror").tpot_s / result.best(method="speculative").tpot_s
    assert ratio == pytest.approx(1, abs=0.06), "the machine was made so that both are about equal"
    assert verdict.pays == "yes"
    assert re.search(
        r"cannot tell whether it is faster or slower than .*(mirror|synchronous) speculation", verdict.text
    )
    assert "What would tell: " in verdict.text


def test_a_draft_that_is_never_right_is_named_as_the_reason():
    record = acceptance_record(num_prompts=3, acceptance=0.0, with_features=False)
    verdict, result = verdict_on(machine(), record=record)
    assert result.winner.schedule.method == "autoregressive"
    assert (verdict.pays, verdict.speedup.outcome) == ("no", "slower")
    assert verdict.because[0] == "No drafted token was right on these prompts, so drafting only costs time."
    assert re.search(r"tokens were accepted more often: \d+ % .*of them, not 0 %", verdict.text)


@pytest.mark.parametrize("trees", [(), TREES])
@pytest.mark.parametrize(("acceptance", "pays"), [(0.0, "no"), (0.01, "no"), (1.0, "yes")])
def test_the_ends_of_acceptance_get_a_verdict(acceptance, pays, trees):
    record = acceptance_record(num_prompts=3, acceptance=acceptance, trees=trees)
    verdict, _ = verdict_on(machine(pooled_speed=1.15), record=record)
    assert verdict.pays == pays
    assert "No drafted token" not in verdict.text, "exit features make the draft right now and then"
    assert not re.search(r"\b(nan|inf)\b", verdict.text)


def test_without_a_drafter_only_plain_decoding_is_left():
    verdict, _ = verdict_on(machine().model_copy(update={"drafter": None}))
    assert (verdict.pays, verdict.speedup) == ("no", None)
    assert verdict.headline == "No: only plain decoding can be predicted from this profile and record."


def test_without_plain_decoding_it_cannot_tell():
    verdict, _ = verdict_on(machine(), space=SMALL.model_copy(update={"methods": ("speculative", "mirror")}))
    assert (verdict.pays, verdict.speedup) == ("cannot_tell", None)
    assert verdict.headline == "Cannot tell: the search left plain decoding out."


def test_it_says_what_bounds_the_winner_largest_first(synchronous_wins):
    verdict, result = synchronous_wins
    shares = [int(share) for share in re.findall(r"\((\d+) %\)", verdict.because[0])]
    assert verdict.because[0].startswith(f"Its {result.winner.tpot_s * 1e3:.1f} ms per token go into the target")
    assert shares == sorted(shares, reverse=True)
    assert 90 <= sum(shares) <= 100


def test_parts_of_a_time_add_up_to_it(mirror_wins):
    _, result = mirror_wins
    for candidate in result.candidates:
        assert sum(per_token(candidate).values()) == pytest.approx(candidate.tpot_s)


def test_lanes_that_are_faster_together_leave_no_negative_part():
    together = machine(pooled_speed=1.0).contention[0].model_copy(update={"slowdown": (0.9, 0.95)})
    _, result = verdict_on(machine(pooled_speed=1.0).model_copy(update={"contention": (together,)}))
    mirror = result.best(method="mirror")
    assert mirror.prediction.bottlenecks.contention < 0
    assert min(per_token(mirror).values()) == 0
    assert sum(per_token(mirror).values()) == pytest.approx(mirror.tpot_s)


def test_it_says_what_would_have_to_change(synchronous_wins, plain_wins):
    said = " ".join(synchronous_wins[0].changes)
    less_often = r"if the draft model's tokens were accepted less often: \d+ % \(\d+ % to \d+ %\) of them, not \d+ %"
    assert re.search(f"Plain decoding would be the fastest {less_often}", said)
    assert re.search(r"or if drafting were [\d.]+× \([\d.]+× to [\d.]+×\) slower", said)
    assert re.search(r"the target \d+ %, the draft \d+ % and the link [\d.]+ %", said)
    assert re.search(r"mirror speculation can be at most 1\.\d+× as fast as drafting and verifying in turn", said)
    assert re.search(
        r"Synchronous speculation would be the fastest if .*drafting were [\d.]+× \(.*\) faster",
        " ".join(plain_wins[0].changes),
    )


def test_a_worse_draft_makes_no_kind_the_fastest_that_uses_it_too(mirror_wins):
    less_often = [said for said in mirror_wins[0].changes if "less often" in said]
    assert len(less_often) == 1
    assert less_often[0].startswith("Plain decoding would be the fastest if")


def test_kinds_that_cannot_be_told_from_the_winner_have_no_lead_to_lose(cannot_tell):
    judged = cannot_tell[1]
    assert told_slower(judged, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2)) == ()
    told = told_slower(
        judged, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2 if one == other else 0.0)
    )
    assert set(told) == {"plain", "mirror"}, "all but the winner's own"


def test_a_shared_memory_is_named_with_its_floor():
    profile = machine().model_copy(update={"memory_pool_bytes_per_s": 1e11})
    lanes = tuple(
        lane.model_copy(update={"layer": lane.layer.model_copy(update={"bytes_per_call": 7e6})})
        for lane in profile.lanes
    )
    verdict, _ = verdict_on(profile.model_copy(update={"lanes": lanes}))
    assert re.search(r"The shared memory alone needs [\d.]+ ms per token of mirror speculation\.", verdict.changes[-1])


def test_sentences_are_short_and_whole(synchronous_wins, mirror_wins, plain_wins, tree_wins):
    for verdict, _ in (synchronous_wins, mirror_wins, plain_wins, tree_wins):
        for sentence in (verdict.headline, verdict.prediction, *verdict.choice, *verdict.because, *verdict.changes):
            assert sentence.endswith(".")
            assert sentence[0].isupper() or sentence[0].isdigit()
            assert len(sentence.split()) <= 48
            assert "nan" not in sentence.lower().split()
