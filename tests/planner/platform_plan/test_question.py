from dataclasses import replace

import pytest

from decoding.errors import PlanError
from decoding.record import AcceptanceRecord
from planner.platform_plan.advice import advice
from planner.platform_plan.default_acceptance import (
    ALTERNATIVES,
    ALTERNATIVES_SOURCE,
    default_rates,
    mean_rate,
    with_mean_rate,
)
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import (
    GIVEN,
    MOST_DRAWN_TOKENS,
    MOST_NEW_TOKENS,
    assumed_question,
    recorded_question,
)
from planner.platform_plan.ranked_schedules import UNTRAINED, schedule_names_of
from sim.acceptance.assumed import Bernoulli, PositionRates
from sim.acceptance.rates import TaskRates
from tests.planner.platform_plan.test_places import asked, cards

MACHINE = cards(8e10, 8e10)
PAIR = asked(MACHINE, "qwen3-14b", "qwen3-0.6b")


def given(acceptance=None, *, lengths=(64, 8), pair=PAIR, **exits):
    return assumed_question(
        MACHINE,
        pair.target,
        pair.draft,
        given=acceptance,
        num_prompt_tokens=lengths[0],
        num_new_tokens=lengths[1],
        **exits,
    )


@pytest.mark.parametrize(
    ("rates", "pays"),
    [((0.0,) * 8, "no"), ((1.0,) * 8, "yes"), ((1.0, 1.0), "yes"), ((0.0, 1.0), "no"), ((1.0, 0.0), "yes")],
)
def test_rates_of_zero_and_one_are_rates(rates, pays):
    plan = plan_platform(given(PositionRates(rates)))
    assert plan.pays == pays
    told = any("published speed-ups" in one for one in advice(plan).warnings)
    assert told == (pays != "no"), "no published gain is like one that is ruled out"
    assert plan.needed.now == rates[0]
    assert 0 < plan.needed.at < 1
    assert advice(plan).pays == pays


@pytest.mark.parametrize("mean", [0.0, 0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("rates", [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.6, 0.3)])
def test_rates_moved_to_another_mean_have_that_mean_and_stay_rates(rates, mean):
    moved = with_mean_rate({"": TaskRates(rates=rates)}, mean)[""].rates
    assert moved[0] == pytest.approx(mean)
    assert all(0 <= rate <= 1 for rate in moved)
    by_task = default_rates(40)
    assert mean_rate(with_mean_rate(by_task, mean)) == pytest.approx(mean)


def test_alternatives_that_are_given_stand_in_place_of_the_usual_ones():
    def first_alternative(question):
        (found,) = (one for one in question.assumptions if one.field == "acceptance.first_alternative")
        return found.value, found.source

    assert first_alternative(given()) == (ALTERNATIVES[0], ALTERNATIVES_SOURCE)
    assert first_alternative(given(Bernoulli(0.6))) == (ALTERNATIVES[0], ALTERNATIVES_SOURCE)
    assert first_alternative(given(Bernoulli(0.6, alternative_rates=(0.7, 0.9)))) == (0.7, GIVEN)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("acceptance.rate", 1.5, "rates are from 0 to 1"),
        ("acceptance.rate", -0.5, "rates are from 0 to 1"),
        ("acceptance.rate", float("nan"), "rates are from 0 to 1"),
        ("acceptance.first_alternative", 0.2, "is 0, which cannot be scaled to 0.2"),
        ("acceptance.exit_coverage_after_layer_20", 0.2, "is 0, which cannot be scaled to 0.2"),
    ],
)
def test_what_cannot_be_moved_so_far_is_refused(name, value, said):
    question = given(Bernoulli(0.6, alternative_rates=(0.0,), exit_coverage={20: (0.0,)}))
    with pytest.raises(PlanError, match=said):
        question.record_with(name, value)


