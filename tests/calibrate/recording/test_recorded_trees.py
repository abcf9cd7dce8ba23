"""Records of trees, held against drafting and verifying them for real, round by round."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import RecordedHead, fingerprint, load_models
from calibrate.recording.recorded_text import TextWriter, WantedText
from calibrate.recording.recorder import record_acceptance
from decoding.errors import ModelFormatError
from decoding.messages import NO_WINDOW
from decoding.record import AcceptanceRecord, RecordedTree
from decoding.schedule import Schedule
from runtime.backends.eager import EagerBackend
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.eagle.folder import save_eagle
from runtime.drafters.head_drafter import save_tree_heads
from runtime.drafters.hydra import HydraDrafter
from runtime.drafters.medusa import MedusaDrafter
from runtime.drafters.streams import StreamFolderConfig, StreamingTarget, StreamTree
from runtime.models.model_folder import NamedFolder
from runtime.target.target_model import TargetModel
from runtime.verification.rules import GREEDY
from sim.acceptance.replay import Replay
from tests.calibrate.recording.test_recorder import PROMPTS, models
from tests.runtime.tiny_folders import save_draft_of, save_target
from tests.tiny_eagle import KEPT, tiny_eagle1, tiny_eagle3
from tests.tiny_heads import run, tiny_hydra, tiny_medusa
from tests.tiny_models import tiny_streams, tiny_target

SETTINGS = Reach(exit_layers=(1,), max_new_tokens=32, max_window=2, trees=((3, 4), (2, 8)))
PATHS = tuple(
    sorted(
        [(0, 0, 0), *((one,) for one in range(10)), *((one, two) for one in range(6) for two in range(7))],
        key=lambda path: (sum(path), path),
    )
)
"""Wide, since the heads here are random: every first token has six that may follow."""


def heads_of(target):
    num_layers = target.config.num_layers
    drafters = {
        "medusa": MedusaDrafter(tiny_medusa(target), PATHS, num_layers=num_layers),
        "hydra": HydraDrafter(tiny_hydra(target), PATHS, num_layers=num_layers),
        "eagle": EagleDrafter(tiny_eagle1(target), method="eagle2", feature_layers=(num_layers,)),
        "eagle-3": EagleDrafter(tiny_eagle3(target), method="eagle3", feature_layers=(1, 2, 3), raw_features=True),
        "streams": StreamTree(tiny_streams(target), target, torch.arange(61), PATHS),
    }
    return tuple(RecordedHead(name, drafter) for name, drafter in drafters.items())


@pytest.fixture(scope="module")
def pair():
    base = models(features=False, adapters=False)
    return replace(base, heads=heads_of(tiny_target()))


@pytest.fixture(scope="module")
def record(pair, tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "r.npz"
    record_acceptance(pair, PROMPTS, SETTINGS, path)
    return AcceptanceRecord.load(path)


def test_every_head_has_its_trees_dynamic_ones_in_every_shape_asked_for(record):
    assert record.trees == (
        RecordedTree(method="medusa", drafter="medusa", depth=3, paths=PATHS),
        RecordedTree(method="hydra", drafter="hydra", depth=3, paths=PATHS),
        RecordedTree(method="eagle2", drafter="eagle", depth=3, top_k=4),
        RecordedTree(method="eagle2", drafter="eagle", depth=2, top_k=8),
        RecordedTree(method="eagle3", drafter="eagle-3", depth=3, top_k=4),
        RecordedTree(method="eagle3", drafter="eagle-3", depth=2, top_k=8),
        RecordedTree(method="speculative_streaming", drafter="streams", depth=3, paths=PATHS),
    )


def test_trees_are_sometimes_right_and_sometimes_wrong(record):
    """Or the tests of this file would show little."""
    for place in range(len(record.trees)):
        lengths = np.concatenate([prompt.tree_lengths(place, 64) for prompt in record.prompts])
        assert {0, 1, 2} <= set(lengths.tolist())


@pytest.mark.parametrize("size", [5, 30])
@pytest.mark.parametrize("place", range(7))
def test_real_rounds_are_what_the_record_says(record, pair, place, size):
    tree = record.trees[place]
    schedule = schedule_of(tree, size)
    play = play_streams if tree.method == "speculative_streaming" else play_head
    outcomes = Replay(record).outcomes(schedule, None)
    for prompt, recorded, start in zip(PROMPTS, record.prompts, outcomes.starts, strict=True):
        position, text = 0, recorded.text.tolist()
        real = play(pair, tree, schedule, prompt)
        while position < len(text):
            drafted, decided = next(real)
            count, left = outcomes.num_accepted[start + position], len(text) - position
            path = tuple(recorded.tree_ranks[place][position, :count].tolist())
            assert outcomes.num_drafted[start + position] == len(drafted.tokens)
            if count < left:
                assert (path, text[position + count]) == (decided.path, decided.next_token)
                assert tuple(text[position : position + count]) == drafted.accepted(decided)
            else:
                assert decided.path[:left] == path
            position += count + 1


def schedule_of(tree: RecordedTree, size: int) -> Schedule:
    return Schedule(
        method=tree.method,
        target_lane="a",
        draft_lane=None if tree.method == "speculative_streaming" else "a",
        num_speculative_tokens=tree.depth,
        tree_size=size,
        tree_top_k=tree.top_k,
        drafter=tree.drafter,
    )


def play_head(pair, tree, schedule, prompt):
    """Windows and verdicts of the runtime's own models, for ever."""
    drafter = next(head.drafter for head in pair.heads if head.name == tree.drafter)
    target = TargetModel.of(tiny_target())
    features = target.prefill(
        prompt.ids, capacity=120, feature_layers=drafter.feature_layers, raw_features=drafter.raw_features
    )
    drafter.prefill(prompt.ids, schedule=schedule, capacity=70, sampling=GREEDY, features_TE=features)
    committed, features = (), None
    while True:
        window, _ = run(drafter.rollout(committed, features))
        verdict = target.verify(window)
        committed, features = (*window.accepted(verdict), verdict.next_token), verdict.features
        yield window, verdict


