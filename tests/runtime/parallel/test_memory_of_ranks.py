"""What lanes of several ranks take is worked out like that of others."""

import torch

from decoding.schedule import Schedule
from runtime.drafters.parallel_track.folder import load_parallel_track
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.needs import PROCESS_BYTES, draft_size, on_ranks
from runtime.models.config import ModelConfig
from runtime.parallel.group import Group
from tests.runtime.drafters.parallel_track.test_tracks import save

PLAIN = Schedule(method="autoregressive", target_lane="big-2ranks")


def test_each_rank_has_a_process_and_an_embedding(tiny_folders):
    engine = Engine(tiny_folders.target, lanes=[LaneSpec(name="big-2ranks"), LaneSpec(name="big")], dtype="float32")
    two = engine.memory_needed(PLAIN, 20)["big-2ranks"]
    one = engine.memory_needed(PLAIN.model_copy(update={"target_lane": "big"}), 20)["big"]
    embedding = tiny_folders.decoder.embedding.weight.nbytes
    assert (two.weights - one.weights, two.process) == (embedding, 2 * PROCESS_BYTES)
    assert two.keys_values == one.keys_values
    assert on_ranks(one, 1, engine.config, "float32") == one


def test_tracks_are_counted_to_the_byte(tiny_folders, tmp_path):
    folder, target = save(tmp_path / "draft", num_tracks=4), ModelConfig.from_folder(tiny_folders.target)
    drafter = load_parallel_track(folder, tiny_folders.target, dtype=torch.float32, group=Group.alone())
    decoder = drafter.model.decoder
    held = sum(tensor.nbytes for tensor in [*decoder.parameters(), *decoder.buffers()])
    size = draft_size(folder, target, "float32", shares_lane=False)
    assert size.weights == held
    assert (size.layers.num_layers, size.layers.num_kv_heads) == (16, 2)
