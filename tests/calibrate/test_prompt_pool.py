"""The larger set of prompts that ships."""

import re
from collections import Counter, defaultdict

from calibrate.prompts import Prompt, bundled_prompts
from mirrorsd.prompt_tokens import encode

DEMO, POOL, LONG = (bundled_prompts(name) for name in ("demo", "pool", "long"))
NEW = POOL[len(DEMO) :]
NUM_WORDS = 7


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


def test_new_prompts_of_mt_bench_have_its_eight_kinds():
    kinds = Counter(one.prompt_id.split("-")[1] for one in NEW if one.category == "mt_bench")
    assert kinds == dict.fromkeys({one.prompt_id.split("-")[1] for one in DEMO if one.category == "mt_bench"}, 4)


def test_a_new_prompt_has_no_seven_words_in_a_row_that_stand_in_any_other():
    holders = defaultdict(list)
    for prompt in (*POOL, *LONG):
        for run in runs_of_words(prompt):
            holders[run].append(prompt.prompt_id)
    assert [(run, holders[run]) for prompt in NEW for run in runs_of_words(prompt) if len(holders[run]) > 1] == []


def test_new_prompts_have_34_to_239_tokens_but_one_in_ten_250_to_450(embedded_model_folder):
    lengths = [len(prompt.ids) for prompt in encode(NEW, embedded_model_folder)]
    long = [length for length in lengths if length >= 250]
    short = [length for length in lengths if length < 250]
    assert (len(short), min(short), max(short)) == (173, 34, 239)
    assert (len(long), min(long), max(long)) == (19, 260, 426)
