import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.errors import TrainingError
from tests.runtime import plain
from training.data import states as states_module
from training.data.states import TargetStates, read_conversations


@pytest.fixture
def conversations(data_path):
    return read_conversations([data_path], vocab_size=61)


def assert_filled(states, layers):
    for index, row in enumerate(states.conversations):
        for layer in layers:
            (state,) = plain.hidden_states(states.target, row.ids, layers=[layer])
            is_last = layer == states.target.config.num_layers
            expected = (states.target.normalise(state) if is_last else state).to(torch.bfloat16)
            assert torch.allclose(states.rows(layer, index).float(), expected.float(), rtol=0.02, atol=1e-3)


def test_every_conversation_has_the_states_it_has_alone(tmp_path, target, conversations):
    states = TargetStates(tmp_path, target, conversations, [1, 3])
    states.fill()
    assert_filled(states, [1, 3, 4])


def test_an_interrupted_fill_goes_on_where_it_was(tmp_path, target, conversations, monkeypatch):
    monkeypatch.setattr(states_module, "_CONVERSATIONS_PER_SAVE", 4)

    def interrupt(done, total):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TargetStates(tmp_path, target, conversations, [2]).fill(interrupt)
    seen = []
    states = TargetStates(tmp_path, target, conversations, [2])
    states.fill(lambda done, total: seen.append((done, total)))
    assert seen == [(12, 14), (14, 14)]
    assert_filled(states, [2, 4])
    states.fill(lambda done, total: seen.append(None))
    assert len(seen) == 2, "a filled folder is not filled again"


def test_states_are_on_disk_before_they_are_counted(tmp_path, target, conversations, monkeypatch):
    done, flush = [], np.memmap.flush
    monkeypatch.setattr(np.memmap, "flush", lambda self: (done.append(Path(self.filename).name), flush(self)))
    monkeypatch.setattr(states_module, "replace_file", lambda path, *_: done.append(path.name))
    TargetStates(tmp_path, target, conversations, [2]).fill()
    assert done == ["fingerprint", "layer-2.bin", "layer-4.bin", "done.json"]


@pytest.mark.parametrize("num_bytes", [None, 0, 1000])
def test_a_file_that_is_missing_or_cut_is_computed_again(tmp_path, target, conversations, num_bytes):
    """And not taken for zeros, even if that is interrupted before anything was computed."""
    TargetStates(tmp_path, target, conversations, [2]).fill()
    file = tmp_path / "layer-2.bin"
    if num_bytes is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:num_bytes])
    TargetStates(tmp_path, target, conversations, [2])
    states = TargetStates(tmp_path, target, conversations, [2])
    states.fill()
    assert_filled(states, [2, 4])


def test_a_layer_can_be_added_to_a_folder(tmp_path, target, conversations):
    TargetStates(tmp_path, target, conversations, [2]).fill()
    states = TargetStates(tmp_path, target, conversations, [1])
    states.fill()
    assert_filled(states, [1, 4])
    assert_filled(TargetStates(tmp_path, target, conversations, [2]), [2])


def test_a_folder_of_another_target_or_of_other_data_is_refused(tmp_path, target, conversations):
    """Another target may differ in a single weight."""
    TargetStates(tmp_path, target, conversations, [2])
    tuned = copy.deepcopy(target)
    with torch.no_grad():
        tuned.layers[1].down.weight[0, 0] += 1
    for other, rows in ((tuned, conversations), (target, conversations[1:])):
        with pytest.raises(TrainingError, match="holds the states of another target or other data"):
            TargetStates(tmp_path, other, rows, [2])


def test_a_disk_without_room_is_found_before_anything_is_computed(tmp_path, target, conversations, full_disk):
    full_disk(states_module.os, "posix_fallocate")
    with pytest.raises(TrainingError, match=r"cannot be written .*No space left.*2 layers need \d+ bytes each"):
        TargetStates(tmp_path, target, conversations, [2])
