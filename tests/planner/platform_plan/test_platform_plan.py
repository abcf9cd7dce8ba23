import re
from dataclasses import replace
from math import exp

import pytest

from decoding.errors import PlanError
from hwprofiles.overrides import with_devices
from hwprofiles.platform import load_platform
from mirrorsd.pair_on_platform import plan_pair
from planner.plan_engines import best_with_engine, engines_of
from planner.platform_plan.advice import advice, held_back
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.platform_plan import AcceptanceNeeded, best_of_each, plan_platform
from planner.platform_plan.schedules import schedules_on
from planner.published.published_gains import ENGINE_ERROR
from planner.row_curve import few_rows_error
from sim.acceptance.assumed import PositionRates
from tests.planner.platform_plan.conftest import question


def best_on(plan, draft):
    return next(one for one in plan.ranking if one.pair.draft == draft and one.schedule.num_speculative_tokens)


def test_lunar_lake_speculates_and_not_with_its_npu_as_public_measurements_have_it(lunar_lake):
    assert lunar_lake.pays == "yes"
    assert lunar_lake.drafting.pair.draft != "npu"
    assert best_on(lunar_lake, "npu").speedup < best_on(lunar_lake, "cpu").speedup
    drafting = [one for one in lunar_lake.speculation if one.pair.draft == "npu" and not one.schedule.traits.overlaps]
    assert max(one.speedup for one in drafting) < 1


def test_the_ranking_holds_plain_turns_and_mirror_with_both_kinds_of_roots(lunar_lake):
    assert {one.schedule.root_source for one in lunar_lake.ranking} == {None, "draft", "exit"}
    assert {one.schedule.method for one in lunar_lake.ranking} == {"autoregressive", "speculative", "mirror"}
    few_rows = "a few rows on Intel Lunar Lake GPU (Arc 140V)"
    plain, drafting = (
        [error.half_width for cause, error in one.prediction.errors.items() if cause.startswith(few_rows)]
        for one in (lunar_lake.plain, lunar_lake.drafting)
    )
    assert not plain
    assert 0 < drafting[0] < lunar_lake.comparison.machine_error


def test_what_engines_make_of_a_gain_is_a_doubt_about_gains_alone(lunar_lake):
    """No engine won where a plan's numbers rule a gain out, so a draft that slows down is refused by them alone."""
    doubt = "what engines make of a gain"
    gains = {one.schedule for one in lunar_lake.ranking if one.tpot_s < lunar_lake.plain.tpot_s}
    assert gains == {one.schedule for one in lunar_lake.ranking if doubt in one.prediction.errors} != set()
    assert lunar_lake.comparison.low < lunar_lake.comparison.value * exp(-ENGINE_ERROR)
    assert any(lunar_lake.compared(one).outcome == "slower" for one in lunar_lake.speculation)


def test_a_target_that_is_much_slower_elsewhere_is_left_out_by_name(lunar_lake):
    (npu,) = (
        reason for reason in lunar_lake.left_out if reason.startswith("drafts for a target on npu: a token takes")
    )
    slower, tokens = re.search(r"takes ([\d.]+)× .* round yields at most ([\d.]+) tokens", npu).groups()
    assert float(slower) > float(tokens)
    assert "npu" not in {one.pair.target for one in lunar_lake.ranking if one.schedule.num_speculative_tokens}


def test_the_advice_says_what_the_chosen_place_has_to_hold(lunar_lake):
    (memory,) = advice(lunar_lake).facts["Memory"]
    assert re.fullmatch(r"both on gpu: memory has to hold 9\.\d GB \(.*\); 28\.8 GB are usable\.", memory)


def test_other_places_are_told_in_the_order_of_their_fastest_methods(lunar_lake):
    told = advice(lunar_lake).facts["Other placements, speed relative to the best"]
    by_time = list(dict.fromkeys(str(one.pair) for one in best_of_each(lunar_lake.speculation)))
    assert [line.partition(" at ")[0] for line in told] == by_time[1:]
    assert len(told) > 1


