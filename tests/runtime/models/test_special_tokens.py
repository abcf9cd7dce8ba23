"""Tokens that only a folder's settings add or name: ids, texts and templates are those of transformers."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from decoding.errors import ModelFormatError
from runtime.models.tokenizer import Tokenizer

NAMED = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = f"<s>Hi {START} [PAD]</s> {END}"


def listed(content, **flags):
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return plain | {"content": content, "special": True} | flags


def write(folder, settings, *, eos_is_special=True, padding=None):
    """A tokenizer of bytes and the ids 256 and 257 for BOS and EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=eos_is_special, normalized=False)])
    if padding:
        backend.enable_padding(pad_token=padding)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMED | settings))
    return folder


def assert_like_transformers(transformers, folder, text=TEXT):
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.tokens() == {token_id: token for token, token_id in theirs.get_vocab().items()}
    return ids


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"258": listed(START), "259": listed(END)}},
        {"added_tokens_decoder": {"300": listed(END, lstrip=True), "270": listed(START, special=False, rstrip=True)}},
        {"added_tokens_decoder": {"258": listed(END, special=False)}, "eos_token": END, "pad_token": "[PAD]"},
        {"additional_special_tokens": [START, END]},
        {"additional_special_tokens": ["<s>"], "extra_special_tokens": [END, START]},
        {"extra_special_tokens": {"start_token": START}, "image_token": END},
        {"pad_token": "[PAD]", "sep_token": START, "cls_token": {"__type": "AddedToken", **listed(END, lstrip=True)}},
        {"unk_token": "H"},
    ],
)
def test_what_the_vocabulary_lacks_is_added(transformers, tmp_path, settings):
    ids = assert_like_transformers(transformers, write(tmp_path, settings))
    assert max(ids) > 257 or "unk_token" in settings


def test_a_chat_is_written_with_them(transformers, tmp_path):
    tokens = {"258": listed(START), "259": listed(END)}
    folder = write(tmp_path, {"added_tokens_decoder": tokens, "chat_template": CHATML})
    chat = [{"role": "user", "content": "Hi"}]
    theirs = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, add_generation_prompt=True)
    assert Tokenizer.from_folder(folder).encode_chat(chat) == theirs["input_ids"]


@pytest.mark.parametrize("settings", [{}, {"added_tokens_decoder": {}}])
def test_older_files_count_where_transformers_reads_them(transformers, tmp_path, settings):
    folder = write(tmp_path, settings)
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "[PAD]", "lstrip": True}}))
    (folder / "added_tokens.json").write_text(json.dumps({END: 259, START: 258}))
    ids = assert_like_transformers(transformers, folder)
    assert (max(ids) > 257) == (settings == {})


def test_a_token_that_only_padding_names_is_added(transformers, tmp_path):
    folder = write(tmp_path, {}, padding="[PAD]")
    assert 258 in assert_like_transformers(transformers, folder)


def test_eos_is_left_out_of_texts_where_the_vocabulary_does_not_call_it_special(transformers, tmp_path):
    folder = write(tmp_path, {}, eos_is_special=False)
    assert_like_transformers(transformers, folder)
    assert Tokenizer.from_folder(folder).decode([39, 72, 257]) == "Hi"


def test_special_tokens_are_split_where_the_settings_say_so(transformers, tmp_path):
    assert max(assert_like_transformers(transformers, write(tmp_path, {"split_special_tokens": True}))) < 256


@pytest.mark.parametrize(
    ("settings", "template"),
    [
        ({"sep_token": "</s>"}, "{{ messages[0]['content'] }}{{ sep_token }}"),
        ({"cls_token": "<s>", "mask_token": "</s>"}, "{{ cls_token + mask_token }}"),
        ({"extra_special_tokens": {"eot": "</s>", "messages_end": "<s>"}}, "{{ eot }}{{ messages_end }}"),
        ({"image_token": "<s>", "add_bos_token": True}, "{{ image_token }}{{ add_bos_token is defined }}"),
    ],
)
def test_templates_know_every_named_token(transformers, tmp_path, settings, template):
    folder = write(tmp_path, settings | {"chat_template": template})
    chat = [{"role": "user", "content": "Hi"}]
    theirs = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, tokenize=False)
    assert Tokenizer.from_folder(folder).render_chat(chat) == theirs


@pytest.mark.parametrize(
    "settings",
    [
        {"bos_token": 3},
        {"pad_token": {"lstrip": True}},
        {"additional_special_tokens": [3]},
        {"added_tokens_decoder": {"x": listed(END)}},
        {"added_tokens_decoder": [END]},
        {"added_tokens_decoder": {"258": listed(END, lstrip="no")}},
    ],
)
def test_what_is_no_token_is_refused(tmp_path, settings):
    with pytest.raises(ModelFormatError, match="not the settings of a tokenizer"):
        Tokenizer.from_folder(write(tmp_path, settings))
