"""Prompts are dealt into two fair halves, or not at all."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from planner.search.space import FEWEST, choosing_part, halves, judging_part
from tests.planner.synthetic import acceptance_record

EIGHT = acceptance_record(num_prompts=8, num_tokens=4)


def of_kinds(kinds):
    prompts = (replace(EIGHT.prompts[0], category=kind) for kind in kinds)
    return replace(EIGHT, prompts=tuple(prompts))


@given(st.lists(st.sampled_from("abc"), min_size=FEWEST, max_size=20))
def test_every_prompt_is_in_one_half_and_kinds_are_shared_out(kinds):
    record = of_kinds(kinds)
    parts = halves(record)
    assert sorted(parts.choosing + parts.judging) == list(range(len(kinds)))
    assert len(parts.choosing) - len(parts.judging) in (0, 1)
    counts = [Counter(kinds[place] for place in half) for half in (parts.choosing, parts.judging)]
    assert all(abs(counts[0][kind] - counts[1][kind]) <= 1 for kind in "abc")


def test_kinds_that_alternate_do_not_end_up_in_a_half_each():
    parts = halves(of_kinds("abababab"))
    assert (parts.choosing, parts.judging) == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_of_one_kind_even_and_odd_places_part():
    parts = halves(of_kinds("aaaaa"))
    assert (parts.choosing, parts.judging) == ((0, 2, 4), (1, 3))


def test_few_prompts_are_not_parted():
    record = of_kinds("aab")
    assert halves(record) is None
    assert choosing_part(record) is judging_part(record) is record


def test_the_parts_are_records_of_these_prompts():
    names = [prompt.name for prompt in EIGHT.prompts]
    parts = halves(EIGHT)
    assert [prompt.name for prompt in choosing_part(EIGHT).prompts] == [names[place] for place in parts.choosing]
    assert [prompt.name for prompt in judging_part(EIGHT).prompts] == [names[place] for place in parts.judging]
