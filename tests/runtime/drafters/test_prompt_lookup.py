"""Prompt lookup drafts what followed the longest n-gram before, most recently; it ships for every target."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ModelFormatError
from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.drafters.prompt_lookup import NgramIndex, load_prompt_lookup
from runtime.drafters.registry import DrafterContext, find_drafter, load_drafter
from tests.runtime import plain
from tests.runtime.thread_lanes import thread_engine
from tests.tiny_heads import run

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def found(text, num_tokens, *, sizes=(1, 3)):
    index = NgramIndex(min_ngram=sizes[0], max_ngram=sizes[1])
    index.extend(text)
    return index.continuation(num_tokens)


def found_by_hand(text, num_tokens, sizes):
    for size in range(sizes[1], sizes[0] - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                whole = list(text)
                while len(whole) < len(text) + num_tokens:
                    whole.append(whole[end + len(whole) - len(text)])
                return tuple(whole[len(text) :])
    return ()


@given(TOKENS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_it_finds_what_a_plain_search_finds(text, num_tokens, least, more):
    sizes = (least, least + more)
    assert found(text, num_tokens, sizes=sizes) == found_by_hand(text, num_tokens, sizes)


@given(TOKENS, st.integers(0, 40))
def test_a_text_may_come_in_pieces(text, cut):
    index = NgramIndex(min_ngram=1, max_ngram=3)
    index.extend(text[:cut])
    index.continuation(4)
    index.extend(text[cut:])
    assert index.continuation(4) == found(text, 4)


CONFIG: dict[str, Any] = {"speculators_model_type": "mirrorsd_prompt_lookup", "min_ngram": 1, "max_ngram": 2}


def folder_of(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_a_folder_gives_a_drafter_with_its_settings(tmp_path):
    drafter = load_prompt_lookup(folder_of(tmp_path, CONFIG))
    schedule = Schedule(method="prompt_lookup", target_lane="t", draft_lane="t", num_speculative_tokens=2)
    drafter.prefill([1, 2, 3, 1], schedule=schedule, capacity=20)
    for committed, window in (((), (2, 3)), ((2, 9), ()), ((1, 2), (9, 1))):
        assert run(drafter.rollout(committed)) == (Window(window), [1])


def test_the_shipped_one_loads_without_its_target(tmp_path):
    def load_target():
        raise AssertionError("nothing of the target is needed")

    context = DrafterContext(
        target_folder=tmp_path, dtype=torch.float32, load_target=load_target, new_backend=load_target
    )
    assert load_drafter(find_drafter("prompt-lookup"), context).methods == ("prompt_lookup",)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"min_ngram": 3}, "min_ngram is 3, more than max_ngram 2"),
        (CONFIG | {"max_ngram": 0}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_config_is_refused_with_its_path(tmp_path, config, message):
    with pytest.raises(ModelFormatError, match=message) as error:
        load_prompt_lookup(folder_of(tmp_path, config))
    assert "config.json" in str(error.value)


@pytest.mark.parametrize("draft_lane", ["big", "small"])
def test_text_is_that_of_plain_decoding(tiny_folders, draft_lane):
    schedule = Schedule(
        method="prompt_lookup",
        target_lane="big",
        draft_lane=draft_lane,
        drafter="prompt-lookup",
        num_speculative_tokens=3,
    )
    prompt = [5, 17, 3]
    with thread_engine(tiny_folders.target) as engine:
        again = plain.continue_text(tiny_folders.decoder, prompt, 12)
        repeated = [*prompt, *again, *prompt]
        found = engine.generate(schedule, repeated, max_new_tokens=20, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, repeated, 20)
    assert max(entry.num_drafted for entry in found.trace.rounds) == 3