def play_streams(pair, tree, schedule, prompt):
    streams = next(head.drafter for head in pair.heads if head.name == tree.drafter)
    target = StreamingTarget(tiny_target(), streams)
    target.set_tree(size=schedule.tree_size, depth=schedule.num_speculative_tokens)
    target.prefill(prompt.ids, capacity=120)
    window = NO_WINDOW
    while True:
        verdict = target.stream(window)
        yield window, verdict
        window = verdict.window


def test_states_of_the_last_layer_are_those_before_the_norm():
    target = tiny_target()
    text = TextWriter(EagerBackend(target), max_new_tokens=5, layers=(4, 2)).alone(WantedText(PROMPTS[0].ids))
    rows = len(PROMPTS[0].ids) + len(text.tokens) - 1
    assert {layer: states.shape for layer, states in text.states.items()} == {2: (rows, 16), 4: (rows, 16)}
    best = target.logits(text.states[4][None])[0].argmax(-1)
    assert best[len(PROMPTS[0].ids) - 1 :].tolist() == text.tokens


def test_the_fingerprint_follows_heads_and_shapes(folders):
    root, named = folders
    loaded = load_models(*named, None, heads=[NamedFolder("e", root / "eagle")], dtype="float32")
    others = {
        fingerprint(load_models(*named, None, dtype="float32"), PROMPTS, SETTINGS),
        fingerprint(replace(loaded, digests=loaded.digests[:-1]), PROMPTS, SETTINGS),
        fingerprint(loaded, PROMPTS, replace(SETTINGS, trees=((3, 4),))),
    }
    assert len(others | {fingerprint(loaded, PROMPTS, SETTINGS)}) == 3


@pytest.fixture
def folders(tmp_path):
    target = tiny_target()
    named = {"target_name": "tiny", "metadata": {}}
    save_eagle(tiny_eagle1(target), tmp_path / "eagle", feature_layers=(4,), **named)
    streams = tiny_streams(target)
    save_tree_heads(StreamFolderConfig, streams, PATHS, tmp_path / "streams", kept_ids=KEPT, target=target, **named)
    save_draft_of(target, tmp_path / "draft")
    folder = save_target(target, tmp_path / "target")
    return tmp_path, (NamedFolder("t", folder), NamedFolder("d", tmp_path / "draft"))


def test_heads_and_streams_are_loaded_from_their_folders(folders):
    root, named = folders
    heads = [NamedFolder("e", root / "eagle"), NamedFolder("s", root / "streams")]
    models = load_models(*named, None, heads=heads, dtype="float32")
    loaded = models.heads
    assert [(head.name, type(head.drafter)) for head in loaded] == [("e", EagleDrafter), ("s", StreamTree)]
    assert [head.drafter.feature_layers for head in loaded] == [(4,), (2,)]
    assert [name for name, _ in models.digests] == ["t", "d", "e", "s"]
    assert len({digest for _, digest in models.digests}) == 4


def test_a_draft_language_model_is_no_head(folders):
    root, named = folders
    with pytest.raises(ModelFormatError, match="draft: is a draft model, not a head"):
        load_models(*named, None, heads=[NamedFolder("x", root / "draft")], dtype="float32")
