import re
from dataclasses import replace

import pytest

from costs.prices import Prices
from costs.round_plan import DRAFT_STEP, LAYER, LM_HEAD
from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import load_platform
from planner.platform_plan.advice import advice
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.page import render_page
from planner.platform_plan.platform_plan import plan_platform
from planner.platform_plan.question import assumed_question
from planner.platform_plan.schedules import schedules_on
from sim.acceptance.assumed import Bernoulli, PositionRates
from sim.derived.roofline import StoredModel
from sim.evaluator import predict


def question(
    platform="lunar-lake",
    *,
    weights="int4",
    rate=None,
    given=None,
    changes=None,
    target="qwen3-14b",
    draft="qwen3-0.6b",
):
    machine = load_platform(platform)
    return assumed_question(
        with_overrides(machine, changes) if changes else machine,
        StoredModel(shape=model_shape(target), weights=weights),
        StoredModel(shape=model_shape(draft), weights=weights),
        given=given if rate is None else Bernoulli(rate),
        num_prompt_tokens=128,
        num_new_tokens=48,
    )


@pytest.fixture(scope="module")
def lunar_lake():
    return plan_platform(question())


def best_on(plan, draft):
    return next(one for one in plan.ranking if one.pair.draft == draft and one.schedule.num_speculative_tokens)


def test_lunar_lake_speculates_and_not_with_its_npu_as_public_measurements_have_it(lunar_lake):
    assert lunar_lake.pays == "yes"
    assert lunar_lake.drafting.pair.draft != "npu"
    assert best_on(lunar_lake, "npu").speedup < best_on(lunar_lake, "cpu").speedup
    in_turn = [
        one
        for one in lunar_lake.ranking
        if one.pair.draft == "npu" and one.schedule.num_speculative_tokens and not one.schedule.traits.overlaps
    ]
    assert max(one.speedup for one in in_turn) < 1


def test_the_ranking_is_by_time_and_holds_plain_turns_and_mirror_with_both_kinds_of_roots(lunar_lake):
    times = [one.tpot_s for one in lunar_lake.ranking]
    assert times == sorted(times)
    assert {one.schedule.root_source for one in lunar_lake.ranking} == {None, "draft", "exit"}
    assert {one.schedule.method for one in lunar_lake.ranking} == {"autoregressive", "speculative", "mirror"}
    assert all(one.tpot_s_low <= one.tpot_s <= one.tpot_s_high for one in lunar_lake.ranking)
    assert all(one.speedup <= one.bound * (1 + 1e-9) for one in lunar_lake.ranking)
    few_rows = "a few rows on Intel Lunar Lake GPU (Arc 140V)"
    plain, drafting = (
        next(error for cause, error in one.prediction.errors.items() if cause.startswith(few_rows))
        for one in (lunar_lake.plain, lunar_lake.drafting)
    )
    assert plain.half_width == 0 < drafting.half_width < lunar_lake.comparison.machine_error


def test_the_bound_of_mirror_is_a_round_as_long_as_the_longer_of_both(lunar_lake):
    profile, record = lunar_lake.profile, lunar_lake.question.record
    context = sum(record.contexts) / len(record.contexts)
    slow = next(one for one in lunar_lake.ranking if one.pair.draft == "npu" and one.schedule.traits.overlaps)
    prices, window = Prices(profile, lunar_lake.costs), slow.schedule.num_speculative_tokens
    drafting_s = profile.lane("npu").dispatch_s + prices.calls_s("npu", {DRAFT_STEP: window}, 1, context)
    passed = {LAYER: profile.num_layers, LM_HEAD: 1}
    verify_s = prices.calls_s("gpu", passed, window + 1, context)
    longer_s = max(drafting_s, verify_s)
    assert slow.bound == pytest.approx((window + 1) * lunar_lake.plain.tpot_s / longer_s, rel=1e-3)
    widest = max(
        (one for one in lunar_lake.ranking if one.pair == slow.pair and one.schedule.traits.overlaps),
        key=lambda one: one.schedule.num_speculative_tokens,
    )
    assert widest.bound < 8 * lunar_lake.plain.tpot_s / prices.calls_s("gpu", passed, 8, context)