@pytest.mark.parametrize("platform", ["lunar-lake", "cpu-2core"])
def test_the_advice_counts_what_is_measured_and_what_is_guessed(platform):
    """Of this project's own machine most numbers are measured, and of no other."""
    plan = plan_platform(question(platform))
    statuses = [one.status for one in plan.assumptions]
    counts = [len(statuses), statuses.count("measured"), statuses.count("guessed")]
    found = re.search(r"The prediction uses (\d+) numbers: (\d+) measured; .*?(\d+) guessed\.", advice(plan).text)
    assert [int(count) for count in found.groups()] == counts
    assert (counts[1] > counts[0] / 2) == (platform == "cpu-2core")


@pytest.mark.parametrize(
    ("always", "never", "ends", "said"),
    [
        (True, False, (None, None), "faster at every acceptance from 5 % to 95 %; here"),
        (True, False, (None, 0.3), "faster at every acceptance from 5 % to 95 %, beyond its interval above 30 %; here"),
        (False, True, (0.6, None), "slower at every acceptance from 5 % to 95 %, beyond its interval below 60 %; here"),
        (False, False, (None, None), ""),
    ],
)
def test_what_holds_at_every_acceptance_is_said_and_nothing_where_it_changes(lunar_lake, always, never, ends, said):
    needed = replace(lunar_lake.needed, at=None, low=ends[0], high=ends[1], always=always, never=never)
    text = advice(replace(lunar_lake, needed=needed)).text
    assert said in text
    assert ("at every acceptance" in text) == bool(said)


def test_a_no_for_want_of_room_says_how_much_is_missing():
    plan = plan_pair("qwen3-32b", "eagle3", "h100-sxm", lengths=(38500, 16))
    (why,) = advice(plan).why
    assert re.match(r"both on gpu: gpu has to hold 77\.\d GB .* 76\.8 GB are usable: too little", why)


@pytest.mark.parametrize(("num", "is_told"), [(6, True), (8, False)])
def test_a_command_of_another_engine_than_the_times_are_of_is_told_so(num, is_told):
    said = "vllm, whose times are predicted, runs nothing here: 64 attention heads cannot be split evenly over 6 GPUs"
    assert (said in advice(plan_pair("llama-3.3-70b", "eagle3", f"{num}xa100", lengths=(64, 32))).text) == is_told


@pytest.mark.parametrize(
    ("draft", "found"), [("qwen3-1.7b", "both on gpus (1"), ("qwen2.5-0.5b", "plain decoding, target on gpus")]
)
def test_the_command_is_of_the_engine_whose_times_are_told(draft, found):
    """llama.cpp could run the draft on one GPU of four, but not in those times; 14 heads are no share for each."""
    plan = plan_pair("qwen3-32b", draft, "4xh100", lengths=(64, 32))
    assert plan.recommended.place == "target on gpus, draft on gpu0"
    assert [one.engine for one in engines_of(plan, plan.recommended)] == ["llama.cpp"]
    assert f"vllm, whose times are predicted, does not run that: the best that it runs is {found}" in advice(plan).text
    assert engines_of(plan, best_with_engine(plan))[0].engine == "vllm"
    assert "vllm serve TARGET --tensor-parallel-size 4" in render_page(plan)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.7, 0.9, "at 80 % acceptance (70 % to 90 %); here"),
        (0.7, None, "at 80 % acceptance (90 % interval: from 70 %); here"),
        (None, 0.9, "at 80 % acceptance (90 % interval: up to 90 %); here"),
        (None, None, "at 80 % acceptance; here"),
    ],
)
def test_an_end_of_the_break_even_acceptance_is_said_where_the_other_is_not_known(lunar_lake, low, high, said):
    needed = replace(lunar_lake.needed, at=0.8, low=low, high=high)
    assert said in advice(replace(lunar_lake, needed=needed)).text


def test_heads_that_are_several_are_taken_for_granted_together():
    plan = plan_pair("qwen3-8b", "medusa", "lunar-lake", lengths=(64, 32))
    assert "Assumed: trained Qwen3-8B Medusa heads." in advice(plan).warnings


@pytest.mark.parametrize(
    ("platform", "weights", "said"),
    [
        ("lunar-lake", "bf16", "Data sheet of npu: only weights in int4 or nf4; predicted as if it ran bf16."),
        ("m4-max", "bf16", None),
    ],
)
def test_weights_that_a_device_does_not_run_by_its_sheet_are_named(platform, weights, said):
    plan = plan_platform(question(platform, weights=weights, models=("qwen3-4b", "qwen3-0.6b")))
    text = "\n".join(advice(plan).warnings)
    assert said in text if said else "Data sheet" not in text