def test_another_tokenizer_is_refused_before_anything_is_played():
    with pytest.raises(PlanError, match=r"Qwen3-0\.6B cannot draft for Llama-3\.1-8B.*llama-3\.2-1b, llama-3\.2-3b"):
        asked(MACHINE, "llama-3.1-8b", "qwen3-0.6b")


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((100_000, 8), r"Qwen3-14B has only 40,960"),
        ((40_960, 1), r"40,961 positions, but Qwen3-14B has only 40,960; a prompt of 40,953 would do"),
        ((64, 1_000_000), "Qwen3-14B has only 40,960"),
        ((10**12, 10**9), "Qwen3-14B has only 40,960"),
        ((64, MOST_NEW_TOKENS + 1), f"{MOST_NEW_TOKENS:,} are the most"),
    ],
)
def test_texts_that_no_model_holds_or_nobody_waits_for_are_refused(lengths, said):
    with pytest.raises(PlanError, match=said):
        given(lengths=lengths)


def test_drafts_that_reach_beyond_the_positions_are_told_with_how_much_shorter_a_prompt_leaves_room():
    def told_and_longest(num_prompt_tokens):
        plan = plan_platform(given(lengths=(num_prompt_tokens, 8)))
        warnings = [one for one in advice(plan).warnings if "Drafts of more than" in one]
        return warnings, max(one.schedule.num_speculative_tokens for one in plan.speculation)

    (told,), longest = told_and_longest(40_950)
    assert longest == 3
    assert "more than 3 tokens are left out: they would exceed the 40,960 positions of Qwen3-14B" in told
    assert "A prompt that is 4 tokens shorter" in told
    assert told_and_longest(40_946) == ([], 7)


def test_of_long_answers_fewer_texts_are_drawn_and_never_one_alone():
    def drawn(num_new_tokens):
        return len(given(Bernoulli(0.5), lengths=(64, num_new_tokens)).record.prompts)

    assert (drawn(8), drawn(128)) == (16, 16)
    assert 2 <= drawn(MOST_NEW_TOKENS) <= MOST_DRAWN_TOKENS / MOST_NEW_TOKENS


def test_exits_that_nobody_trained_are_ranked_with_a_label_and_not_recommended():
    bare = plan_platform(given())
    needing = [one for one in bare.ranking if one.needs_training]
    assert needing
    assert all(one.schedule.root_source == "exit" for one in needing)
    assert not bare.drafting.needs_training
    names = schedule_names_of(bare.ranking)
    assert all(name.endswith(UNTRAINED) == one.needs_training for name, one in zip(names, bare.ranking, strict=True))
    for there in (given(trained_exits=True), given(Bernoulli(0.6, exit_coverage={20: (0.5,) * 8}))):
        assert there.has_exits


def test_an_exit_that_would_win_if_it_were_trained_is_told():
    rates = Bernoulli(0.3, exit_coverage={20: (1.0,) * 8}, alternative_rates=(0.0,) * 8)
    there = plan_platform(given(rates))
    assert there.drafting.schedule.root_source == "exit"
    question = replace(there.question, has_exits=False)
    without = plan_platform(question)
    assert without.ranking[0].needs_training
    assert without.drafting.schedule.root_source != "exit"
    assert "--trained-exits" in advice(without).warnings[0]


def test_the_exits_that_ship_are_there():
    small = asked(MACHINE, "smollm2-135m", "smollm2-135m")
    assert given(pair=small).has_exits
    assert not given().has_exits


def test_a_record_of_another_pair_is_a_guess_with_exits_of_its_own_and_says_whose_it_is():
    record = AcceptanceRecord.load("tests/golden/record.npz")
    own = recorded_question(MACHINE, PAIR.target, PAIR.draft, record)
    other = recorded_question(MACHINE, PAIR.target, PAIR.draft, record, replayed=True)
    assert (own.acceptance.status, own.has_exits, own.basis) == ("measured", True, "recorded acceptance")
    assert (other.acceptance.status, other.has_exits) == ("guessed", False)
    assert f"{record.target} with {record.drafter}" in other.basis
    assert other.acceptance.high <= 1


def test_exits_of_a_record_that_a_shallower_target_lacks_are_left_out():
    record = AcceptanceRecord.load("tests/golden/record.npz")
    shallow = asked(MACHINE, "smollm2-1.7b", "smollm2-135m")
    found = recorded_question(MACHINE, shallow.target, shallow.draft, record, replayed=True)
    assert found.record.exit_layers == (15, 20)
    assert plan_platform(found).ranking


def test_a_target_of_one_layer_has_no_exits():
    assert all(not rates.exit_coverage for rates in default_rates(1).values())