def test_its_predictions_are_those_of_the_simulator(lunar_lake):
    for one in lunar_lake.ranking[::40]:
        found = predict(one.schedule, lunar_lake.profile, lunar_lake.question.record, costs=lunar_lake.costs)
        assert found.tpot_s == one.tpot_s


def test_a_target_that_is_much_slower_elsewhere_is_left_out_by_name(lunar_lake):
    (npu,) = (reason for reason in lunar_lake.left_out if reason.startswith("target on npu: plain decoding takes"))
    slower, tokens = re.search(r"takes ([\d.]+)× .* a round brings ([\d.]+) tokens", npu).groups()
    assert float(slower) > float(tokens)
    drafting = [one for one in lunar_lake.ranking if one.schedule.num_speculative_tokens]
    assert "npu" not in {one.pair.target for one in drafting}


def test_the_advice_says_what_the_chosen_place_has_to_hold(lunar_lake):
    (memory,) = advice(lunar_lake).facts["Memory"]
    assert re.fullmatch(r"both on gpu: memory has to hold 9\.\d GB \(.*\); 28\.8 GB are usable\.", memory)


@pytest.mark.parametrize("platform", ["lunar-lake", "cpu-2core"])
def test_the_advice_counts_what_is_measured_and_what_is_guessed(platform):
    """Of this project's own machine most numbers are measured, and of no other."""
    plan = plan_platform(question(platform))
    text = advice(plan).text
    statuses = [one.status for one in plan.assumptions]
    found = re.search(r"It rests on (\d+) numbers: (\d+) measured; .*?(\d+) guessed\.", text)
    assert [int(count) for count in found.groups()] == [
        len(statuses),
        statuses.count("measured"),
        statuses.count("guessed"),
    ]
    assert (statuses.count("measured") > len(statuses) / 2) == (platform == "cpu-2core")


@pytest.mark.parametrize(
    ("always", "never", "said"),
    [(True, False, "faster at every"), (False, True, "slower at every"), (False, False, None)],
)
def test_what_holds_at_every_acceptance_is_said_and_nothing_where_it_changes(lunar_lake, always, never, said):
    needed = replace(lunar_lake.needed, at=None, low=None, high=None, always=always, never=never)
    text = advice(replace(lunar_lake, needed=needed)).text
    assert ("at every acceptance" in text) == (said is not None)
    assert said is None or said in text


@pytest.mark.parametrize(
    ("platform", "weights", "said"),
    [
        ("lunar-lake", "int4", False),
        ("lunar-lake", "bf16", "By the sheet of npu: weights in int4 or nf4; predicted as if in bf16."),
        ("m4-max", "int4", "By the sheet of npu: weights in fp16 or int8; predicted as if in int4."),
        ("m4-max", "bf16", False),
    ],
)
def test_weights_that_a_device_does_not_run_by_its_sheet_are_named(platform, weights, said):
    text = "\n".join(advice(plan_platform(question(platform, weights=weights, target="qwen3-4b"))).warnings)
    assert said in text if said else "By the sheet" not in text


def test_a_draft_that_is_never_right_does_not_pay_and_the_advice_is_to_leave_it_out():
    plan = plan_platform(question(rate=0.0001))
    assert plan.pays == "no"
    assert advice(plan).next_step[0].startswith("leave the draft out")
    assert {one.schedule.root_source for one in plan.ranking} == {None, "draft", "exit"}, "with the default exits"
    assert plan.question.acceptance.low == plan.question.acceptance.high == 0.0001


