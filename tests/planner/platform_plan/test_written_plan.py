"""What a plan leaves in files simulates to what was predicted, event by event, and names lanes that run."""

from dataclasses import replace

import pytest

from decoding.errors import ConfigError, OutOfRangeError
from hwprofiles.profile import load_profile, save_profile
from mirrorsd.pair_on_platform import PlannedMachine, plan_pair, runnable_drafter
from mirrorsd.simulation import predict, simulate
from planner.paired_ratio import ratio_of
from planner.platform_plan.measured_run import play
from planner.platform_plan.written_plan import runnable_schedule, save_acceptance, written_profile
from planner.search.space import SearchSpace, enumerate_schedules
from sim.acceptance.assumed import Bernoulli, parse_acceptance
from sim.batch_prediction import BatchPredictor

NPU = {"npu.row_buckets": "[1, 4, 8, 16, 32, 64]"}


def planned(platform, *, target="qwen3-14b", draft="qwen3-0.6b", acceptance=None, changes=None, lengths=(250, 12)):
    return plan_pair(target, draft, platform, acceptance=acceptance, lengths=lengths, changes=changes)


@pytest.fixture(scope="module")
def usual():
    return planned("lunar-lake")


@pytest.fixture(scope="module")
def sure():
    return planned("lunar-lake", acceptance=Bernoulli(0.7))


@pytest.mark.parametrize(
    "asked",
    [
        {"platform": "lunar-lake", "changes": NPU},
        {"platform": "h100x2"},
        {"platform": "lunar-lake", "acceptance": Bernoulli(0.0)},
        {"platform": PlannedMachine("lunar-lake", ["rtx4090"]), "target": "llama-3.1-8b", "draft": "llama-3.2-1b"},
    ],
    ids=["one memory", "groups", "plain", "a card beside"],
)
def test_files_of_a_plan_simulate_to_what_it_predicts(asked, tmp_path):
    plan = planned(**asked)
    save_profile(written_profile(plan), tmp_path / "profile.yaml")
    save_acceptance(plan, tmp_path / "acceptance.yaml")
    profile, acceptance = load_profile(tmp_path / "profile.yaml"), parse_acceptance(str(tmp_path / "acceptance.yaml"))
    schedule = runnable_schedule(plan)
    assert predict(schedule, profile, acceptance).tpot_s == pytest.approx(plan.recommended.tpot_s, rel=1e-6)
    traces = simulate(schedule, profile, acceptance, trace=False)
    tpot_s = sum(trace.decode_s for trace in traces) / plan.recommended.prediction.num_tokens
    assert tpot_s == pytest.approx(plan.recommended.tpot_s, rel=1e-6)
    every = [one for one in plan.ranking if one.schedule.draft_streams == 0][:: max(1, len(plan.ranking) // 12)]
    for one in every:
        assert predict(one.schedule, profile, acceptance).tpot_s == pytest.approx(one.tpot_s, rel=1e-6), one.schedule


@pytest.mark.parametrize(
    "asked",
    [
        {"platform": "lunar-lake", "target": "qwen3-8b", "changes": NPU},
        {"platform": "gaudi3", "target": "qwen3-1.7b"},
        {"platform": "8xh200", "target": "deepseek-v3", "draft": "mtp"},
        {"platform": "h200", "target": "gemma-3-27b", "draft": "gemma-3-1b"},
        {"platform": "tt-n300", "target": "qwen3.5-9b", "draft": "qwen3.5-0.8b"},
    ],
    ids=["steps of contexts", "starts ahead", "latent attention", "full windows", "states"],
)
def test_batches_on_these_files_are_those_of_the_plan(asked):
    """Of two sequences too, whose caches, starts and states no growth of a table with the context would tell."""
    plan = planned(**asked)
    record = plan.question.record
    told, found = BatchPredictor(plan.profile, record, costs=plan.costs), BatchPredictor(written_profile(plan), record)
    in_turn = {one.pair: one.schedule for one in reversed(plan.ranking) if not one.schedule.traits.overlaps}
    for schedule in in_turn.values():
        for size in (2, 7):
            expected = told.predict(schedule, size).tokens_per_s
            assert found.predict(schedule, size).tokens_per_s == pytest.approx(expected, rel=1e-9), schedule


def test_files_of_a_plan_know_how_many_positions_models_have():
    plan = planned("h100x2", target="llama-2-7b", draft="llama-68m", lengths=(2040, 4))
    profile, longer = written_profile(plan), {"num_speculative_tokens": 7}
    lane = profile.lane("gpu0")
    assert (lane.layer.most_positions, lane.draft_step.most_positions) == (4096, 2048)
    with pytest.raises(OutOfRangeError, match="positions, and 2048 there are"):
        predict(runnable_schedule(plan).model_copy(update=longer), profile, plan.question.record)


@pytest.mark.parametrize("platform", ["lunar-lake", "cpu-2core"])
def test_a_search_of_these_files_is_as_sure_as_the_plan(platform, sure):
    plan = sure if platform == "lunar-lake" else planned(platform, acceptance=Bernoulli(0.7))
    profile, acceptance = written_profile(plan), plan.question.assumed
    plain = plan.plain.schedule
    lanes = {"target_lane": plan.question.platform.lane_name(plain.target_lane)}
    best, other = (
        predict(one, profile, acceptance) for one in (runnable_schedule(plan), plain.model_copy(update=lanes))
    )
    assert ratio_of(best, other).machine_error == pytest.approx(plan.comparison.machine_error, rel=0.02)


def test_a_target_is_searched_on_the_first_stream_and_a_draft_on_the_second_beside_its_target_alone(sure):
    """A plan that recommends it is not contradicted by a search of its files."""
    space = SearchSpace(methods=("speculative", "mirror"), root_sources=("draft",), windows=(2,), uneven_roots=())
    found = enumerate_schedules(space, written_profile(sure), sure.question.record)
    lanes = {(one.target_lane, one.draft_lane, one.method) for one in found}
    assert ("gpu", "cpu", "speculative") in lanes
    assert {one for one in lanes if "gpu#2" in one} == {("gpu", "gpu#2", "mirror")}


def test_recorded_acceptance_is_not_written_again(tmp_path, usual):
    recorded = replace(usual, question=replace(usual.question, assumed=None))
    with pytest.raises(ConfigError, match="was recorded"):
        save_acceptance(recorded, tmp_path / "a.yaml")


@pytest.mark.parametrize(("draft", "name"), [("qwen3-0.6b", None), ("owner/model", "owner/model")])
def test_a_shape_is_no_drafter_that_runs(draft, name, tmp_path):
    assert runnable_drafter(draft) == name
    assert runnable_drafter(tmp_path) == str(tmp_path.resolve())


def test_events_confirm_an_answer_and_a_disagreement_is_said(usual):
    played = play(usual)
    assert played.agrees
    assert played.in_words is None
    assert abs(played.relative_difference) < 1e-6
    assert played.plain_tpot_s == pytest.approx(usual.plain.tpot_s, rel=1e-9)
    wrong = replace(played, tpot_s=2 * played.tpot_s, relative_difference=1.0)
    assert not wrong.agrees
    assert "(+100.0 %)" in wrong.in_words
