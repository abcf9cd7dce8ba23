"""Which window is best with how many sequences at once, on a machine that is not here."""

import re
from contextlib import suppress
from dataclasses import replace

import pytest

from decoding.errors import OutOfRangeError
from hwprofiles.engines import EAGER, platform_run_by
from hwprofiles.platform import load_platform
from mirrorsd.pair_on_platform import plan_pair
from mirrorsd.plan_entry import batch_entry
from planner.plan_engines import engines_of_batch
from planner.platform_plan.advice import advice
from planner.platform_plan.batches import BatchPlan, _asked, plan_batches
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.memory_fit import needs_of
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.platform_plan import plan_platform
from sim.acceptance.assumed import Bernoulli
from sim.batch_prediction import BatchPredictor
from tests.planner.platform_plan.conftest import question


def planned(**asked):
    return plan_platform(question(**{"lengths": (64, 24)} | asked))


@pytest.fixture(scope="module")
def plan():
    return planned()


@pytest.fixture(scope="module")
def batches(plan):
    return plan_batches(plan, (64, 1, 8))


def test_larger_batches_want_shorter_windows_and_at_last_none(batches):
    assert list(batches.choices) == [1, 8, 64]
    windows = [choice.best.schedule.num_speculative_tokens for choice in batches.choices.values()]
    assert windows == sorted(windows, reverse=True)
    assert (windows[0] > 0, windows[-1]) == (True, 0)
    assert batches.switch_off_at == 64
    plain = [choice.plain for choice in batches.choices.values()]
    assert plain == sorted(plain, key=lambda one: one.tokens_per_s) == sorted(plain, key=lambda one: one.tpot_s)


def test_what_an_answer_holds_is_told_in_a_line_each(plan, batches):
    for one in (batches, advice(plan), plan.question, plan.question.platform, plan.machine):
        assert repr(one).startswith(f"<{type(one).__name__}")
        assert len(repr(one)) < 250
        assert "\n" not in repr(one)


def test_servers_are_answered_for_as_many_as_they_take():
    large = plan_batches(planned(platform="h200"), (128, 256)).choices
    assert large[256].plain.tokens_per_s > 1.1 * large[128].plain.tokens_per_s
    assert large[256].speedup < large[128].speedup


def test_no_schedule_is_much_faster_than_its_estimate_or_than_those_that_are_played():
    """After 2,000 tokens caches make a target's pass for eight sequences much longer, and a miss hardly."""
    plan = planned(lengths=(2000, 12))
    predictor = BatchPredictor(plan.profile, plan.question.record, costs=plan.costs)
    speeds = []
    for one in _asked(plan.ranking):
        with suppress(OutOfRangeError):
            speeds.append(predictor.predict(one.schedule, 8).tokens_per_s)
            more = 1.25 if one.schedule.traits.overlaps else 1.05
            assert speeds[-1] <= more * predictor.estimate(one.schedule, 8, one.prediction)
    assert len(speeds) > 10
    assert plan_batches(plan, (8,)).choices[8].drafting.tokens_per_s >= 0.98 * max(speeds)


def test_of_one_sequence_in_turn_it_is_what_the_plan_says(plan, batches):
    alone = batches.choices[1]
    assert 1 / alone.plain.tokens_per_s == pytest.approx(plan.plain.tpot_s, rel=1e-3)
    same = next(one for one in plan.ranking if one.schedule == alone.drafting.schedule)
    assert not same.schedule.traits.overlaps
    assert 1 / alone.drafting.tokens_per_s == pytest.approx(same.tpot_s, rel=1e-3)


def test_a_draft_with_streams_is_asked_with_them_and_without():
    found = plan_batches(planned(given=Bernoulli(0.9, stream_rates=(0.9, 0.9))), (2,))
    assert "streams" not in " ".join(found.left_out)
    assert found.choices[2].drafting.schedule.draft_streams == 2


def test_every_batch_is_full(plan):
    """Of 24 texts five at a time the last four are filled up with the first one, which counts once."""
    [choice] = plan_batches(plan, (5,)).choices.values()
    assert choice.plain.num_passes * 5 == 25 * 24
    assert choice.plain.num_tokens == choice.drafting.num_tokens == 24 * 24
    assert (choice.plain.mean_rows, choice.drafting.mean_rows) == (5, 5 * choice.drafting.schedule.num_rows)


def test_mirror_over_a_memory_that_both_lanes_share_is_played_too(plan):
    assert plan.profile.pool_bytes_per_s("gpu", "gpu#2")
    at_once = [one for one in plan.ranking if one.schedule.traits.overlaps]
    choice = plan_batches(replace(plan, ranking=(*at_once, plan.plain)), (2,)).choices[2]
    assert choice.drafting.schedule.traits.overlaps
    assert choice.pair == at_once[0].pair == LanePair("gpu", "gpu#2")


