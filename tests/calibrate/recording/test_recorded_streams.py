"""What is recorded of a draft's streams predicts every step that it takes for real."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.recording.recorded_models import RecordedModels
from calibrate.recording.recorder import Recorder, RecordSettings
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from runtime.drafters.language_model.branch_set import BranchSet
from runtime.drafters.language_model.model import Rollouts, rollouts_everywhere
from sim.acceptance.replay import Replay
from tests.calibrate.recording.test_recorder import PROMPTS
from tests.runtime.drafters.language_model.test_draft_streams import draft_model
from tests.runtime.drafters.language_model.test_drafter import begin, mirror, run, speculative
from tests.tiny_models import tiny_target

WINDOW = 6
IDS = [5, 17, 3, 44, 8, 8, 60, 1, 29, 12, 33, 7, 20]
START = 3
SETTINGS = RecordSettings(exit_layers=(), max_new_tokens=8, max_window=WINDOW, num_alternatives=3)


def rollouts(model, ids=IDS, features_TE=None) -> Rollouts:
    return rollouts_everywhere(model, ids, start=START, num_tokens=WINDOW, num_alternatives=1, features_TE=features_TE)


def record_of(found: Rollouts, *, with_features: bool) -> AcceptanceRecord:
    """A record of the streams over a text; of the rest nothing is asked here."""
    models = RecordedModels(target_name="t", drafter_name="d", target=tiny_target(), draft=draft_model())
    recorder = Recorder(models, SETTINGS)
    one = recorder.record(PROMPTS[0])
    size = len(found.tokens)
    hits = found.stream_hits.numpy().astype(np.int32)
    fields = {
        "prompt_length": START,
        "text": np.zeros(size, dtype=np.int32),
        "rollouts": found.tokens.numpy().astype(np.int32),
        "feature_rollouts": found.tokens.numpy().astype(np.int32),
        "alternatives": np.zeros((size, 3), dtype=np.int32),
        "stream_hits": np.where(with_features, 0, hits),
        "feature_stream_hits": hits,
        "margins": np.zeros(0, dtype=np.float32),
    }
    return replace(recorder.assemble([one]), prompts=(replace(one, **fields),), max_new_tokens=size)


def guessing(schedule: Schedule, found: Rollouts):
    """Rows of the steps after the first one of the window that follows a place."""
    subject = Replay(record_of(found, with_features=schedule.exit_features)).guessing(schedule)
    return lambda place: [rows for rows in subject.rows_by_step(np.array([place]))[:, 0].tolist() if rows]


@pytest.mark.parametrize("num_streams", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 4, 6])
@pytest.mark.parametrize("with_features", [False, True])
def test_steps_of_fresh_rollouts(num_streams, window, with_features):
    model = draft_model(with_features=with_features)
    features = torch.randn(len(IDS), 32, generator=torch.Generator().manual_seed(1)) if with_features else None
    schedule = speculative(window, draft_streams=num_streams, exit_features=with_features)
    rows_after = guessing(schedule, rollouts(model, IDS, features))
    for length in range(START, len(IDS)):
        known = features[: length - 1] if with_features else None
        drafter = begin(model, schedule, IDS[:START], features_TE=known[: START - 1] if with_features else None)
        rows, _ = run(drafter.rollout())
        if length > START:
            committed = IDS[START:length]
            rows, _ = run(drafter.rollout(committed, known[START - 1 :] if with_features else None))
        assert rows[1:] == rows_after(length - START)


def test_some_guesses_of_these_models_are_right_and_some_wrong():
    """Else the other tests would prove little."""
    hits = rollouts(draft_model()).stream_hits[:, :-1]
    assert (hits == 0).any()
    assert (hits > 0).any()


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
@pytest.mark.parametrize("row", [0, 2, 5])
def test_steps_of_a_branch_before_and_after_it_is_taken(num_steps, row):
    model = draft_model()
    schedule = mirror(5, root_source="draft", draft_top_k=1, draft_streams=2)
    drafter = begin(model, schedule, IDS[:START])
    _, window = run(drafter.rollout())
    branches = BranchSet(drafter, schedule)
    # the first step feeds the last drafted token and no branch
    every = [branches.step() for _ in range(1 + num_steps)]
    assert every == [1, 6, 18, 18, 18][: 1 + num_steps]
    root = next(root for root in branches._branches if root.row == row)
    rows, _ = run(branches.take(root)[1])
    text = [*IDS[:START], *window.tokens[:row], root.token]
    rows_after = guessing(schedule, rollouts(model, [*text, 0]))
    assert rows == rows_after(len(text) - START)[num_steps - 1 :]


def test_the_recorder_keeps_them_with_features_and_without():
    models = RecordedModels(
        target_name="t", drafter_name="d", target=tiny_target(), draft=draft_model(with_features=True)
    )
    recorder = Recorder(models, SETTINGS)
    one = recorder.record(PROMPTS[0])
    record = recorder.assemble([one])
    assert record.num_streams == 3
    assert one.stream_hits.shape == one.feature_stream_hits.shape == (len(one.text), WINDOW)
    ids = [*PROMPTS[0].ids, *one.text.tolist()]
    start = len(PROMPTS[0].ids)
    again = rollouts_everywhere(models.draft, ids, start=start, num_tokens=WINDOW, num_alternatives=1, features_TE=None)
    assert one.stream_hits.tolist() == again.stream_hits.tolist()


def test_a_draft_without_streams_has_none(tmp_path):
    model = draft_model()
    model.config = replace(model.config, streams=None)
    model.streams = None
    models = RecordedModels(target_name="t", drafter_name="d", target=tiny_target(), draft=model)
    recorder = Recorder(models, SETTINGS)
    record = recorder.assemble([recorder.record(PROMPTS[0])])
    assert record.num_streams == 0
    assert record.prompts[0].stream_hits.shape == (0, WINDOW)
    record.save(tmp_path / "record.npz")
    assert AcceptanceRecord.load(tmp_path / "record.npz").num_streams == 0
