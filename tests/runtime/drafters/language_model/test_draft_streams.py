"""A draft with streams drafts what it drafts without them, in fewer steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import LaneError, ModelError, ModelFormatError
from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import (
    DrafterFolderConfig,
    add_streams,
    load_draft,
    save_draft,
)
from runtime.storage.weight_folder import load_folder, save_folder
from runtime.wire.measurement import Measurement
from tests.runtime import plain
from tests.runtime.drafters.language_model.test_drafter import PROMPT, SIZES, begin, run, speculative, with_streams
from tests.runtime.drafters.streams.test_model import streams_of_row
from tests.tiny_models import VOCAB_SIZE, tiny_draft, tiny_target


def draft_model(*, with_features=False):
    return with_streams(tiny_draft(tiny_target(), exit_features=(1, 3) if with_features else (), feature_layer=1))


def no_streams():
    return tiny_draft(tiny_target())


class Foreseeing(Drafter):
    """Its streams always guess what it will say itself."""

    def guess(self, entering_1D, count):
        return plain.draft_text(self.model, self.cached, count + 1)[0][1:]


class Misled(Drafter):
    """Its streams never guess what it will say itself: it never says an odd id."""

    def guess(self, entering_1D, count):
        return [1] * count


def start(drafter, schedule, prompt=PROMPT, **options):
    drafter.prefill(prompt, schedule=schedule, capacity=len(prompt) + 60, **options)
    return drafter


@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6),
    num_tokens=st.integers(1, 6),
    num_streams=st.integers(1, 3),
    outcomes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, VOCAB_SIZE - 2)), max_size=3),
)
@settings(deadline=None, max_examples=10)
def test_windows_are_the_drafts_own_token_for_token(prompt, num_tokens, num_streams, outcomes):
    model = draft_model()
    drafter = begin(model, speculative(num_tokens, draft_streams=num_streams), prompt)
    text = list(prompt)
    _, window = run(drafter.rollout())
    for accepted, token in outcomes:
        assert list(window.tokens) == plain.draft_text(model, text, num_tokens)[0]
        # an odd id is none of the draft's own
        committed = [*window.tokens[:accepted], token | 1]
        text += committed
        _, window = run(drafter.rollout(committed))
    assert list(window.tokens) == plain.draft_text(model, text, num_tokens)[0]


def test_guesses_that_are_right_save_steps():
    drafter = start(Foreseeing(draft_model()), speculative(6, draft_streams=2))
    rows, window = run(drafter.rollout())
    assert rows == [1, 3, 2]
    assert list(window.tokens) == plain.draft_text(drafter.model, PROMPT, 6)[0]


def test_guesses_that_are_wrong_cost_rows_and_nothing_else():
    drafter = start(Misled(draft_model()), speculative(5, draft_streams=2))
    rows, window = run(drafter.rollout())
    assert rows == [1, 3, 3, 2, 1]
    assert list(window.tokens) == plain.draft_text(drafter.model, PROMPT, 5)[0]
    assert drafter.cached == [*PROMPT, *window.tokens[:-1]]
    assert drafter.cache.cursor == len(drafter.cached)


def test_guesses_are_the_best_ids_of_the_streams_of_the_row_last_cached(monkeypatch):
    model = draft_model()
    guess, seen = Drafter.guess, []

    def spy(self, entering_1D, count):
        seen.append((list(self.cached), guess(self, entering_1D, count)))
        return seen[-1][1]

    monkeypatch.setattr(Drafter, "guess", spy)
    run(begin(model, speculative(6, draft_streams=3)).rollout())
    assert len(seen) >= 2
    for cached, guesses in seen:
        hidden = streams_of_row(model.decoder, model.streams, cached, len(cached) - 1)
        best = model.output.ids[(hidden @ model.output.rows.T).argmax(dim=-1)].tolist()
        assert guesses == best[: len(guesses)]


@pytest.mark.parametrize(("draft", "message"), [(draft_model, "this draft has 3"), (no_streams, "this draft has none")])
def test_more_streams_than_the_draft_has_are_refused(draft, message):
    with pytest.raises(LaneError, match=f"draft_streams is 4: {message}"):
        begin(draft(), speculative(5, draft_streams=4))


@pytest.mark.parametrize(("start_layer", "feature_layer", "allowed"), [(1, 2, "2..3"), (4, 0, "1..3")])
def test_streams_begin_where_features_are_or_above_and_below_the_last_layer(start_layer, feature_layer, allowed):
    sizes = SIZES.model_copy(update={"start_layer": start_layer})
    with pytest.raises(ModelError, match=f"start_layer {start_layer} of the streams is outside {allowed}"):
        DraftConfig(source_layers=(1, 2, 3, 4), vocab_size=5, feature_layer=feature_layer, streams=sizes)


def test_guesses_can_be_timed_again_and_again():
    drafter = Drafter(draft_model())
    guesses = Measurement(part="draft_streams", rows=2, context=20)
    run_once = drafter.timed_step(guesses)
    for _ in range(2):
        assert len(run_once()) == 2
        assert drafter.cache.cursor == 20
    with pytest.raises(LaneError, match="draft_streams is 2: this draft has none"):
        Drafter(no_streams()).timed_step(guesses)


# On disk


@pytest.fixture
def folders(tmp_path):
    target = tiny_target()
    draft = tiny_draft(target, exit_features=(1, 3), feature_layer=1)
    save_draft(draft, tmp_path / "draft", target_name="tiny", metadata={"tokens": 10})
    streams = with_streams(draft).streams
    add_streams(tmp_path / "draft", streams, tmp_path / "with", training={"tokens": 20})
    return target, streams, tmp_path


def test_streams_come_back_with_their_draft(folders):
    target, streams, path = folders
    draft = load_draft(path / "with", target, dtype=torch.float32)
    assert draft.config.streams == SIZES
    for name, weight in streams.trained.items():
        torch.testing.assert_close(draft.streams.trained[name], weight, atol=0.01, rtol=0)
    assert draft.streams.layers[0].qkv.base.weight is draft.decoder.layers[1].qkv.weight
    _, window = run(begin(draft, speculative(5, draft_streams=3)).rollout())
    assert list(window.tokens) == plain.draft_text(draft, PROMPT, 5)[0]


def test_the_draft_itself_is_written_again_bit_for_bit(folders):
    _, _, path = folders
    config, before = load_folder(path / "draft", DrafterFolderConfig)
    extended, after = load_folder(path / "with", DrafterFolderConfig)
    assert all(np.array_equal(array, after[name]) for name, array in before.items())
    assert all(name.startswith("streams.") for name in after.keys() - before.keys())
    assert extended.metadata == {"tokens": 10, "streams": {"tokens": 20}}
    assert config.streams is None


def test_streams_that_are_there_are_replaced_and_a_draft_without_any_has_none(folders):
    target, _, path = folders
    plain_draft = load_draft(path / "draft", target, dtype=torch.float32)
    assert plain_draft.streams is None
    newer = with_streams(plain_draft, seed=9).streams
    add_streams(path / "with", newer, path / "newer", training={})
    loaded = load_draft(path / "newer", target, dtype=torch.float32).streams
    torch.testing.assert_close(loaded.embedding, newer.embedding, atol=0.01, rtol=0)


def test_tensors_of_streams_must_be_there_if_and_only_if_the_config_says_so(folders):
    target, _, path = folders
    config, tensors = load_folder(path / "with", DrafterFolderConfig)
    save_folder(path / "silent", config.model_copy(update={"streams": None}), tensors)
    with pytest.raises(ModelFormatError, match=r"unknown tensor 'streams\."):
        load_draft(path / "silent", target, dtype=torch.float32)
    del tensors["streams.embedding"]
    save_folder(path / "hole", config, tensors)
    with pytest.raises(ModelFormatError, match=r"streams\.embedding"):
        load_draft(path / "hole", target, dtype=torch.float32)


def test_impossible_sizes_are_refused(folders):
    target, _, path = folders
    config, tensors = load_folder(path / "with", DrafterFolderConfig)
    sizes = SIZES.model_copy(update={"start_layer": 0})
    save_folder(path / "wrong", config.model_copy(update={"streams": sizes}), tensors)
    with pytest.raises(ModelFormatError, match=r"config.json: start_layer 0 of the streams is outside 1"):
        load_draft(path / "wrong", target, dtype=torch.float32)
