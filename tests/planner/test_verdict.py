"""A verdict's sentences: each template once, and none that contradicts the table it is made from."""

import re
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.schedule import Schedule
from planner.paired_ratio import Ratio
from planner.verdict import PAYS, Claim, SpeculationVerdict, rivals, times, would_decide

RATIOS = st.builds(
    lambda value, prompts, machine, pairs: Ratio(
        value=value, num_pairs=pairs, prompts_error=prompts if pairs > 1 else inf, machine_error=machine
    ),
    st.floats(0.05, 20.0),
    st.floats(0.0, 2.0),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(1, 40),
)
SAID = {"yes": "Yes, ", "no": "No, ", "cannot_tell": "Cannot tell"}


def ratio(value, error=0.1, machine_error=0.0, num_pairs=9):
    return Ratio(value=value, num_pairs=num_pairs, prompts_error=error, machine_error=machine_error)


def verdict(found, compared=(), **more):
    others = tuple(Claim(one="a", other=f"rival {place}", ratio=rival) for place, rival in enumerate(compared))
    claim = Claim(one="a", other="plain", ratio=found)
    pays = PAYS[found.outcome]
    return SpeculationVerdict(pays=pays, claim=claim, basis="measured", recommended="a", others=others, **more)


@given(RATIOS, st.lists(RATIOS, max_size=5))
def test_no_sentence_contradicts_the_ratios_that_it_is_made_from(found, others):
    told = verdict(found, others)
    assert told.headline.startswith(SAID[told.pays])
    assert times(found) in told.headline
    for place, (item, ratio) in enumerate(zip(rivals(told.others), others, strict=True)):
        assert item.startswith(f'"rival {place}" {times(ratio)}')
        assert item.endswith("would decide") == (ratio.outcome == "cannot tell")


@given(RATIOS, st.sampled_from(["yes", "no"]))
def test_an_answer_that_its_own_ratio_contradicts_cannot_be_made(found, pays):
    claim = Claim(one="a", other="plain", ratio=found)
    if PAYS[found.outcome] == pays:
        assert SpeculationVerdict(pays=pays, claim=claim, basis="").pays == pays
    else:
        with pytest.raises(ValueError, match="contradicts a ratio of"):
            SpeculationVerdict(pays=pays, claim=claim, basis="")


@pytest.mark.parametrize(("found", "method"), [(1.5, "autoregressive"), (0.5, "prompt_lookup")])
def test_an_answer_cannot_recommend_its_opposite(found, method):
    drafter = {"draft_lane": "b", "drafter": "prompt_lookup", "num_speculative_tokens": 2} if found < 1 else {}
    with pytest.raises(ValueError, match="contradicts a recommended schedule"):
        verdict(ratio(found), schedule=Schedule(method=method, target_lane="a", **drafter))


def test_without_anything_to_compare_there_is_no_yes():
    with pytest.raises(ValueError, match="yes contradicts"):
        SpeculationVerdict(pays="yes", claim=None, basis="")
    missing = SpeculationVerdict(pays="no", claim=None, basis="nothing drafts")
    assert missing.headline == "No, speculation does not pay here: nothing drafts."
    assert missing.speedup is None


def test_three_lines_then_warnings_then_what_stands_behind_them():
    told = verdict(
        ratio(1.5), [ratio(1.2)], why=("it is",), next_step=("use it",), facts={"Left out": ()}, warnings=("Look.",)
    )
    assert told.lines == (
        "Yes, speculation pays here: 1.50× (1.36× to 1.66×) the speed of plain decoding, measured.",
        "Why: it is.",
        "Next: use it.",
    )
    assert told.explained == ('Speed of "a" over that of: "rival 0" 1.20× (1.09× to 1.33×).',)
    assert told.text.splitlines() == [*told.lines, "Look.", *told.explained]
    assert told.entry["verdict"].splitlines() == list(told.lines)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ratio(1.1, 0.2), r"about \d+ prompts like these"),
        (ratio(1.1, inf, num_pairs=1), "more than one prompt"),
        (ratio(1.1, 0.1, machine_error=0.5), "runs of both on more prompts"),
        (ratio(1.0001, 0.2), "not even 1,000 prompts"),
    ],
)
def test_it_says_what_would_decide(found, said):
    assert re.fullmatch(f"{said} would decide", would_decide(found))
    assert times(ratio(2.0, inf, num_pairs=1)) == "2×", "one prompt has no interval"


def test_where_runs_cannot_be_compared_a_narrower_profile_would_decide():
    assert would_decide(ratio(1.1, 0.1, machine_error=0.5), can_be_run=False).startswith("a profile with narrower")
    near = Claim(one="a", other="b", ratio=ratio(1.1, 0.1, machine_error=0.5))
    told = SpeculationVerdict(
        pays="cannot_tell", claim=near, basis="", recommended="a", others=(near,), can_be_run=False
    )
    assert "a profile with narrower intervals would decide" in told.text


@pytest.mark.parametrize(
    ("ratios", "turns_at", "why"),
    [
        ({}, None, None),
        ({64: 1.2}, None, None),
        ({32: 1.2, 64: 1.3}, None, r"1\.20× for answers of 32 tokens\."),
        ({32: 1.01, 64: 0.99, 128: 1.03}, None, r"1\.01× for answers of 32 tokens\."),
        ({32: 1.2, 64: 1.03}, None, r"1\.20× for answers of 32 tokens\."),
        (
            {32: 0.8, 64: 1.2, 128: 1.3},
            64,
            "0.80× for answers of 32 tokens; speculation is known to be ahead from",
        ),
        ({32: 0.99, 64: 1.01, 128: 1.2}, 128, "speculation is known to be ahead from about 128 tokens on"),
        ({32: 1.2, 64: 0.99, 128: 0.8}, 128, "speculation is known to be behind from about 128 tokens on"),
        ({32: 1.2, 64: 0.8, 128: 1.2}, 128, "speculation is known to be ahead from about 128 tokens on"),
    ],
)
def test_it_says_for_which_length_of_answers_it_holds_and_where_it_turns(ratios, turns_at, why):
    lengths = {length: ratio(value) for length, value in ratios.items()}
    told = verdict(lengths[max(lengths)] if lengths else ratio(1.2), by_length=lengths)
    assert told.turns_at == turns_at
    assert (f"for answers of up to {max(lengths)} tokens." if lengths else "measured.") in told.headline
    assert bool(re.search(why or "answers of 32", told.lines[1] if len(told.lines) > 1 else "")) == (why is not None)
    assert ("By length of answers: " in told.text) == bool(lengths)
