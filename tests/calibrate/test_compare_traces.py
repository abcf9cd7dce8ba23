from dataclasses import replace

import pytest

from calibrate.compare_traces import TracePair, compare, first_divergence
from decoding.trace import LaneEvent, Round, Span, Trace, Work

ROUNDS = ((3, 2, 3), (3, 0, 1), (3, 3, 4))
"""num_drafted, num_accepted, num_committed of a run that is the same in both worlds."""
TEXT = list(range(8))


def trace(world: str, round_s: float, rounds=ROUNDS, next_tokens=(7, 8, 9)) -> Trace:
    """A run whose rounds each take `round_s` seconds, four fifths of it verifying."""
    result = Trace(world=world, decode_s=round_s * len(rounds))
    for index, ((drafted, accepted, committed), token) in enumerate(zip(rounds, next_tokens, strict=True)):
        start = index * round_s
        result.rounds.append(
            Round(start, start + round_s, drafted, accepted, committed, (accepted, token), accepted > 0)
        )
        result.spans.append(Span("cpu0", Work.VERIFY, start, start + 0.8 * round_s, index, drafted + 1))
    return result


def pair(simulated_s: float = 1.0, measured_s: float = 1.0, **measured: object) -> TracePair:
    return TracePair(
        prompt="p",
        simulated=trace("simulated", simulated_s),
        measured=trace("measured", measured_s, **measured),
        texts=(TEXT, TEXT),
    )


def test_equal_decisions_at_any_speed_are_the_same_rounds():
    assert compare("s", [pair(1.0, 2.0)]).same_rounds


@pytest.mark.parametrize(
    ("measured", "round_index", "position"),
    [
        ({"next_tokens": (6, 8, 9)}, 0, 0),
        ({"rounds": ((3, 2, 3), (3, 1, 2), (3, 3, 4))}, 1, 3),
        ({"rounds": ROUNDS[:2], "next_tokens": (7, 8)}, 2, 4),
        ({"rounds": (*ROUNDS, (3, 0, 1)), "next_tokens": (7, 8, 9, 9)}, 3, 8),
    ],
)
def test_the_first_differing_round_is_found(measured, round_index, position):
    found = first_divergence(pair(**measured))
    assert (found.round, found.position) == (round_index, position)
    assert not compare("s", [pair(**measured)]).same_rounds


def test_a_round_that_differs_only_in_its_hit_is_a_divergence():
    other = pair()
    other.measured.rounds[1] = other.measured.rounds[1]._replace(hit=True)
    assert first_divergence(other).round == 1


def test_time_at_the_anchors_is_summed_over_prompts_each_at_its_own_pace():
    """Two prompts that took 1 s a round on a machine at its speed, one of them met at half that speed."""
    slow = replace(pair(1.0, 2.0), pace=2.0)
    comparison = compare("s", [pair(1.0, 1.0), slow])
    assert comparison.at_anchor_s == pytest.approx((3.0, 3.0))


MARGINS = [float(place) for place in range(8)]
EARLY = {"rounds": ((3, 1, 2), *ROUNDS[1:])}


@pytest.mark.parametrize(
    ("texts", "measured", "by", "margin"),
    [
        ((TEXT, [0, 1, 6, *TEXT[3:]]), {"next_tokens": (6, 8, 9)}, "target", 2.0),
        ((TEXT, TEXT[:4]), {"rounds": ROUNDS[:2], "next_tokens": (7, 8)}, "target", 4.0),
        ((TEXT, TEXT), EARLY, "draft", None),
        ((TEXT, [*TEXT[:7], 99]), EARLY, "draft", None),
    ],
    ids=["another token", "an earlier end", "the same text", "a token that differs only later"],
)
def test_the_target_decided_where_its_token_differs_in_that_round_with_the_margin_there(texts, measured, by, margin):
    found = first_divergence(replace(pair(**measured), texts=texts), MARGINS)
    assert (found.by, found.margin) == (by, margin)


def test_a_lost_lane_explains_rounds_that_differ():
    lost = pair(rounds=((3, 0, 1), *ROUNDS[1:]))
    lost.measured.events.append(LaneEvent(0.5, "cpu1", "lost"))
    found = first_divergence(lost, MARGINS)
    assert (found.by, found.margin) == ("lost lane", None)
    lost.measured.events[:] = [LaneEvent(0.5, "cpu1", "No further prompts ran", is_loss=False)]
    assert first_divergence(lost, MARGINS).by != "lost lane"


def test_paces_of_single_runs_are_averaged_before_anything_is_divided_by_them():
    """A pace that was mistaken for twice what it was moves the mean by its share, and not by half of its prompt."""
    pairs = [replace(pair(1.0, 1.0), pace=pace) for pace in (1.0, 1.0, 1.0, 2.0)]
    found = compare("s", pairs)
    assert sum(found.at_anchor_s) == pytest.approx(sum(one.measured.decode_s for one in pairs) / 1.25)
    assert found.at_anchor_s[3] == pytest.approx(found.at_anchor_s[0] / 2)


def test_a_pace_counts_as_long_as_its_prompt_is_expected_to_take():
    """Of 4 s, 3 are expected at a pace of 2 and 1 at a pace of 1: 1.75 in the mean."""
    long, short = replace(pair(3.0, 6.0), pace=2.0), pair(1.0, 1.0)
    found = compare("s", [long, short])
    measured_s = sum(one.measured.decode_s for one in (long, short))
    assert sum(found.at_anchor_s) == pytest.approx(measured_s / 1.75)