def test_where_the_answer_turns_on_an_acceptance_that_nobody_measured_it_is_not_told(lunar_lake):
    doubtful = replace(lunar_lake.question.acceptance, low=0.2)
    plan = replace(lunar_lake, question=replace(lunar_lake.question, acceptance=doubtful))
    assert (lunar_lake.pays, plan.pays) == ("yes", "cannot_tell")
    assert advice(plan).next_step[0].startswith("measure the acceptance")
    assert plan.comparison.low > 1, "an interval that contradicts the answer unless its headline says what is not in it"
    assert advice(plan).headline.endswith("; the uncertainty of the acceptance comes on top.")
    assert "on top" not in advice(lunar_lake).headline


def test_the_break_even_ends_where_the_ratio_that_is_told_does(lunar_lake):
    at_end = plan_platform(question(rate=lunar_lake.needed.high))
    assert at_end.comparison.low == pytest.approx(1, abs=0.02)
    assert plan_platform(question(rate=lunar_lake.needed.high + 0.05)).pays == "yes"
    assert plan_platform(question(rate=lunar_lake.needed.high - 0.05)).pays == "cannot_tell"


@pytest.mark.parametrize(
    ("at", "end", "error", "is_cleared"),
    [
        (0.3, 0.4, 0.1, True),  # 0.3 away, and the errors together make 0.14
        (0.3, 0.5, 0.25, False),  # 0.3 away, together 0.32
        (0.3, None, 0.5, True),
        (None, 0.1, 0.1, True),
        (None, 0.55, 0.3, False),
    ],
)
def test_todays_acceptance_and_the_break_even_are_compared_with_both_errors(at, end, error, is_cleared):
    needed = AcceptanceNeeded(now=0.6, at=at, low=None, high=end, always=at is None)
    assert needed.is_cleared(end, error) == is_cleared


def test_an_npu_as_fast_as_the_gpu_on_a_memory_that_serves_both_becomes_the_place_of_the_draft():
    changes = {"gpu.memory_cap_bytes_per_s": 5e10, "npu.memory_cap_bytes_per_s": 4.9e10, "npu.dispatch_s": 1e-5}
    plan = plan_platform(question(changes=changes | {"npu.dispatch_of": "graph"}))
    assert plan.drafting.pair == LanePair("gpu", "npu")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"models": ("llama-3.1-70b", "llama-3.2-1b")},
            r": gpu, npu and cpu: memory has to hold 141\.2 GB [^:]* usable: too little\. --weights q2_k would",
        ),
        (
            {"platform": "h200", "changes": {"gpu.memory_bytes": 2e10}},
            r"cpu: .*or give it\. gpu has to hold .* usable: too little\. --weights fp8 .*",
        ),
    ],
)
def test_models_that_fit_nowhere_are_refused_with_numbers_in_sentences_of_their_own(asked, said):
    with pytest.raises(PlanError, match=said):
        plan_platform(question(weights="bf16", **asked))


def test_a_reason_to_leave_schedules_out_is_given_once_with_their_number():
    plan = plan_platform(question(given=PositionRates((0.9, 0.5, 0.5, 0.5, 0.5))))
    (reason,) = (reason for reason in plan.left_out if "windows of more" in reason)
    pairs = {one.pair for one in plan.ranking if one.schedule.num_speculative_tokens}
    count = sum(one.num_speculative_tokens == 7 for pair in pairs for one in schedules_on(pair, plan.question, "x"))
    assert reason == f"{count} schedules: windows of more than 5 tokens are not assumed (`rates` of a YAML file)"


def test_a_memory_too_small_for_both_models_leaves_out_only_the_places_that_share_it():
    plan = plan_platform(question("h100x2", weights="bf16", changes={"gpu0.memory_bytes": 3.14e10}))
    places = {one.pair for one in plan.ranking if one.schedule.draft_lane}
    assert LanePair("gpu0", "gpu1") in places
    assert LanePair.alone("gpu0") not in places
    assert any("both on gpu0" in reason and "too little" in reason for reason in plan.left_out)


