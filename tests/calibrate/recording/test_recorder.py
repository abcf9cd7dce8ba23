"""Records of tiny float32 models, held against decoding the whole text anew for every single position."""

import re
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

import decoding.record
from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import RecordedModels, fingerprint
from calibrate.recording.recorded_text import TextWriter, WantedText
from calibrate.recording.recorder import Recorder, record_acceptance
from decoding.errors import ConfigError, RecordError
from decoding.messages import NO_WINDOW
from decoding.record import AcceptanceRecord
from decoding.recorded.prompt_record import hash_of_ids
from runtime.arrays import normalise_features
from runtime.backends.eager import EagerBackend
from runtime.drafters.language_model.draft_passes import DraftConfig
from runtime.drafters.language_model.model import DraftModel
from runtime.drafters.language_model.rollouts import rollouts_everywhere
from runtime.models.decoder import Decoder, causal_mask
from runtime.target.early_exits import ExitHeads
from runtime.target.target_model import TargetModel
from tests.runtime import plain
from tests.runtime.drafters.language_model.test_draft_streams import draft_model
from tests.tiny_models import EOS, tiny_adapters, tiny_target

PROMPTS = tuple(
    EncodedPrompt(f"prompt {seed}", "qa", tuple(np.random.default_rng(seed).integers(3, 61, 5 + seed).tolist()))
    for seed in range(4)
)
NOISE = 0.04
SETTINGS = Reach(exit_layers=(1, 3), max_new_tokens=12, max_window=4, num_alternatives=3, num_exit_candidates=5)


def models(*, features: bool = True, adapters: bool = True) -> RecordedModels:
    target = tiny_target()
    return RecordedModels(
        target_name="tiny-target",
        drafter_name="tiny-draft",
        target=TargetModel.of(target, exits_of(target) if adapters else None),
        draft=imperfect_copy(target, (1, 2) if features else ()),
    )


def exits_of(target: Decoder) -> ExitHeads:
    return ExitHeads(adapters=tiny_adapters(target, (3,)), kept_ids=torch.arange(0, 61, 3))


def imperfect_copy(target: Decoder, exit_features: tuple[int, ...]) -> DraftModel:
    """A draft that is the target plus noise: it agrees about half the time."""
    config = DraftConfig(source_layers=(1, 2, 3, 4), vocab_size=61, exit_features=exit_features, feature_layer=1)
    torch.manual_seed(7)
    draft = DraftModel(target.config, config)
    draft.decoder.load_state_dict(target.state_dict())
    for parameter in draft.parameters():
        parameter.data += NOISE * torch.randn_like(parameter)
    if draft.fuse is not None:
        torch.nn.init.normal_(draft.fuse.weight, std=NOISE)
    draft.share(target, torch.arange(61))
    return draft.eval().requires_grad_(requires_grad=False)


def states_of(target, ids: list[int], layer: int) -> torch.Tensor:
    """States after `layer` of a whole text in one uncached pass, [T, D]."""
    x = target.embedding(torch.tensor([ids]))
    mask = causal_mask(len(ids), torch.float32)
    return target.run_layers(x, 0, layer, positions=torch.arange(len(ids)), mask=mask)[0]


def best(logits: torch.Tensor, count: int) -> list[int]:
    return sorted(range(len(logits)), key=lambda token: -float(logits[token]))[:count]


def output_ids(kept_ids: torch.Tensor, prompt: list[int]) -> list[int]:
    """The kept ids, and those of the prompt that are not among them."""
    return [*kept_ids.tolist(), *sorted(set(prompt) - set(kept_ids.tolist()))]


@torch.inference_mode()
def draft_naively(
    pair, prompt: list[int], ids: list[int], count: int, features: torch.Tensor | None
) -> tuple[list[int], list[int]]:
    """`count` drafted tokens after `ids`, everything recomputed for each; and the best ids for the first."""
    draft, outputs = pair.draft, output_ids(pair.draft.kept_ids, prompt)
    text, ranked = list(ids), []
    for _ in range(count):
        rows = None
        if features is not None:
            rows = torch.zeros(1, len(text), features.shape[-1])
            rows[0, 1 : len(ids)] = features[: len(ids) - 1]
        logits = tiny_target().lm_head.weight[outputs] @ plain.draft_states(draft, text, rows)[-1]
        ranked.append([outputs[token] for token in best(logits, SETTINGS.num_alternatives)])
        text.append(ranked[-1][0])
    return text[len(ids) :], ranked[0]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return record_acceptance(models(), PROMPTS, SETTINGS, tmp_path_factory.mktemp("record") / "r.npz")