def test_where_the_answer_turns_on_an_acceptance_that_nobody_measured_it_is_not_told(lunar_lake):
    needed, rate = lunar_lake.needed, lunar_lake.question.acceptance
    doubtful = replace(rate, low=needed.high * 0.9)
    plan = replace(lunar_lake, question=replace(lunar_lake.question, acceptance=doubtful))
    assert (lunar_lake.pays, plan.pays) == ("yes", "cannot_tell")
    assert advice(plan).next_step[0].startswith("measure the acceptance")


def test_acceptance_from_which_on_it_pays_lies_between_never_and_always_right(lunar_lake):
    needed = lunar_lake.needed
    assert needed.low <= needed.at <= needed.high
    below = plan_platform(question(rate=needed.low / 2))
    above = plan_platform(question(rate=min(0.95, 2 * needed.high)))
    assert below.drafting.speedup < 1 < above.drafting.speedup


def test_an_npu_as_fast_as_the_gpu_on_a_memory_that_serves_both_becomes_the_place_of_the_draft():
    changes = {"gpu.memory_cap_bytes_per_s": 5e10, "npu.memory_cap_bytes_per_s": 4.9e10, "npu.dispatch_s": 1e-5}
    plan = plan_platform(question(changes=changes | {"npu.dispatch_of": "graph"}))
    assert plan.drafting.pair == LanePair("gpu", "npu")


def test_models_that_do_not_fit_are_an_error_with_numbers():
    with pytest.raises(PlanError, match=r"fits nowhere.*memory has to hold 141\.2 GB .*28\.8 GB are usable"):
        plan_platform(question(target="llama-3.1-70b", draft="llama-3.2-1b", weights="bf16"))


def test_reasons_why_nothing_fits_are_sentences_of_their_own():
    with pytest.raises(
        PlanError,
        match=r"cpu: .*or give it\. plain decoding on gpu: gpu has to hold .* usable: too little\. --weights int8 .*",
    ):
        plan_platform(question("h200", weights="bf16", changes={"gpu.memory_bytes": 2e10}))


def test_a_reason_to_leave_schedules_out_is_given_once_with_their_number():
    plan = plan_platform(question(given=PositionRates((0.9, 0.5, 0.5, 0.5, 0.5))))
    (reason,) = (reason for reason in plan.left_out if "windows of more" in reason)
    pairs = {one.pair for one in plan.ranking if one.schedule.num_speculative_tokens}
    count = sum(one.num_speculative_tokens == 7 for pair in pairs for one in schedules_on(pair, plan.question, "x"))
    assert reason == f"{count} schedules: windows of more than 5 tokens are not assumed (by rates)"


def test_a_memory_too_small_for_both_models_leaves_out_only_the_places_that_share_it():
    plan = plan_platform(question("h100x2", weights="bf16", changes={"gpu0.memory_bytes": 3.14e10}))
    assert {one.pair for one in plan.ranking} & {LanePair("gpu0", "gpu1")}
    assert LanePair("gpu0", "gpu0", in_turn=True) not in {one.pair for one in plan.ranking if one.schedule.draft_lane}
    assert any("both on gpu0" in reason and "too little" in reason for reason in plan.left_out)


def test_the_page_says_the_answer_and_every_source(lunar_lake):
    page = render_page(lunar_lake)
    assert "Yes, speculation pays here" in page
    assert all(one.field in page for one in lunar_lake.assumptions)
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("platform", ["m4-max", "h100x2", "m2-ultra-x8"])
def test_the_other_platforms_answer_too(platform):
    plan = plan_platform(question(platform, weights="int4" if platform == "m4-max" else "bf16"))
    assert plan.pays == ("cannot_tell" if platform == "m4-max" else "yes"), (
        "llama.cpp's rows on Metal are not known so well"
    )
    assert len(advice(plan).lines) == 3
    if platform == "m2-ultra-x8":  # the paper's machine drafts next to its target and not in turn
        assert plan.drafting.schedule.traits.overlaps
        assert best_on(plan, "npu0").schedule.traits.overlaps
