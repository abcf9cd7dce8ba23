"""What a run says at its end: its numbers, and a draft that was never right; and by what it was computed."""

import pytest

from decoding.schedule import Schedule
from mirrorsd.cli.verbs.run import _computing, _never_accepted, _summary
from runtime.lanes.lane import LaneSpec


def test_a_summary_has_the_numbers_of_metrics_with_both_times_added_up_over_the_prompts():
    row = {"num_rounds": 1, "decode_s": 0.5, "token_ids": [1]}
    found = _summary([row | {"prefill_s": 0.2}, row | {"prefill_s": 0.4}])
    assert (found["prefill_s"], found["decode_s"], found["tpot_s"]) == (pytest.approx(0.6), 1.0, 0.5)


@pytest.mark.parametrize(
    ("method", "num_rounds", "num_tokens", "is_told"),
    [
        ("speculative", 32, 31, True),
        ("medusa", 40, 40, True),
        ("speculative", 32, 33, False),
        ("speculative", 31, 31, False),
        ("prompt_lookup", 40, 40, False),
        ("autoregressive", 40, 40, False),
    ],
)
def test_a_draft_that_is_never_right_may_be_one_of_another_target(method, num_rounds, num_tokens, is_told):
    """A lookup may well find nothing."""
    drafting = {"num_speculative_tokens": 2, "draft_lane": "a", "drafter": "d"} if method != "autoregressive" else {}
    tree = {"tree_size": 2} if method == "medusa" else {}
    schedule = Schedule(method=method, target_lane="a", **drafting, **tree)
    told = list(_never_accepted(schedule, "t", {"num_rounds": num_rounds, "num_tokens": num_tokens}))
    assert told == [f"no drafted token was accepted in {num_rounds} rounds: is d made for t (--target)?"] * is_told


def test_the_same_lanes_in_another_order_are_no_other_threads():
    lanes = LaneSpec(name="cpu0"), LaneSpec(name="cpu1", num_threads=2)
    schedule = Schedule(method="speculative", target_lane="cpu1", draft_lane="cpu0", num_speculative_tokens=2)
    both = [_computing(schedule, order)["threads"] for order in (lanes, lanes[::-1])]
    assert both == ["cpu0: 1, cpu1: 2"] * 2
