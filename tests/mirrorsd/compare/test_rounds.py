import pytest

from calibrate.validate import Comparison, Divergence
from decoding.trace import Round
from mirrorsd.compare.rounds import is_unexplained, rounds_in_words

SIMULATED, MEASURED = Round(0, 1, 2, 1, 2, (1, 7), None), Round(0, 1, 2, 0, 1, (0, 9), True)
ALARM = "This should not happen"


def compared(name, *divergences, is_tree=False, num_prompts=4):
    return Comparison(
        schedule=name,
        num_prompts=num_prompts,
        divergences=divergences,
        simulated_tpot_s=1.0,
        measured_tpot_s=1.0,
        at_anchor_s=(1.0,) * num_prompts,
        measured_tpot_s_at_anchor=1.0,
        is_tree=is_tree,
    )


def divergence(by="target", margin=0.0625):
    return Divergence(prompt="p1", round=2, position=5, simulated=SIMULATED, measured=MEASURED, by=by, margin=margin)


def test_rounds_that_are_the_same_everywhere():
    expected = "All 8 texts went through exactly the rounds that were simulated."
    assert rounds_in_words([compared("a"), compared("b", is_tree=True)], "bfloat16", is_row_invariant=True) == expected


def test_a_near_tie_of_the_target_is_explained():
    text = rounds_in_words([compared("a"), compared("b", divergence())], "bfloat16")
    assert text == (
        "1 of 8 texts with chains left the simulated rounds. First: b, prompt p1, round 3, after 5 new tokens: "
        "predicted 1 of 2 accepted, then token 7, measured 0 of 2 accepted, then token 9 (hit). The target's two best "
        "logits are 0.062 apart there, which bfloat16 rounds otherwise among other rows."
    )


def test_what_is_far_apart_or_exact_is_not_explained_by_rounding():
    for dtype, margin in (("bfloat16", 1.375), ("float32", 0.0625)):
        text = rounds_in_words([compared("b", divergence(margin=margin))], dtype)
        assert text.endswith(f"two best logits are {margin:.3f} apart there.")


@pytest.mark.parametrize("by", ["draft", "lost lane"])
def test_the_targets_margin_is_not_blamed_where_another_decided(by):
    chain = compared("b", divergence(by=by, margin=None))
    text = rounds_in_words([chain], "bfloat16", is_row_invariant=by == "lost lane")
    assert text.endswith(f" It was decided by the {by}.")
    assert is_unexplained(chain) == (by == "draft")


def test_a_chain_that_leaves_the_rounds_where_rows_are_invariant_is_an_alarm():
    chain = compared("b", divergence())
    for known, expected in ((True, True), (False, False), (None, False)):
        assert (ALARM in rounds_in_words([chain], "bfloat16", is_row_invariant=known)) == expected
    assert is_unexplained(chain)


def test_trees_are_counted_apart_with_their_reason_and_are_no_alarm():
    tree = compared("c", divergence(), divergence(), is_tree=True, num_prompts=6)
    text = rounds_in_words([compared("a"), tree], "bfloat16", is_row_invariant=True)
    assert text.startswith("0 of 4 texts with chains left the simulated rounds. 2 of 6 texts with trees left the ")
    assert text.endswith("apart there, which bfloat16 rounds otherwise among other rows.")
    assert ALARM not in text
    assert not is_unexplained(tree)
