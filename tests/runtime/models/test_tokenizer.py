"""Text, chats and ids agree with transformers, and a stream of ids never shows half a character."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from decoding.errors import ModelFormatError
from runtime.models.gguf_convert import convert_gguf
from runtime.models.tokenizer import StreamDecoder, Tokenizer


def children():
    """Numbers of our processes."""
    return set(Path("/proc/self/task", str(os.getpid()), "children").read_text().split())


TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces\n\n\tand a tab  ",
    "In 2024, 3.14159 of 1,000,000",
    "naïve café, 東京, Привет, 🦊👩‍🚀",
    "def f(x):\n    return x ** 2  # done",
    "<|im_start|>user\nnot a chat<|im_end|>",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count to 12."}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello 👋"},
        {"role": "user", "content": "  Bye\n"},
    ],
]


@pytest.fixture
def tiny_folder(tiny_gguf, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    convert_gguf(tiny_gguf.write(tmp_path / "tiny.gguf"), folder, lambda _share: None)
    return folder


@pytest.fixture(scope="module")
def ours(embedded_model_folder):
    return Tokenizer.from_folder(embedded_model_folder)


@pytest.fixture(scope="module")
def theirs(transformers, embedded_model_folder):
    return transformers.AutoTokenizer.from_pretrained(embedded_model_folder)


def set_template(folder, template):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


class TestTheEmbeddedModel:
    @pytest.mark.parametrize("text", TEXTS)
    def test_text_encodes_and_decodes_as_in_transformers(self, ours, theirs, text):
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=False) == text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)

    @pytest.mark.parametrize("chat", CHATS)
    @pytest.mark.parametrize("add_generation_prompt", [True, False])
    def test_chats_encode_as_in_transformers(self, ours, theirs, chat, add_generation_prompt):
        expected = theirs.apply_chat_template(chat, add_generation_prompt=add_generation_prompt, return_dict=True)
        assert ours.encode_chat(chat, add_generation_prompt=add_generation_prompt) == expected["input_ids"]


class TestChatTemplates:
    def test_template_file_goes_before_the_one_in_the_config(self, tiny_folder):
        (tiny_folder / "chat_template.jinja").write_text("from the file")
        assert Tokenizer.from_folder(tiny_folder).render_chat(CHATS[0]) == "from the file"

    def test_default_is_taken_where_there_are_several(self, tiny_folder):
        set_template(tiny_folder, [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}])
        assert Tokenizer.from_folder(tiny_folder).render_chat(CHATS[0]) == "plain"

    def test_several_without_a_default_are_named(self, transformers, tiny_folder):
        set_template(tiny_folder, [{"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "texts"}])
        with pytest.raises(ValueError, match="multiple chat templates with no default"):
            transformers.AutoTokenizer.from_pretrained(tiny_folder).apply_chat_template(CHATS[0])
        with pytest.raises(ModelFormatError, match="no chat template is called 'default', only 'tool_use, rag'; write"):
            Tokenizer.from_folder(tiny_folder)

    def test_special_tokens_may_be_named(self, tiny_folder):
        set_template(tiny_folder, "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}")
        rendered = Tokenizer.from_folder(tiny_folder).render_chat([{"role": "user", "content": "x"}])
        assert rendered == "<|im_start|>x<|im_end|>"

    @pytest.mark.parametrize(
        "changes",
        [
            {"bos_token": None},
            {"bos_token": None, "added_tokens_decoder": {}},
            {"bos_token": "<|endoftext|>"},
            {"bos_token": "<|endoftext|>", "added_tokens_decoder": {}},
            None,
        ],
    )
    def test_special_tokens_of_an_older_file_count_where_transformers_reads_it(
        self, transformers, tiny_folder, changes
    ):
        (tiny_folder / "chat_template.jinja").write_text("{{ bos_token }}[INST] {{ messages[0].content + eos_token }}")
        path = tiny_folder / "tokenizer_config.json"
        settings = json.loads(path.read_text()) | (changes or {})
        path.unlink()
        if changes is not None:
            path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
        tokens = {"bos_token": {"content": "<|im_start|>", "lstrip": False}, "eos_token": "<|im_end|>"}
        (tiny_folder / "special_tokens_map.json").write_text(json.dumps(tokens))
        theirs = transformers.AutoTokenizer.from_pretrained(tiny_folder).apply_chat_template(CHATS[0], tokenize=False)
        assert Tokenizer.from_folder(tiny_folder).render_chat(CHATS[0]) == theirs

    def test_blocks_leave_no_blank_lines_and_json_is_not_escaped(self, transformers, tiny_folder):
        template = "{% for m in messages %}\n    {% if loop.first %}\n{{ m | tojson }}\n{% endif %}\n{% endfor %}"
        set_template(tiny_folder, template)
        chat = [{"role": "user", "content": "<é>"}]
        theirs = transformers.AutoTokenizer.from_pretrained(tiny_folder).apply_chat_template(chat, tokenize=False)
        rendered = Tokenizer.from_folder(tiny_folder).render_chat(chat)
        assert rendered == theirs == '{"role": "user", "content": "<é>"}\n'

    @pytest.mark.parametrize(
        "template",
        [
            "{% if tools is not none %}Tools: {{ tools }}{% endif %}{% if documents is none %}none{% endif %}",
            "{% for m in messages %}<{{ m.role }}>{%- generation %} {{ m.content }}\n{% endgeneration %}\n{% endfor %}",
        ],
    )
    def test_what_templates_take_for_granted_is_there(self, transformers, tiny_folder, template):
        set_template(tiny_folder, template)
        theirs = transformers.AutoTokenizer.from_pretrained(tiny_folder).apply_chat_template(CHATS[0], tokenize=False)
        assert Tokenizer.from_folder(tiny_folder).render_chat(CHATS[0], add_generation_prompt=False) == theirs

    @pytest.mark.parametrize(
        "template",
        [
            '{%- set today = strftime_now("%Y-%m-%d") %}{{- bos_token }}{{ "Today is " + today + "." }}',
            '{%- set day = strftime_now("%d %b %Y") if strftime_now is defined else "" %}{{- "Today Date: " + day }}',
            "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}",
            "{{ messages | tojson(ensure_ascii=true, indent=2) }}{{ messages[0] | tojson(false, 1) }}",
        ],
        ids=["as Mistral Small", "as Llama 3.2", "compact JSON", "JSON in ASCII"],
    )
    def test_a_template_gets_the_functions_it_knows_and_one_date(
        self, transformers, tiny_folder, template, monkeypatch
    ):
        set_template(tiny_folder, template)
        day = SimpleNamespace(now=lambda: datetime(2024, 7, 26, tzinfo=UTC))
        monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", day)
        theirs = transformers.AutoTokenizer.from_pretrained(tiny_folder).apply_chat_template(CHATS[2], tokenize=False)
        assert Tokenizer.from_folder(tiny_folder).render_chat(CHATS[2], add_generation_prompt=False) == theirs

    def test_a_model_without_one_says_so(self, tiny_folder):
        set_template(tiny_folder, None)
        with pytest.raises(ModelFormatError, match="has no chat template"):
            Tokenizer.from_folder(tiny_folder).encode_chat(CHATS[0])

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ ''.__class__.__mro__ }}", "unsafe"),
            ("{{ 10 ** 10000000 }}", "more than 2 seconds"),
            ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
            ("{{ 'a' * 2 ** 25 }}", "a text of 33,554,432 characters"),
        ],
    )
    def test_a_refusing_or_reaching_template_is_stopped(self, tiny_folder, template, message):
        set_template(tiny_folder, template)
        with pytest.raises(ModelFormatError, match=message):
            Tokenizer.from_folder(tiny_folder).encode_chat(CHATS[0])

    def test_broken_jinja_is_found_on_loading(self, tiny_folder):
        set_template(tiny_folder, "{% for %}")
        with pytest.raises(ModelFormatError, match="not valid Jinja"):
            Tokenizer.from_folder(tiny_folder)

    def test_a_template_that_was_stopped_can_be_asked_again(self, tiny_folder):
        set_template(tiny_folder, "{{ lipsum(n=100000) if messages | length > 1 else 'sound' }}")
        tokenizer = Tokenizer.from_folder(tiny_folder)
        with pytest.raises(ModelFormatError, match="more than 2 seconds"):
            tokenizer.render_chat(CHATS[1])
        assert tokenizer.render_chat(CHATS[0]) == "sound"

    def test_its_process_ends_with_the_tokenizer(self, tiny_folder):
        set_template(tiny_folder, "sound")
        before = children()
        tokenizer = Tokenizer.from_folder(tiny_folder)
        tokenizer.render_chat(CHATS[0])
        assert len(children() - before) == 1
        del tokenizer
        assert children() == before


def write(folder, **parts):
    """A tokenizer of a few words."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model} | parts))
    return folder


