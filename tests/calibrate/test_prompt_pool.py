"""The larger set of prompts that ships, and what demos draw from it."""

import re
from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from calibrate.prompts import Prompt, bundled_prompts, draw_prompts, take_turns
from mirrorsd.prompt_tokens import encode

DEMO, POOL, LONG = (bundled_prompts(name) for name in ("demo", "pool", "long"))
NEW = POOL[len(DEMO) :]
NUM_WORDS = 7
SEEDS = st.integers(0, 2**32)
SETS = st.lists(st.integers(0, 6), max_size=5).map(
    lambda sizes: [
        Prompt(prompt_id=f"{kind}{place}", category=str(kind), turns=("text",))
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


def test_kinds_of_task_take_turns():
    prompts = [Prompt(prompt_id=name, category=name[0], turns=("text",)) for name in ("a1", "a2", "a3", "b1", "b2")]
    assert names(take_turns(prompts)) == ["a1", "b1", "a2", "b2", "a3"]


@given(SETS, st.integers(0, 40), SEEDS)
def test_a_draw_is_of_the_set_without_repeats_and_as_large_as_wanted(prompts, count, seed):
    drawn = draw_prompts(prompts, count, seed)
    assert len(set(names(drawn))) == len(drawn) == min(count, len(prompts))
    assert set(drawn) <= set(prompts)


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