def test_transformers_drafts_for_one_sequence_alone():
    """Of more `assisted generate` is refused, whatever drafts."""
    eager = planned(
        platform=platform_run_by(load_platform("rtx4090"), "transformers"), models=("qwen3-8b", "qwen3-0.6b")
    )
    alone = replace(eager, ranking=tuple(one for one in eager.ranking if one.place in ("both on gpu", "target on gpu")))
    found = plan_batches(alone, (1, 2)).choices
    named = [
        [EAGER in [engine.engine for engine in engines_of_batch(alone, one)] for one in (choice.plain, choice.drafting)]
        for choice in found.values()
    ]
    assert named == [[True, True], [True, False]]
    said = "transformers, whose times are predicted, runs no speculation here at 2."
    assert said in plan_batches(alone, (1, 2)).in_words
    assert said in plan_batches(alone, (2,)).in_words
    assert "whose times are predicted" not in plan_batches(alone, (1,)).in_words


def test_batches_say_what_the_engine_runs_whose_times_these_are_and_vllm_gets_its_table():
    """vLLM has no draft on one GPU of four, which is a little faster."""
    plan = plan_pair("qwen3-32b", "qwen3-1.7b", "4xh100", lengths=(64, 24), weights="bf16")
    found = plan_batches(plan, (1, 8, 128))
    for choice in found.choices.values():
        best, theirs = choice.rows
        assert (str(best.pair), str(theirs.pair)) == ("target on gpus, draft on gpu0", "both on gpus")
        assert engines_of_batch(plan, theirs.drafting)[0].engine == "vllm"
        assert theirs.drafting.tokens_per_s < best.drafting.tokens_per_s
    windows = [choice.by_engine.best_window for choice in found.choices.values()]
    assert windows[0] > windows[-1]
    lengths = f"{windows[0]} at 1, {windows[1]} at 8 and {windows[2] or 'none'} at 128."
    assert f"Best draft length among schedules that vllm runs: {lengths}" in found.in_words
    table = f"[[1, 1, {windows[0]}], [2, 8, {windows[1]}], [9, 128, {windows[2]}]]"
    assert f'"num_speculative_tokens_per_batch_size": {table}' in found.in_words
    assert render_page(plan, batches=found).count("<td>vllm</tr>") == 3
    assert [one["by_engine"]["best_window"] for one in batch_entry(found, plan)["sizes"]] == windows


def test_batches_have_one_row_a_size_where_the_engine_runs_the_best(batches):
    assert all(len(choice.rows) == 1 for choice in batches.choices.values())
    assert "Best draft length among" not in batches.in_words


def test_the_answer_in_words_says_where_to_switch_off(batches):
    assert (
        "none at 64; of these batches, plain decoding is the fastest from 64 sequences at once on." in batches.in_words
    )
    still = BatchPlan(choices={1: batches.choices[1]}, left_out=())
    assert "speculation is still the fastest at 1, the largest of these batches." in still.in_words
    never = BatchPlan(choices={8: batches.choices[64]}, left_out=())
    assert "none at 8; plain decoding is the fastest at all of these batches." in never.in_words
    again = BatchPlan(choices={1: batches.choices[64], 2: batches.choices[1]}, left_out=())
    assert "none at 1 and 3 at 2; speculation is the fastest at 2, the largest of these batches." in again.in_words


def test_plain_decoding_wins_nothing_where_speculation_could_not_be_predicted(batches):
    """That heads do not fit, or that nobody timed so many rows, says nothing of what is faster."""
    unknown = replace(batches.choices[64], drafting=None, pair=None)
    partly = BatchPlan(choices={1: batches.choices[1], 64: unknown}, left_out=())
    assert partly.switch_off_at is None
    assert partly.choices[64].best_window is None
    assert "3 at 1; speculation is still the fastest at 1, the largest for which both were predicted" in partly.in_words
    assert "speculation could not be predicted at 64 (see what is left out)." in partly.in_words
    never = BatchPlan(choices={64: unknown}, left_out=())
    assert never.switch_off_at is None
    assert never.in_words.startswith("Whether plain decoding is the fastest is not known: speculation could not be")


def test_a_ranking_without_speculation_says_why_batches_have_none():
    plan = planned()
    found = plan_batches(replace(plan, ranking=(plan.plain,)), (2,))
    assert found.left_out == ("batches of 2: no speculation that needs no training",)