def test_the_text_is_that_of_the_runtime_to_the_last_token(record):
    target = models().target
    for prompt, recorded in zip(PROMPTS, record.prompts, strict=True):
        target.prefill(prompt.ids, capacity=64)
        assert [target.verify(NO_WINDOW).next_token for _ in recorded.text] == recorded.text.tolist()
        assert EOS not in recorded.text[:-1]
        assert len(recorded.margins) == len(recorded.text)
        assert (recorded.margins > 0).all()
        assert len(recorded.text) == SETTINGS.max_new_tokens or recorded.text[-1] == EOS


def test_states_and_margins_are_those_of_one_pass_over_the_text():
    target, prompt = tiny_target(), PROMPTS[1].ids
    text = TextWriter(EagerBackend(target), max_new_tokens=12, layers=(3, 1)).alone(WantedText(prompt))
    ids = [*prompt, *text.tokens[:-1]]
    for layer in (1, 3):
        assert torch.allclose(text.states[layer], states_of(target, ids, layer), atol=1e-4)
    logits = target.logits(states_of(target, ids, 4)[None])[0, len(prompt) - 1 :]
    first, second = logits.topk(2).values.T
    assert text.margins == pytest.approx((first - second).tolist(), abs=1e-3)


@pytest.mark.parametrize("with_features", [False, True])
def test_drafts_are_those_made_one_position_at_a_time(record, with_features):
    pair = models()
    for prompt, recorded in zip(PROMPTS, record.prompts, strict=True):
        ids = [*prompt.ids, *recorded.text.tolist()]
        hidden = torch.stack([states_of(tiny_target(), ids, layer) for layer in (1, 2)], dim=1)
        features = normalise_features(hidden, 1e-5) if with_features else None
        for position in range(len(recorded.text)):
            drafted, first = draft_naively(pair, prompt.ids, ids[: len(prompt.ids) + position], 4, features)
            assert recorded.drafts(with_features=with_features)[position].tolist() == drafted
            if not with_features:
                assert recorded.alternatives[position].tolist() == first


def test_exits_are_read_through_their_adapter_or_the_plain_head(record):
    target = tiny_target()
    exits = exits_of(target)
    for prompt, recorded in zip(PROMPTS, record.prompts, strict=True):
        outputs = output_ids(exits.kept_ids, prompt.ids)
        ids = [*prompt.ids, *recorded.text.tolist()[:-1]]
        for layer in (1, 3):
            states = states_of(target, ids, layer)
            states = exits.adapters[3](states) if layer == 3 else states
            logits = target.logits(states[None])[0][:, outputs]
            wanted = [[outputs[token] for token in best(row, 5)] for row in logits[len(prompt.ids) - 1 :]]
            assert recorded.exits[layer].tolist() == wanted


@pytest.mark.parametrize("with_features", [False, True])
def test_the_draft_is_sometimes_right_and_sometimes_wrong(record, with_features):
    """Or the tests of this file would show little."""
    lengths = np.concatenate([prompt.match_lengths(with_features=with_features) for prompt in record.prompts])
    assert set(lengths) >= {0, 1, 2, 3, 4}