def test_what_a_few_rows_may_cost_in_a_group_is_that_of_a_members_share(h100x2):
    lane = h100x2.profile.lane("gpus")
    one = next(one for one in h100x2.speculation if one.pair == LanePair.alone("gpus"))
    cost, context = h100x2.costs["gpus"], h100x2.question.record.contexts.start
    told = one.prediction.errors[f"a few rows on {lane.errs_as}"].relative_error
    assert told == few_rows_error(cost, one.schedule.num_rows, context)
    assert told < few_rows_error(replace(cost, num_devices=1), one.schedule.num_rows, context)


def test_the_page_says_the_answer_and_every_source(lunar_lake):
    page = render_page(lunar_lake)
    assert "Yes, speculation pays here" in page
    assert all(one.field in page for one in lunar_lake.assumptions)
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("platform", "weights", "pays"),
    [("m4-max", "int4", "cannot_tell"), ("h100x2", "bf16", "cannot_tell"), ("m2-ultra-x8", "bf16", "yes")],
)
def test_the_other_platforms_answer_too(platform, weights, pays):
    """A gain of less than 1.4 times is one that engines may turn into a loss."""
    plan = plan_platform(question(platform, weights=weights))
    assert plan.pays == pays
    assert len(advice(plan).lines) == 3
    if platform == "m2-ultra-x8":  # the paper's machine drafts next to its target and not in turn
        assert plan.drafting.schedule.traits.overlaps
        assert best_on(plan, "npu0").schedule.traits.overlaps


def test_the_interval_holds_what_a_slower_computing_device_would_do():
    """How fast the CPU computes is guessed, and at half of that three rows take as long as two passes."""
    models = ("llama-3.1-70b", "llama-3.2-1b")
    plan, slower = (
        plan_platform(question("rtx4090", weights="q4_k_m", models=models, changes=changes))
        for changes in (None, {"cpu.bf16_flops": 5e11})
    )
    same = next(one for one in slower.ranking if one.schedule == plan.drafting.schedule)
    assert plan.comparison.low < slower.compared(same).value < 0.7 * plan.comparison.value
    assert plan.pays == "cannot_tell"


@pytest.mark.parametrize(
    ("label", "told"),
    [("rtx3060 6gb", ["6 GB is taken to read as fast as the one with 12 GB"]), ("rtx3060 12gb", []), ("rtx3060", [])],
)
@pytest.mark.parametrize("base", [None, "rtx4090"], ids=["a machine", "added"])
def test_a_card_with_another_memory_than_its_sheets_is_told_to_have_the_sheets_bandwidth(label, told, base):
    platform = label if base is None else with_devices(load_platform(base), [label])
    warnings = advice(plan_platform(question(platform, models=("qwen3-4b", "qwen3-0.6b"), lengths=(64, 24)))).warnings
    assert [one for one in warnings if "as fast as the one with" in one] == [
        f"NVIDIA GeForce RTX 3060 (12 GB) with {one}: makers often cut both." for one in told
    ]


@pytest.mark.parametrize(
    ("cards", "weights", "unused"),
    [
        (("rtx4090", "rtx3090"), "awq-int4", ["rtx3090"]),
        (("rtx3090", "2xrtx4090"), "awq-int4", ["gpu"]),
        (("h100-sxm", "a100-80-sxm"), "bf16", ["a100-80-sxm"]),
        (("rtx4090", "rtx4090"), "awq-int4", []),
        (("rtx4090", "rtx3090"), "q4_k_m", []),
    ],
)
def test_a_card_that_nothing_is_split_over_is_told_to_be_unused(cards, weights, unused):
    platform, models = with_devices(load_platform(cards[0]), cards[1:]), ("qwen3-14b", "qwen3-0.6b")
    plan = plan_platform(question(platform, weights=weights, models=models, lengths=(64, 24)))
    told = [one for one in advice(plan).warnings if one.startswith("Unused: ")]
    why = f"since a split of {weights} weights over different cards is not planned"
    assert told == [f"Unused: {one}, {why}." for one in unused]


@pytest.mark.parametrize(("label", "of"), [("2xrtx3060", " on each"), ("rtx3060", "")])
def test_what_a_group_cannot_hold_is_told_of_each_card(label, of):
    plan = plan_platform(question(label, weights="q4_k_m", models=("llama-3.1-70b", "llama-3.2-1b"), lengths=(64, 24)))
    assert f"GB usable{of}; --weights" in held_back(plan) or f"GB usable{of}; no common" in held_back(plan)
