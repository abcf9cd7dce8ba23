"""The verdict on a search: its facts are those of the ranking, on prompts that were held out."""

import re
from dataclasses import replace

import pytest

from decoding.schedule import Schedule
from planner.paired_ratio import Ratio
from planner.plan import make_plan
from planner.predicted_verdict import judge, short_answers, significantly_slower
from planner.search.halves import halves, only
from planner.search.search import rank
from planner.search.space import SearchSpace
from sim.evaluator import predict
from tests.planner.synthetic import TREES, acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(4,), uneven_roots=(8,))


def verdict_on(profile, *, space=SMALL, record=None):
    plan = make_plan(space, profile, record or acceptance_record(num_prompts=8))
    return plan.verdict, plan.judged.result


@pytest.fixture(scope="module")
def synchronous_wins():
    return verdict_on(machine(pooled_speed=1.4))


@pytest.fixture(scope="module")
def mirror_wins():
    return verdict_on(machine(pooled_speed=1.0))


@pytest.fixture(scope="module")
def plain_wins():
    return verdict_on(machine(draft_step_s=0.04))


@pytest.fixture(scope="module")
def tree_wins():
    """A head that is not worth it, and streams that are."""
    return verdict_on(machine(pooled_speed=1.4), record=acceptance_record(num_prompts=8, trees=(TREES[0], TREES[4])))


def test_the_speed_up_is_that_of_the_best_drafting_over_the_best_plain_schedule(synchronous_wins):
    verdict, result = synchronous_wins
    speedup = verdict.speedup
    assert verdict.pays == "yes"
    assert speedup.value == pytest.approx(result.best(method="autoregressive").tpot_s / result.winner.tpot_s)
    assert 1 < speedup.low < speedup.value < speedup.high
    assert verdict.headline.endswith("predicted on 4 held-out prompts.")
    assert verdict.schedule == result.winner.schedule
    assert verdict.world == "predicted"


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
    assert plan.verdict.schedule.method == "autoregressive"


def test_few_prompts_are_not_parted_and_it_says_so():
    verdict, _ = verdict_on(machine(pooled_speed=1.4), record=acceptance_record(num_prompts=3))
    assert verdict.headline.endswith("on the 3 prompts that the schedules were chosen on: too few to hold some out.")


@pytest.mark.parametrize("case", ["synchronous_wins", "mirror_wins", "plain_wins", "tree_wins"])
def test_every_verdict_is_made_of_its_rankings_own_numbers(case, request):
    verdict, result = request.getfixturevalue(case)
    assert verdict.pays == ("no" if case == "plain_wins" else "yes")
    assert result.winner is result.candidates[0]
    for claim in verdict.others:
        assert claim.one == verdict.recommended
    shares = [int(share) for share in re.findall(r"(\d+) %", verdict.why[-1])]
    assert shares == sorted(shares, reverse=True)
    assert 90 <= sum(shares) <= 100
    predicted = dict(verdict.facts)["Predicted"]
    assert f"{1 / result.winner.tpot_s:.1f} tokens/s" in predicted[0]
    assert len(predicted) == 1 + len(verdict.others)
    assert not re.search(r"\b(nan|inf|None)\b", verdict.text)


def test_mirror_can_win_and_says_what_hides(mirror_wins):
    verdict, result = mirror_wins
    assert result.winner.schedule.method == "mirror"
    ready, hidden = dict(verdict.facts)["Drafts in time"]
    assert re.match(r"\d+ % of the rounds find", ready)
    assert re.match(r"\d+ % of the draft's work is done while", hidden)
    assert re.search(r"target on \w+, draft on \w+", verdict.next_step[0])


def test_a_head_is_called_by_its_name():
    space = SMALL.model_copy(update={"methods": ("autoregressive", "eagle3"), "tree_sizes": (8,)})
    verdict, result = verdict_on(machine(), space=space, record=acceptance_record(num_prompts=8, trees=TREES))
    assert verdict.recommended == "EAGLE-3, tree of 8, 4 deep, top 4, pooled"
    assert "drafted by eagle-3, on both" in verdict.next_step[0]
    assert result.winner.placement == "pooled"


def test_where_plain_decoding_wins_it_says_what_speculation_costs_more(plain_wins):
    verdict, result = plain_wins
    assert result.winner.schedule.method == "autoregressive"
    assert verdict.speedup.high < 1
    assert re.search(r"spends [\d.]+ ms more on waiting for the draft", verdict.why[0])
    assert verdict.next_step[0].startswith('use "plain, pooled"')


def judged_with(*, machine_error, prompts_error):
    """The verdict on a machine that is known so well, and prompts that differ so much."""
    plan = make_plan(SMALL, machine(pooled_speed=1.4), acceptance_record(num_prompts=8))
    judged = plan.judged
    times = {one.schedule: one.tpot_s for one in judged.result.candidates}

    def compare(one, other):
        ratio = times[other] / times[one]
        return Ratio(value=ratio, num_pairs=8, machine_error=machine_error, prompts_error=prompts_error)

    return judge(judged, plan.profile, plan.record, compare, plan.sensitivity), judged.result


@pytest.mark.parametrize(
    ("machine_error", "prompts_error", "said"),
    [(0.5, 0.1, "running both would tell"), (0.01, 0.5, r"about \d+ prompts like these would tell")],
)
def test_where_it_cannot_tell_it_says_what_would(machine_error, prompts_error, said):
    verdict, _ = judged_with(machine_error=machine_error, prompts_error=prompts_error)
    assert verdict.pays == "cannot_tell"
    assert re.match(said, verdict.next_step[0])
    assert {claim.outcome for claim in verdict.others} == {"cannot tell"}