def test_a_record_on_disk_is_the_one_returned(tmp_path):
    path = tmp_path / "folder" / "r.npz"
    made = record_acceptance(models(), PROMPTS[:2], SETTINGS, path)
    read = AcceptanceRecord.load(path)
    assert (read.target, read.drafter, read.dtype, read.exit_layers) == ("tiny-target", "tiny-draft", "float32", (1, 3))
    for prompt, ours, theirs in zip(PROMPTS, made.prompts, read.prompts, strict=False):
        assert ours.prompt_hash == theirs.prompt_hash == hash_of_ids(prompt.ids)
        assert (ours.name, ours.category, ours.prompt_length) == (theirs.name, theirs.category, theirs.prompt_length)
        for name in ("text", "rollouts", "feature_rollouts", "alternatives"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    assert list(path.parent.iterdir()) == [path]


class Interrupted:
    """Progress that stops the recording at a prompt, once, and notes which prompts were begun."""

    def __init__(self, stop_at: str | None) -> None:
        self.stop_at = stop_at
        self.begun: list[str] = []

    def __call__(self, step: str, share: float) -> None:
        assert 0 <= share <= 1
        if step == self.stop_at:
            raise KeyboardInterrupt
        self.begun.append(step)


def test_an_interrupted_recording_goes_on_where_it_stopped(tmp_path, record):
    path = tmp_path / "r.npz"
    with pytest.raises(KeyboardInterrupt):
        record_acceptance(models(), PROMPTS, SETTINGS, path, Interrupted("prompt 2"))
    assert not path.exists()
    again = Interrupted(None)
    resumed = record_acceptance(models(), PROMPTS, SETTINGS, path, again)
    assert again.begun == ["prompt 2", "prompt 3", "done"]
    for ours, theirs in zip(resumed.prompts, record.prompts, strict=True):
        assert np.array_equal(ours.rollouts, theirs.rollouts)
    assert list(tmp_path.iterdir()) == [path]


def test_a_power_cut_takes_no_prompt_that_was_finished_seconds_before(tmp_path, monkeypatch):
    """Whatever the size of the models: here a prompt takes five minutes."""
    clock, kept = count(step=300.0), []
    monkeypatch.setattr("calibrate.recording.recorder.time.monotonic", lambda: next(clock))

    def look(_name, _share):
        kept.append([len(AcceptanceRecord.load(file).prompts) for file in tmp_path.glob(".r.npz.*")])

    record_acceptance(models(), PROMPTS, SETTINGS, tmp_path / "r.npz", look)
    assert kept == [[], [1], [2], [3], []]


def test_a_damaged_rest_of_an_interrupted_recording_is_named_with_what_to_do(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        record_acceptance(models(), PROMPTS, SETTINGS, tmp_path / "r.npz", Interrupted("prompt 2"))
    [left] = tmp_path.iterdir()
    left.write_bytes(left.read_bytes()[:-30])
    with pytest.raises(RecordError, match=r"\.r\.npz\..*an interrupted run left it: delete it"):
        record_acceptance(models(), PROMPTS, SETTINGS, tmp_path / "r.npz")


def test_a_recording_that_has_enough_ends_with_the_prompts_so_far(tmp_path, record):
    asked = []

    def enough(next_s):
        asked.append(next_s)
        return len(asked) == 2

    path = tmp_path / "r.npz"
    made = record_acceptance(models(), PROMPTS, replace(SETTINGS, enough=enough), path)
    assert [prompt.name for prompt in made.prompts] == [prompt.name for prompt in record.prompts[:2]]
    assert asked[0] == 0 < asked[1], "the first text of a group takes the time to write all of it, the others do not"
    assert len(AcceptanceRecord.load(path).prompts) == 2
    assert list(tmp_path.iterdir()) == [path], "nothing is left that a later recording would go on with"


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_HEADER_BYTES"])
def test_a_recording_ends_with_the_prompts_that_a_record_has_room_for(tmp_path, record, monkeypatch, limit):
    most = replace(record, prompts=record.prompts[:2]).file_size
    room = {"MAX_BYTES": most.arrays + 99, "MAX_HEADER_BYTES": most.header + 99}
    monkeypatch.setattr(decoding.record, limit, room[limit])
    path = tmp_path / "r.npz"
    made = record_acceptance(models(), PROMPTS, SETTINGS, path)
    assert [one.name for one in made.prompts] == [one.name for one in AcceptanceRecord.load(path).prompts]
    assert [one.name for one in made.prompts] == [one.name for one in PROMPTS[:2]]


def test_what_was_recorded_with_other_settings_or_models_is_not_reused(tmp_path):
    path = tmp_path / "r.npz"
    with pytest.raises(KeyboardInterrupt):
        record_acceptance(models(), PROMPTS, SETTINGS, path, Interrupted("prompt 2"))
    again = Interrupted(None)
    record_acceptance(models(), PROMPTS, replace(SETTINGS, max_window=3), path, again)
    assert again.begun[0] == "prompt 0"
    assert list(tmp_path.iterdir()) == [path]


def test_the_fingerprint_follows_weights_prompts_and_settings():
    pair = models()
    base = fingerprint(pair, PROMPTS, SETTINGS)
    assert fingerprint(models(), PROMPTS, SETTINGS) == fingerprint(pair, PROMPTS, replace(SETTINGS, seed=1)) == base
    drawn = [replace(SETTINGS, temperature=1.0, seed=seed) for seed in (0, 1)]
    others = {
        fingerprint(replace(pair, digests=(("tiny-draft", "of other weights"),)), PROMPTS, SETTINGS),
        fingerprint(pair, PROMPTS[:3], SETTINGS),
        fingerprint(pair, PROMPTS, replace(SETTINGS, max_new_tokens=11)),
        fingerprint(replace(pair, exits_name="exits"), PROMPTS, SETTINGS),
        *(fingerprint(pair, PROMPTS, reach) for reach in drawn),
    }
    assert len(others | {base}) == 7


def test_layers_and_lengths_the_target_does_not_have_are_refused(tmp_path):
    with pytest.raises(RecordError, match=r"exit layer 4 is outside 1\.\.3"):
        record_acceptance(models(), PROMPTS, replace(SETTINGS, exit_layers=(1, 4)), tmp_path / "r.npz")
    lacking = "prompt 0: 5 tokens of prompt, 500 new ones and windows (--max-window 4) need 515 positions"
    with pytest.raises(ConfigError, match=re.escape(f"{lacking}; the target has 128")):
        record_acceptance(models(), PROMPTS, replace(SETTINGS, max_new_tokens=500), tmp_path / "r.npz")


def test_a_text_that_is_recorded_has_the_positions_that_a_run_asks_for(tmp_path):
    pair, settings = models(), replace(SETTINGS, max_new_tokens=113)
    [prompt] = record_acceptance(pair, PROMPTS[:1], settings, tmp_path / "r.npz").prompts
    assert len(prompt.text) == 113, "it is as long as fits"
    with pytest.raises(ConfigError, match=r"windows \(--max-window 4\) need 129 positions; the target has 128"):
        record_acceptance(pair, PROMPTS[:1], replace(settings, max_new_tokens=114), tmp_path / "r.npz")


def test_a_text_of_which_no_draft_is_recorded_has_the_positions_of_plain_decoding(tmp_path):
    pair, longest = replace(models(), draft=None, drafter_name=None), replace(SETTINGS, max_new_tokens=128 - 5 - 2)
    [prompt] = record_acceptance(pair, PROMPTS[:1], longest, tmp_path / "r.npz").prompts
    assert len(prompt.text) == longest.max_new_tokens
    with pytest.raises(ConfigError, match="122 new ones and windows need 129 positions; the target has 128"):
        record_acceptance(pair, PROMPTS[:1], replace(longest, max_new_tokens=122), tmp_path / "r.npz")


def test_a_target_of_one_layer_is_recorded_without_an_exit(tmp_path):
    target = TargetModel.of(tiny_target(num_layers=1))
    pair = RecordedModels(target_name="t", drafter_name=None, target=target, draft=None)
    record = record_acceptance(pair, PROMPTS[:1], replace(SETTINGS, exit_layers=None), tmp_path / "r.npz")
    assert record.exit_layers == ()


def draft_record(draft: DraftModel) -> AcceptanceRecord:
    """One prompt, recorded with windows of six."""
    pair = RecordedModels(target_name="t", drafter_name="d", target=TargetModel.of(tiny_target()), draft=draft)
    recorder = Recorder(pair, Reach(exit_layers=(), max_new_tokens=8, max_window=6, num_alternatives=3))
    return recorder.assemble([next(recorder.records([(PROMPTS[0], 0)]))])


def test_what_a_drafts_streams_guess_is_kept_with_features_and_without():
    draft = draft_model(with_features=True)
    record = draft_record(draft)
    [one] = record.prompts
    assert record.num_streams == 3
    assert one.stream_hits.shape == one.feature_stream_hits.shape == (len(one.text), 6)
    ids, start = [*PROMPTS[0].ids, *one.text.tolist()], len(PROMPTS[0].ids)
    again = rollouts_everywhere(draft, ids, start=start, num_tokens=6, num_alternatives=1, features_TE=None)
    assert one.stream_hits.tolist() == again.stream_hits.tolist()


def test_a_draft_without_streams_has_no_guesses(tmp_path):
    draft = draft_model()
    draft.config, draft.streams = replace(draft.config, streams=None), None
    record = draft_record(draft)
    assert record.num_streams == 0
    assert record.prompts[0].stream_hits.shape == (0, 6)
    record.save(tmp_path / "record.npz")
    assert AcceptanceRecord.load(tmp_path / "record.npz").num_streams == 0
