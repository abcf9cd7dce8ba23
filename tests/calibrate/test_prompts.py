"""Prompt sets: how files of them are read, the sets that ship, and what demos draw from them."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate import prompts
from calibrate.prompts import (
    EncodedPrompt,
    Prompt,
    bundled_prompts,
    draw_prompts,
    load_prompts,
    take_per_category,
    take_turns,
)
from decoding.errors import ConfigError
from mirrorsd.prompt_tokens import encode, encode_with

KINDS = {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"}


def write(folder: Path, *rows: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_the_shipped_set_has_eight_different_prompts_of_every_kind():
    prompts = bundled_prompts()
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(KINDS, 8)
    assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_the_long_set_reaches_over_every_edge_of_a_buffer(embedded_model_folder):
    lengths = [len(prompt.ids) for prompt in encode(bundled_prompts("long"), embedded_model_folder)]
    assert lengths == sorted(lengths)
    assert 300 <= lengths[0] < 512 < lengths[2] < 1024 < lengths[-1] <= 1500


def test_a_file_of_an_editor_on_windows_is_read(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "Why?"}\r\n{"prompt": "How?"}\r\n')
    assert [prompt.text for prompt in load_prompts(path)] == ["Why?", "How?"]


def test_all_three_kinds_of_row_are_read_in_file_order(tmp_path):
    path = write(
        tmp_path,
        {"prompt_id": "a", "category": "qa", "prompt": "Why?"},
        "",
        {"prompt": "How?"},
        {"id": 7, "prompt": "Who?"},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["Count."], "reference": ["3"]},
    )
    assert load_prompts(path) == (
        Prompt(prompt_id="a", category="qa", turns=("Why?",)),
        Prompt(prompt_id="set-3", category="", turns=("How?",)),
        Prompt(prompt_id="7", category="", turns=("Who?",)),
        Prompt(prompt_id="81", category="mt_bench", turns=("First.", "Second.")),
        Prompt(prompt_id="401", category="math_reasoning", turns=("Count.",)),
    )
    assert load_prompts(path)[3].text == "First."


def test_our_own_rows_keep_their_category_even_if_mt_bench_uses_the_word(tmp_path):
    assert load_prompts(write(tmp_path, {"category": "math", "prompt": "2 + 2?"}))[0].category == "math"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("Why is the sky blue?", r"set.jsonl:2: no JSON .*character 1\); a row is .\"prompt\""),
        ("[1]", "set.jsonl:2: expected a JSON object, found list"),
        ({"text": "x"}, r"set.jsonl:2: found neither 'prompt' nor 'turns' among the keys \['text'\]"),
        ({"prompt": " "}, "set.jsonl:2: 'prompt' should be a text that is not empty, found ' '"),
        ({"turns": []}, "set.jsonl:2: 'turns' should be a list of texts"),
        ({"turns": "Hello"}, "set.jsonl:2: 'turns' should be a list of texts .*, found 'Hello'"),
        ({"prompt_id": "a", "prompt": "again"}, "set.jsonl:2: the id 'a' is that of line 1 already"),
        ({"prompt": "half \ud800 a pair"}, "set.jsonl:2: .*half a pair of surrogates"),
        ({"prompt_id": "\udfff", "prompt": "x"}, "set.jsonl:2: .*half a pair of surrogates"),
        (
            {"prompt_id": [1], "prompt": "x"},
            r"set.jsonl:2: 'prompt_id' should be a text or a whole number, found \[1\]",
        ),
        ({"prompt_id": "a" * 201, "prompt": "x"}, "set.jsonl:2: prompt_id has 201 characters; at most 200 are read"),
        ('{"prompt": "a", "prompt": "b"}', "set.jsonl:2: the key 'prompt' is repeated"),
        ({"id": "a", "prompt": "again"}, "set.jsonl:2: the id 'a' is that of line 1 already"),
        ({"prompt": "x" * 1_000_001}, "set.jsonl:2: the text has 1,000,001 characters; at most 1,000,000 are read"),
        ({"prompt": ["x" * 10_000]}, "set.jsonl:2: 'prompt' should be a text that is not empty, found "),
        ("[" * 100_000, "set.jsonl:2: nested too deep"),
        ('{"prompt": NaN}', "set.jsonl:2: NaN is no number"),
        (f'{{"prompt": {"9" * 5000}}}', "set.jsonl:2: Exceeds the limit"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_line(tmp_path, row, complaint):
    path = write(tmp_path, {"prompt_id": "a", "prompt": "fine"}, row)
    with pytest.raises(ConfigError, match=complaint):
        load_prompts(path)


def test_files_that_are_missing_empty_or_too_large_are_errors(tmp_path, monkeypatch):
    for missing in (tmp_path / "none.jsonl", "a\0b.jsonl"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_prompts(missing)
    with pytest.raises(ConfigError, match="holds no prompt"):
        load_prompts(write(tmp_path, ""))
    monkeypatch.setattr(prompts, "MAX_FILE_BYTES", 20)
    with pytest.raises(ConfigError, match=r"set\.jsonl: cannot be read \(larger than the 20 bytes"):
        load_prompts(write(tmp_path, {"prompt": "somewhat longer"}))


def test_a_prompt_of_the_command_line_is_held_to_the_same_limits():
    with pytest.raises(ConfigError, match="the text has 1,000,001 characters"):
        Prompt(prompt_id="prompt", category="", turns=("x" * 1_000_001,))
    with pytest.raises(ConfigError, match="half a pair of surrogates"):
        Prompt(prompt_id="prompt", category="", turns=("\udc80",))


@pytest.mark.parametrize("turns", ["Why is the sky blue?", (), (504, 6330)])
def test_turns_that_are_no_list_of_texts_are_refused(turns):
    with pytest.raises(ConfigError, match=re.escape(f"turns should be a list of texts, found {turns!r}")):
        Prompt(prompt_id="mine", category="", turns=turns)


def test_the_subset_is_the_first_of_each_category_in_file_order():
    prompts = [Prompt(prompt_id=f"{kind}{n}", category=kind, turns=("x",)) for n in range(3) for kind in "ba"]
    assert [prompt.prompt_id for prompt in take_per_category(prompts, 2)] == ["b0", "a0", "b1", "a1"]


def test_the_first_turn_alone_is_put_to_the_target_as_a_user_would():
    class Tokenizer:
        has_chat_template = True

        def encode_chat(self, messages):
            ((role, text),) = [(message["role"], message["content"]) for message in messages]
            assert role == "user"
            return [ord(letter) for letter in text]

    prompts = [
        Prompt(prompt_id="one", category="qa", turns=("ab", "never said")),
        Prompt(prompt_id="two", category="", turns=("c",)),
    ]
    assert encode_with(Tokenizer(), prompts, 128) == (
        EncodedPrompt("one", "qa", (97, 98)),
        EncodedPrompt("two", "", (99,)),
    )


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path):
    text = "one\N{LINE SEPARATOR}two"
    assert load_prompts(write(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False)))[0].text == text


DEMO, POOL, LONG = (bundled_prompts(name) for name in ("demo", "pool", "long"))
NEW = POOL[len(DEMO) :]
NUM_WORDS = 7
SEEDS = st.integers(0, 2**32)
SETS = st.lists(st.integers(0, 6), max_size=5).map(
    lambda sizes: [
        Prompt(prompt_id=f"{kind}{place}", category=str(kind), turns=(f"{kind} of {place}",))
        for kind, size in enumerate(sizes)
        for place in range(size)
    ]
)


def names(prompts) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def runs_of_words(prompt: Prompt) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", prompt.text.lower())
    return {tuple(words[start : start + NUM_WORDS]) for start in range(max(1, len(words) - NUM_WORDS + 1))}


def test_the_pool_begins_with_the_demos_prompts_and_has_forty_of_every_kind():
    assert POOL[: len(DEMO)] == DEMO
    assert Counter(prompt.category for prompt in POOL) == dict.fromkeys({one.category for one in DEMO}, 40)


def test_prompts_are_named_after_their_kind_and_no_name_stands_twice_in_any_set():
    assert max(Counter(names((*POOL, *LONG))).values()) == 1
    assert [one.prompt_id for one in POOL if not one.prompt_id.startswith(f"{one.category}-")] == []


def test_a_new_prompt_has_no_seven_words_in_a_row_that_stand_in_any_other():
    holders = defaultdict(list)
    for prompt in (*POOL, *LONG):
        for run in runs_of_words(prompt):
            holders[run].append(prompt.prompt_id)
    assert [(run, holders[run]) for prompt in NEW for run in runs_of_words(prompt) if len(holders[run]) > 1] == []


def test_kinds_of_task_take_turns():
    prompts = [Prompt(prompt_id=name, category=name[0], turns=("text",)) for name in ("a1", "a2", "a3", "b1", "b2")]
    assert names(take_turns(prompts)) == ["a1", "b1", "a2", "b2", "a3"]


@given(SETS, st.integers(0, 40), SEEDS)
def test_a_draw_is_of_the_set_without_repeats_and_as_large_as_wanted(prompts, count, seed):
    drawn = draw_prompts(prompts, count, seed)
    assert len(set(names(drawn))) == len(drawn) == min(count, len(prompts))
    assert set(drawn) <= set(prompts)


def test_a_text_is_drawn_once_by_whatever_names():
    prompts = [Prompt(prompt_id=name, category="", turns=(name[0],)) for name in ("a1", "b1", "a2", "b2", "c1")]
    assert {tuple(sorted(names(draw_prompts(prompts, 5, seed)))) for seed in range(9)} == {("a1", "b1", "c1")}


@given(SETS, st.integers(0, 40), SEEDS)
def test_every_kind_has_as_many_as_any_other_but_one_unless_all_of_it_is_drawn(prompts, count, seed):
    taken = Counter(prompt.category for prompt in draw_prompts(prompts, count, seed))
    most = max(taken.values(), default=0)
    for kind, size in Counter(prompt.category for prompt in prompts).items():
        assert taken[kind] >= min(size, most - 1)


@given(SETS, st.integers(0, 40), st.integers(0, 40), SEEDS)
def test_the_seed_determines_the_draw_and_a_smaller_one_begins_a_larger(prompts, count, more, seed):
    assert draw_prompts(prompts, count, seed) == draw_prompts(prompts, count + more, seed)[:count]


def test_draws_of_other_seeds_are_others_begin_with_any_kind_and_reach_every_prompt():
    draws = [draw_prompts(POOL, 12, seed) for seed in range(300)]
    assert len({frozenset(names(draw)) for draw in draws}) == 300
    assert {draw[0].category for draw in draws} == {prompt.category for prompt in POOL}
    assert {name for draw in draws for name in names(draw)} == set(names(POOL))
