from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.prompts import EncodedPrompt
from decoding.errors import ConfigError, RecordError
from decoding.recorded.prompt_record import hash_of_ids
from decoding.schedule import Schedule
from hwprofiles.profile import save_profile
from mirrorsd.compare.measured_answer import put_together
from mirrorsd.compare.runs import Measured
from mirrorsd.compare.validate_schedules import MeasuredBasis, by_schedule, matching_prompts
from planner.search.search import rank
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import acceptance_record, machine

SCHEDULES = [
    Schedule(method="autoregressive", target_lane="target"),
    Schedule(method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=2),
    Schedule(method="speculative", target_lane="both", draft_lane="both", num_speculative_tokens=3),
]
NAMES = ["a", "b", "c"]


@pytest.fixture
def evidence():
    profile, record = machine(), acceptance_record(num_prompts=3, num_tokens=24)
    ranked = {one.schedule: one for one in rank(SCHEDULES, profile, record).candidates}
    return profile, record, [ranked[schedule] for schedule in SCHEDULES]


def compared(evidence, measured):
    profile, record, candidates = evidence
    return put_together(candidates, NAMES, measured, profile, record)


def test_predictions_cover_exactly_the_prompts_that_were_run(evidence):
    profile, record, _ = evidence
    measured = made_up_runs(SCHEDULES, profile, replace(record, prompts=record.prompts[:2]), slower=2.0)
    results, comparisons = compared(evidence, measured)
    assert [result.candidate.schedule for result in results] == SCHEDULES
    assert [result.candidate.prediction.num_tokens for result in results] == [48, 48, 48]
    assert [one.error for one in results] == pytest.approx([-0.5] * 3)
    assert all(one.same_rounds and one.num_equal == 2 for one in comparisons)


def test_what_the_machine_does_by_itself_is_no_error_at_the_speed_of_the_anchors(evidence):
    """Two speeds, and a prediction that is right at either: as calibrated it looks wrong."""
    profile, record, _ = evidence
    results, _ = compared(evidence, made_up_runs(SCHEDULES, profile, record, paces=[1.0, 1.6, 1.6]))
    assert [one.error_at_anchor for one in results] == pytest.approx([0.0] * 3)
    assert all(one.error < -0.2 for one in results)


def test_what_the_prediction_misses_is_still_one(evidence):
    profile, record, _ = evidence
    measured = made_up_runs(SCHEDULES, profile, record, paces=[1.0, 1.6, 0.9], slower=1.25)
    results, _ = compared(evidence, measured)
    assert [one.error_at_anchor for one in results] == pytest.approx([-0.2] * 3)


def test_a_target_that_chose_another_token_is_told_from_a_draft_that_drafted_another(evidence):
    profile, record, _ = evidence
    margins = record.prompts[0].text * 0 + 0.0625
    record = replace(record, prompts=(replace(record.prompts[0], margins=margins), *record.prompts[1:]))
    measured = made_up_runs(SCHEDULES, profile, record)
    (plain, *others), speculative, pooled = measured.runs
    plain.trace.rounds[5] = plain.trace.rounds[5]._replace(outcome=(0, 999))
    tokens = (*plain.tokens[:5], 999, *plain.tokens[6:])
    rounds = speculative[0].trace.rounds
    rounds[1] = rounds[1]._replace(num_drafted=1)
    measured = Measured(runs=((replace(plain, tokens=tokens), *others), speculative, pooled))
    _, comparisons = compared((profile, record, evidence[2]), measured)
    (by_target,), (by_draft,), none = (one.divergences for one in comparisons)
    assert (by_target.by, by_target.round, by_target.margin) == ("target", 5, pytest.approx(0.0625))
    assert (by_draft.by, by_draft.round, by_draft.margin) == ("draft", 1, None)
    assert none == ()


def test_a_schedule_of_two_files_is_run_once_and_the_second_file_is_named():
    plain, drafting, _ = SCHEDULES
    one, two, again = Path("out/one.yaml"), Path("out/two.yaml"), Path("again.yaml")
    paths, repeated = by_schedule({one: plain, two: drafting, again: plain})
    assert paths == {plain: one, drafting: two}
    assert repeated == ["again.yaml has the same schedule as out/one.yaml, which was run once for both."]


def test_prompts_come_in_the_order_of_the_record_and_those_missing_or_with_other_tokens_are_named():
    same, second, other = (1, 1, 1), (1, 1, 3), (1, 1, 2)
    record = acceptance_record(num_prompts=2, num_tokens=24)
    hashed = (
        replace(one, prompt_hash=hash_of_ids(ids)) for one, ids in zip(record.prompts, (same, second), strict=True)
    )
    known, names = replace(record, prompts=tuple(hashed)), [one.name for one in record.prompts]
    wanted = tuple(EncodedPrompt(name, "", ids) for name, ids in zip(names, (same, second), strict=True))
    assert matching_prompts(wanted[::-1], known) == wanted
    moved = [EncodedPrompt(names[0], "", other), EncodedPrompt("questions-2", "", same), wanted[1]]
    assert matching_prompts(moved, known) == wanted, "a line later, in a renamed file"
    with pytest.raises(RecordError, match="prompt 'prompt 0' was recorded with other tokens"):
        matching_prompts([EncodedPrompt(names[0], "", other), wanted[1]], known)
    with pytest.raises(RecordError, match="'prompt 0' is not among the 1 prompts given"):
        matching_prompts(wanted[1:], known)
    with pytest.raises(RecordError, match="'prompt 0' has no hash of its tokens in the record"):
        matching_prompts(wanted, record)


def test_a_prompt_that_was_recorded_under_two_names_is_one_to_run(tmp_path):
    record, path = acceptance_record(num_prompts=3, num_tokens=24), tmp_path / "r.npz"
    hashes = hash_of_ids([1]), hash_of_ids([2]), hash_of_ids([1])
    repeated = zip(record.prompts, hashes, strict=True)
    replace(record, prompts=tuple(replace(one, prompt_hash=own) for one, own in repeated)).save(path)
    save_profile(machine(), tmp_path / "p.yaml")
    evidence = MeasuredBasis.load(tmp_path / "p.yaml", path)
    assert [one.name for one in evidence.record.prompts] == [one.name for one in record.prompts[:2]]
    assert evidence.repeats_in_words == f"{path} has 1 further text of the same prompts; each prompt was run once."
    assert len(record.distinct.prompts) == 3, "without hashes nobody knows"


def test_a_record_without_hashes_is_refused_before_anything_is_run(tmp_path):
    record, path = acceptance_record(num_prompts=2, num_tokens=24), tmp_path / "r.npz"
    first, last = record.prompts
    replace(record, prompts=(replace(first, prompt_hash=hash_of_ids([1])), last)).save(path)
    save_profile(machine(), tmp_path / "p.yaml")
    told = "has no hashes of its prompts, by which the prompts to run are found; record it again (`mirrorsd record`)"
    with pytest.raises(ConfigError) as refused:
        MeasuredBasis.load(tmp_path / "p.yaml", path)
    assert str(refused.value) == f"{path}: {told}"