def test_batches_with_more_rows_than_were_measured_are_told():
    """Curves end at 32 rows, and a kernel law was fitted to 64."""
    found = plan_batches(planned(platform="mi300x", weights="bf16"), (1, 8, 16, 32))
    windows = [choice.best.schedule.num_speculative_tokens for choice in found.choices.values()]
    assert windows == [2, 2, 2, 2]
    told = "From batch size 16 on, passes on gpu have more rows (48) than row curves were measured for (32)"
    assert f"{told}: reading is assumed to slow down no further. Batches are only simulated" in found.in_words
    of_law = planned(platform="h200", weights="bf16")
    assert "more rows" not in plan_batches(of_law, (8,)).in_words
    told = r"From batch size 32 on, passes on gpu have more rows \(\d+\) than the kernel law was fitted to \(64\)"
    assert re.search(told, plan_batches(of_law, (8, 32)).in_words)


@pytest.mark.parametrize(
    "asked",
    [{}, {"platform": "mi300x", "weights": "bf16", "changes": {"gpu.growth_per_row": "0.05"}}],
    ids=["guessed", "given"],
)
def test_a_growth_per_row_is_of_eight_rows_wherever_it_is_from(asked):
    found = plan_batches(planned(**asked), (8,)).in_words
    assert re.search(r"size 8 on, passes on gpu have more rows \(\d+\) than row curves were measured for \(8\)", found)


def test_what_does_not_fit_into_memory_is_left_out_by_size():
    found = plan_batches(planned(changes={"memory.memory_bytes": "-68%"}), (1, 64))
    assert list(found.choices) == [1]
    assert any(one.startswith("batches of 64: both on gpu: memory has to hold") for one in found.left_out)
    assert "batches of 64: no plain decoding to compare with" in found.left_out
    of_group = plan_batches(planned(platform="h100x2", weights="bf16", lengths=(8192, 24)), (64,)).left_out
    assert sum(one.startswith("batches of 64: both on gpus: ") for one in of_group) == 1, "members need the same"


def test_more_sequences_than_the_fast_device_holds_are_told_to_go_on_in_turn():
    """Four of 4,096 tokens do not fit on the card, and 57.6 GB of a CPU hold them; transformers splits no layers."""
    platform = platform_run_by(load_platform("rtx4090+cpu"), "transformers")
    plan = plan_platform(question(platform, lengths=(4096, 24), changes={"gpu.memory_bytes": 10.5e9}))
    found = plan_batches(plan, (1, 4))
    lanes = [choice.plain.schedule.target_lane for choice in found.choices.values()]
    assert lanes == ["gpu", "cpu"]
    assert "4 sequences at once fit only on cpu, where they are slower than 1 at a time on gpu." in found.in_words


def test_plain_decoding_needs_no_room_for_a_draft():
    plan = planned()
    (target,) = {need.needed_bytes for need in needs_of(plan.question, LanePair.alone("gpu"), alone=True)}
    (both,) = {need.needed_bytes for need in needs_of(plan.question, LanePair.alone("gpu"))}
    room = (target + both) / 2 / 0.9
    between = planned(changes={"memory.memory_bytes": room})
    found = plan_batches(between, (1,))
    assert 1 / found.choices[1].plain.tokens_per_s == pytest.approx(between.plain.tpot_s, rel=1e-3)
    assert found.choices[1].drafting is None


def test_a_device_that_is_compiled_for_fewer_rows_is_left_out_by_name(batches):
    (of_64,) = (one for one in batches.left_out if "batches of 64" in one and "npu" in one)
    assert "compiled for at most 128 rows" in of_64


def test_the_page_has_a_row_for_every_size(plan, batches):
    page = render_page(plan, batches=batches)
    assert "<h2>Batches" in page
    assert all(choice.name in page for choice in batches.choices.values())
    assert batches.in_words in page
    assert "<h2>Batches" not in render_page(plan)
    assert "<td>openvino.genai</tr>" in page
    none = BatchPlan(choices={}, left_out=("batches of 256: too little",))
    assert render_page(plan, batches=none).count("batches of 256: too little") == 1


def test_why_no_speculation_is_predicted_where_only_a_slow_lane_holds_a_batch_is_told():
    """Drafts for a target on the CPU were left out since they are too slow for one sequence."""
    platform = platform_run_by(load_platform("rtx3060"), "transformers")
    plan = plan_pair("qwen3-8b", "qwen3-0.6b", platform, lengths=(1024, 128), weights=("int8", None))
    found = plan_batches(plan, (64,))
    assert found.choices[64].plain.schedule.target_lane == "cpu"
    reason = r"batches of 64: drafts for a target on cpu: a token takes \S+ as long there as .*, for one sequence"
    assert [bool(re.fullmatch(reason, one)) for one in found.left_out] == [False, False, False, True]