def test_a_draft_that_is_never_right_is_named_as_the_reason():
    record = acceptance_record(num_prompts=3, acceptance=0.0, with_features=False)
    verdict, result = verdict_on(machine(), record=record)
    assert result.winner.schedule.method == "autoregressive"
    assert (verdict.pays, verdict.speedup.outcome) == ("no", "slower")
    assert verdict.why[0].startswith("no drafted token was right")


@pytest.mark.parametrize("trees", [(), TREES])
@pytest.mark.parametrize(("acceptance", "pays"), [(0.0, "no"), (0.01, "no"), (1.0, "yes")])
def test_the_ends_of_acceptance_get_a_verdict(acceptance, pays, trees):
    record = acceptance_record(num_prompts=3, acceptance=acceptance, trees=trees)
    verdict, _ = verdict_on(machine(pooled_speed=1.15), record=record)
    assert verdict.pays == pays
    assert "no drafted token" not in verdict.text, "exit features make the draft right now and then"
    assert not re.search(r"\b(nan|inf)\b", verdict.text)


def test_without_a_drafter_only_plain_decoding_is_left():
    verdict, _ = verdict_on(machine().model_copy(update={"drafter": None}))
    assert (verdict.pays, verdict.speedup) == ("no", None)
    assert "only plain decoding can be predicted" in verdict.headline


def test_without_plain_decoding_it_cannot_tell():
    verdict, _ = verdict_on(machine(), space=SMALL.model_copy(update={"methods": ("speculative", "mirror")}))
    assert (verdict.pays, verdict.speedup) == ("cannot_tell", None)
    assert "left plain decoding out" in verdict.headline


def test_parts_of_a_time_add_up_to_it(mirror_wins):
    _, result = mirror_wins
    for candidate in result.candidates:
        assert sum(candidate.seconds_per_token.values()) == pytest.approx(candidate.tpot_s)


def test_lanes_that_are_faster_together_leave_no_negative_part():
    together = machine(pooled_speed=1.0).contention[0].model_copy(update={"slowdown": (0.9, 0.95)})
    _, result = verdict_on(machine(pooled_speed=1.0).model_copy(update={"contention": (together,)}))
    mirror = result.best(method="mirror")
    assert mirror.prediction.bottlenecks.contention < 0
    assert min(mirror.seconds_per_token.values()) == 0
    assert sum(mirror.seconds_per_token.values()) == pytest.approx(mirror.tpot_s)


def test_it_says_what_would_have_to_change(synchronous_wins, mirror_wins):
    facts = dict(synchronous_wins[0].facts)
    [plain, *_] = [item for item in facts["Fastest instead"] if "accepted" in item]
    assert re.match(
        r"plain decoding, if \d+ % \(\d+ % to \d+ %\) of the draft model's tokens were accepted, not", plain
    )
    assert any(re.search(r"drafting were [\d.]+× \(.*\) slower", item) for item in facts["Fastest instead"])
    parts = facts["Tokens per second if one part were 10 % faster"]
    assert [item.split()[0] for item in parts] == ["target", "draft", "link"]
    accepted = [item for item in dict(mirror_wins[0].facts)["Fastest instead"] if "accepted" in item]
    assert all(item.startswith("plain decoding") for item in accepted), "a worse draft helps no kind that uses it"


def test_kinds_that_cannot_be_told_from_the_winner_have_no_lead_to_lose(synchronous_wins):
    judged = synchronous_wins[1]
    assert significantly_slower(judged, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2)) == ()
    told = significantly_slower(
        judged, lambda one, other: Ratio(value=1.1, num_pairs=8, prompts_error=0.2 if one == other else 0.0)
    )
    assert set(told) == {"plain", "mirror"}, "all but the winner's own"


PLAIN = Schedule(method="autoregressive", target_lane="both")
SYNCHRONOUS = Schedule(
    method="speculative", target_lane="both", draft_lane="both", drafter="four-layer", num_speculative_tokens=2
)


def requests(**known):
    """Plain decoding, and speculation that is faster, with (prefill, time per token) of each method."""
    found = rank([PLAIN, SYNCHRONOUS], machine(), acceptance_record(num_prompts=2))
    candidates = []
    for one in found.candidates:
        prefill_s, tpot_s = known[one.schedule.method]
        candidates.append(replace(one, prediction=replace(one.prediction, prefill_s=prefill_s, tpot_s=tpot_s)))
    return replace(found, candidates=tuple(sorted(candidates, key=lambda one: one.tpot_s)))


def test_a_draft_that_has_to_read_the_prompt_too_pays_only_later():
    # Equal at 50 tokens; 2 % of a request apart up to 46 of them.
    found = requests(autoregressive=(0.5, 0.03), speculative=(1.0, 0.02))
    assert max(n for n in range(16, 2001) if 0.5 + 0.03 * n < 0.98 * (1.0 + 0.02 * n)) == 46
    assert list(short_answers(found.winner, [found.best(kind="plain")])) == ["plain decoding, 16 to 46 tokens"]
    assert list(short_answers(found.winner, [])) == []
    similar = requests(autoregressive=(0.5, 0.03), speculative=(0.55, 0.02))
    assert list(short_answers(similar.winner, [similar.best(kind="plain")])) == []
    unknown = requests(autoregressive=(0.5, 0.03), speculative=(None, 0.02))
    assert list(short_answers(unknown.winner, [unknown.best(kind="plain")])) == []
