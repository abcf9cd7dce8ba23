"""A folder of a model of its own drafts for any target that means the same by every id."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from decoding.errors import MirrorsdError, ModelError, ModelFormatError
from decoding.schedule import Schedule
from runtime.backends.lane_device import Device
from runtime.drafters.language_model.drafter import Drafter
from runtime.drafters.language_model.folder import as_draft, load_causal_lm
from runtime.models.decoder import load_decoder
from runtime.worker.compiled_models import CompiledModels
from runtime.worker.torch_models import TorchModels
from tests.runtime.tiny_folders import save_target
from tests.tiny_heads import run
from tests.tiny_models import VOCAB_SIZE, tiny_target


def write_tokenizer(folder, vocab):
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    return folder


WORDS = {f"w{index}": index for index in range(VOCAB_SIZE)}
LAST = VOCAB_SIZE - 1


@pytest.fixture
def folders(tmp_path):
    """(target, draft): the same tiny model, with tokenizers that agree."""
    target = write_tokenizer(save_target(tiny_target(), tmp_path / "target"), WORDS)
    draft = tmp_path / "draft"
    shutil.copytree(target, draft)
    return target, draft


def test_a_draft_that_is_the_target_proposes_the_targets_own_text(folders):
    target, draft = folders
    decoder = load_decoder(target, dtype=torch.float32)
    drafter = Drafter(load_causal_lm(draft, target, dtype=torch.float32))
    schedule = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=4)
    text = [5, 9, 2]
    drafter.prefill(text, schedule=schedule, capacity=20)
    window, _ = run(drafter.rollout())
    for token in window.tokens:
        hidden = decoder.embedding(torch.tensor([text]))
        positions = torch.arange(len(text))
        mask = torch.full((len(text), len(text)), float("-inf")).triu(1)
        hidden = decoder.run_layers(hidden, 0, decoder.config.num_layers, positions=positions, mask=mask, cache=None)
        assert token == int(decoder.logits(hidden)[0, -1].argmax())
        text.append(token)


def test_ids_beyond_the_targets_are_never_proposed():
    draft = as_draft(tiny_target(), VOCAB_SIZE - 7)
    assert draft.output.ids.tolist() == list(range(VOCAB_SIZE - 7))
    assert draft.output.logits(torch.zeros(1, draft.decoder.config.hidden_size)).shape == (1, VOCAB_SIZE - 7)


@pytest.mark.parametrize(("kind", "lane"), [(TorchModels, "cpu0"), (CompiledModels, "openvino:CPU@0")])
def test_a_text_with_ids_that_the_draft_has_no_rows_for_is_drafted_on(folders, kind, lane):
    """Sizes of one family are padded to different vocabularies: Qwen2.5's have 151,936 and 152,064 ids."""
    target, draft = folders
    save_target(tiny_target(vocab_size=VOCAB_SIZE - 3), draft)
    for folder in folders:
        write_tokenizer(folder, {word: index for word, index in WORDS.items() if index < VOCAB_SIZE - 7})
    drafter = kind(Device.of_lane(lane), 1).load_drafter(target, draft, "float32")
    schedule = Schedule(method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=4)
    drafter.prepare(schedule, num_prompt=3, capacity=20)
    drafter.prefill([LAST, 5, 9], schedule=schedule, capacity=20)
    window, _ = run(drafter.rollout())
    again, _ = run(drafter.rollout([*window.tokens[:1], LAST]))
    assert len(window.tokens) == len(again.tokens) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS | {"w3": 4, "w4": 3}, "first at id 3, which is 'w4' for the draft and 'w3' for the target"),
        (WORDS | {"extra": LAST + 1}, f"at id {LAST + 1}, which is 'extra' for the draft and no token for the target"),
        (
            {word: index for word, index in WORDS.items() if index != LAST},
            f"which is no token for the draft and 'w{LAST}' for the target",
        ),
    ],
)
def test_another_tokenizer_is_refused_with_the_first_difference(folders, words, message):
    target, draft = folders
    write_tokenizer(draft, words)
    with pytest.raises(ModelError, match=message):
        load_causal_lm(draft, target, dtype=torch.float32)


def test_a_folder_without_a_tokenizer_or_of_another_family_is_refused(folders):
    target, draft = folders
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    (draft / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}), encoding="utf-8")
    with pytest.raises(MirrorsdError, match="GPT2LMHeadModel"):
        load_causal_lm(draft, target, dtype=torch.float32)
    (draft / "tokenizer.json").unlink()
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: no such file"):
        load_causal_lm(draft, target, dtype=torch.float32)