class TestCraftedFiles:
    """What the library answers with a panic, the end of the process, or all memory there is."""

    @pytest.mark.parametrize(
        "model",
        [
            {"type": "BPE", "vocab": {"éé": 1, "é": 0}, "merges": ["é é"], "continuing_subword_prefix": "x"},
            {
                "type": "BPE",
                "vocab": {"ab": 2, "a": 0, "b": 1},
                "merges": [["a", "b"]],
                "continuing_subword_prefix": "xyz",
            },
            {"type": "WordLevel", "vocab": {"a": 0, "b": 2**32 - 1}, "unk_token": "a"},
            [],
        ],
    )
    def test_a_model_of_words_that_cannot_be_is_refused(self, tmp_path, model):
        with pytest.raises(ModelFormatError, match="not a readable tokenizer"):
            Tokenizer.from_folder(write(tmp_path, model=model))

    @pytest.mark.parametrize(("stage", "inner"), [("normalizer", "normalizers"), ("decoder", "decoders")])
    def test_a_stage_that_makes_a_letter_billions_is_refused(self, tmp_path, stage, inner):
        longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
        parts = {stage: {"type": "Sequence", inner: [longer] * 6}}
        with pytest.raises(ModelFormatError, match=f"its {stage} makes 1e\\+12 letters of one"):
            Tokenizer.from_folder(write(tmp_path, **parts))

    def test_a_pattern_that_never_ends_is_refused_with_the_text(self, tmp_path):
        split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
        tokenizer = Tokenizer.from_folder(write(tmp_path, pre_tokenizer=split))
        with pytest.raises(ModelFormatError, match="cannot encode 'aaa.*retry-limit"):
            tokenizer.encode("a" * 60 + "b")

    def test_a_decoder_that_cuts_more_than_there_is_is_refused(self, tmp_path):
        strip = {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}
        tokenizer = Tokenizer.from_folder(write(tmp_path, decoder=strip))
        with pytest.raises(ModelFormatError, match="cannot decode"):
            tokenizer.decode([0])

    def test_a_text_is_encoded_as_long_as_it_is(self, tmp_path):
        pad = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
        cut = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        split = {"type": "Whitespace"}
        folder = write(tmp_path, padding=pad | {"strategy": {"Fixed": 2**40}}, truncation=cut, pre_tokenizer=split)
        assert Tokenizer.from_folder(folder).encode("b b b") == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, r"tokenizer\.json: no such file"),
        ("tokenizer.json", "{}", r"tokenizer\.json: not a readable tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not valid JSON"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(tiny_folder, name, content, message):
    (tiny_folder / name).unlink()
    if content is not None:
        (tiny_folder / name).write_text(content)
    with pytest.raises(ModelFormatError, match=message):
        Tokenizer.from_folder(tiny_folder)


def bytes_tokenizer():
    """One token per byte, so that ids can spell any sequence of bytes, valid UTF-8 or not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, settings={}, source=Path("bytes"))


def words_tokenizer():
    """Words that begin with a space, the first of which is dropped when a text is decoded, as in Llama 2."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1, "c": 2, "<s>": 3}, merges=[]))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, settings={}, source=Path("words"))


class TestStreams:
    def test_half_a_character_is_held_back(self):
        tokenizer = bytes_tokenizer()
        stream = StreamDecoder(tokenizer)
        pieces = [stream.push([token]) for token in tokenizer.encode("é🦊!")]
        assert pieces == ["", "é", "", "", "", "🦊", "!"]

    def test_what_never_became_a_character_is_marked_at_the_end(self):
        tokenizer = bytes_tokenizer()
        stream = StreamDecoder(tokenizer)
        assert stream.push(tokenizer.encode("ok🦊")[:-1]) == ""
        assert stream.finish() == "ok\N{REPLACEMENT CHARACTER}"
        assert stream.finish() == ""

    def test_special_tokens_are_left_out(self):
        assert StreamDecoder(words_tokenizer()).push([3, 0]) == "a"

    @given(st.lists(st.integers(0, 255), max_size=40), st.integers(1, 5))
    def test_pieces_joined_are_the_whole_for_any_bytes(self, ids, stride):
        self._assert_joined(bytes_tokenizer(), ids, stride)

    @given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 3))
    def test_pieces_joined_are_the_whole_where_a_leading_space_is_dropped(self, ids, stride):
        self._assert_joined(words_tokenizer(), ids, stride)

    def _assert_joined(self, tokenizer, ids, stride):
        stream = StreamDecoder(tokenizer)
        pieces = [stream.push(ids[start : start + stride]) for start in range(0, len(ids), stride)]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


def test_a_text_that_the_vocabulary_has_no_token_for_is_an_error_of_ours(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="none"))
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFormatError, match="the tokenizer cannot encode 'b'"):
        Tokenizer.from_folder(tmp_path).encode("b")
