"""Tracks are the same module wherever they run: in one process, on ranks, and as one decoder where there is one."""

import json
from pathlib import Path

import pytest
import torch

from decoding.errors import ModelError, ModelFormatError
from decoding.schedule import Schedule
from mirrorsd.model_pair import find_pair
from runtime.backends.eager import EagerBackend
from runtime.drafters.parallel_track import ParallelTracks, load_parallel_track, randomise
from runtime.drafters.registry import DrafterContext, load_drafter
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.decoder import Decoder
from runtime.models.kv_cache import KVCache
from runtime.parallel.group import Group
from tests.runtime import plain
from tests.runtime.parallel.ranks import on_ranks
from tests.tiny_heads import run
from tests.tiny_models import EOS, tiny_config

TEXT = [5, 17, 3, 44, 8, 60, 0, 2, 31]
SIZES = {
    "layers_per_segment": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 4,
}
WINDOW = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=4)


class CountingGroup(Group):
    """A group of one that counts what it would exchange."""

    def __init__(self):
        super().__init__(0, 1)
        self.exchanges = 0

    def gather(self, x):
        self.exchanges += 1
        return super().gather(x)


def tracks_of(num_tracks, *, num_layers=4, group=None):
    track = tiny_config(num_layers=num_layers, tie_embeddings=False)
    tracks = ParallelTracks(track, num_tracks, group or Group.alone())
    randomise(tracks, seed=7, dtype=torch.float32)
    return tracks.eval()


@torch.inference_mode()
def logits_of(decoder, chunks):
    """Logits of the text, read in chunks with a cache."""
    cache, found = KVCache(decoder.config, len(TEXT), dtype=torch.float32), []
    for count in chunks:
        stop = cache.cursor + count
        x = decoder.embedding(torch.tensor([TEXT[cache.cursor : stop]]))
        positions = torch.arange(cache.cursor, stop)
        x = decoder.run_layers(x, 0, decoder.config.num_layers, positions=positions, cache=cache)
        found.append(decoder.logits(x)[0])
        cache.advance(count)
    return torch.cat(found)


def save(folder, **changes):
    config = {"speculators_model_type": "mirrorsd_parallel_track", "num_tracks": 2, "weights": "random"}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | SIZES | changes))
    return folder


def windows(drafter):
    """What it drafts after a prompt, and after tokens that are not what it drafted."""
    drafter.prefill(TEXT, schedule=WINDOW, capacity=60)
    return [list(run(drafter.rollout(committed))[0].tokens) for committed in ([], [9], [11, 12, 13], [1])]


def report(group, folder, target_folder):
    drafter = load_parallel_track(Path(folder), Path(target_folder), dtype=torch.float32, group=group)
    decoder = drafter.model.decoder
    held = sum(weight.numel() for weight in decoder.layers.parameters())
    return {"logits": logits_of(decoder, (5, 1, 3)).tolist(), "windows": windows(drafter), "held": held}


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("tracks"))


@pytest.mark.parametrize("chunks", [(9,), (5, 1, 3), (1,) * 9])
def test_one_track_is_the_decoder_it_is_made_of(chunks):
    tracks = tracks_of(1)
    decoder = Decoder(tracks.track)
    decoder.load_state_dict(tracks.state_dict())
    assert torch.equal(logits_of(tracks, chunks), logits_of(decoder.eval(), chunks))


def test_four_tracks_on_two_ranks_say_what_they_say_in_one_process(tiny_folders, tmp_path):
    """They are added up in their order, wherever they are."""
    folder = save(tmp_path / "four", num_tracks=4)
    here = report(Group.alone(), folder, tiny_folders.target)
    for rank in on_ranks(report, tmp_path / "ranks", 2, folder, tiny_folders.target):
        assert (rank["logits"], rank["windows"]) == (here["logits"], here["windows"])
        assert 2 * rank["held"] == here["held"]


@pytest.mark.parametrize("num_layers", [2, 8])
def test_tracks_meet_twice_a_step_however_deep_they_are(num_layers):
    group = CountingGroup()
    logits_of(tracks_of(2, num_layers=num_layers, group=group), (5, 1, 1))
    assert group.exchanges == 3 * 2


def test_a_track_sees_nothing_of_the_others_within_a_segment():
    """What another track embeds changes the first segment of this one in nothing, and the second."""
    tracks = tracks_of(2)
    first, second = [], []
    for layer, seen in ((1, first), (4, second)):
        tracks.layers[layer].register_forward_hook(lambda _, __, output, seen=seen: seen.append(output))
    logits_of(tracks, (9,))
    tracks.embedding.weight.data[:, 16:] += 1.0
    logits_of(tracks, (9,))
    assert torch.equal(*first)
    assert not torch.equal(*second)


def test_rows_of_tracks_do_not_depend_on_their_company():
    tracks = tracks_of(2)
    expected = logits_of(tracks, (1,) * 9)
    for chunks in ((9,), (5, 4), (2, 3, 3, 1)):
        assert torch.equal(logits_of(tracks, chunks), expected)


def test_tracks_have_different_weights_and_the_same_ones_again():
    one, again = tracks_of(2), tracks_of(2)
    assert torch.equal(one.layers[0].qkv.weight, again.layers[0].qkv.weight)
    assert not torch.equal(one.layers[0].qkv.weight, one.layers[2].qkv.weight)
    assert not torch.equal(one.layers[0].qkv.weight, one.layers[1].qkv.weight)


def test_a_lane_drafts_with_tracks(draft_folder, tiny_folders, forked_lanes):
    small = "small-2ranks"
    lanes = [LaneSpec(name="big"), LaneSpec(name=small)]
    split = {"target_lane": "big", "draft_lane": small, "num_speculative_tokens": 3, "drafter": str(draft_folder)}
    expected = plain.continue_text(tiny_folders.decoder, TEXT, 16, eos=(EOS,))
    with Engine(tiny_folders.target, lanes=lanes, dtype="float32", draft_deadline_s=60.0) as engine:
        for options in (
            {"method": "speculative"},
            {"method": "mirror", "root_source": "draft", "draft_top_k": 2},
            {"method": "mirror", "root_source": "exit", "exit_layer": 2, "exit_top_k": 2},
        ):
            found = engine.generate(Schedule(**split | options), TEXT, max_new_tokens=16)
            assert list(found.tokens) == expected
            assert found.trace.events == []


def test_a_user_names_the_folder_of_tracks_as_a_draft_model(draft_folder, tiny_folders):
    pair = find_pair(tiny_folders.target, drafter=draft_folder)
    assert pair.drafter.folder == draft_folder


def test_tracks_that_do_not_fit_the_ranks_are_refused():
    group = Group.alone()
    group.world_size = 2
    with pytest.raises(ModelError, match="num_tracks 3 cannot be dealt out evenly to 2 ranks"):
        tracks_of(3, group=group)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_tracks": 0}, "num_tracks"),
        ({"weights": "trained"}, "weights"),
        ({"num_heads": 3}, "num_attention_heads 3"),
        ({"head_dim": 5}, "head_dim is 5"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(tiny_folders, tmp_path, changes, named):
    context = DrafterContext(
        target_folder=tiny_folders.target,
        dtype=torch.float32,
        load_target=lambda: tiny_folders.decoder,
        new_backend=EagerBackend,
    )
    with pytest.raises(ModelFormatError, match=named):
        load_drafter(save(tmp_path / "draft", **changes), context)
