import pytest

from calibrate.validate import TracePair, accuracy, compare, first_divergence
from decoding.errors import TraceError
from decoding.trace import Round, Span, Trace, Work

ROUNDS = ((3, 2, 3), (3, 0, 1), (3, 3, 4))
"""num_drafted, num_accepted, num_committed of a run that is the same in both worlds."""


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
        prompt="p", simulated=trace("simulated", simulated_s), measured=trace("measured", measured_s, **measured)
    )


def test_equal_decisions_at_any_speed_are_the_same_rounds() -> None:
    comparison = compare("s", [pair(1.0, 2.0)])
    assert comparison.same_rounds
    assert comparison.tpot_error == pytest.approx(-0.5)
    assert comparison.measured_tpot_s == pytest.approx(3 * 2.0 / 8)


def test_time_per_token_is_weighed_over_all_prompts() -> None:
    comparison = compare("s", [pair(1.1, 1.0), pair(1.0, 1.25)])
    assert comparison.tpot_error == pytest.approx(2.1 / 2.25 - 1)


@pytest.mark.parametrize(
    ("measured", "round_index", "position"),
    [
        ({"next_tokens": (6, 8, 9)}, 0, 0),
        ({"rounds": ((3, 2, 3), (3, 1, 2), (3, 3, 4))}, 1, 3),
        ({"rounds": ROUNDS[:2], "next_tokens": (7, 8)}, 2, 4),
        ({"rounds": (*ROUNDS, (3, 0, 1)), "next_tokens": (7, 8, 9, 9)}, 3, 8),
    ],
)
def test_the_first_differing_round_is_found(measured: dict, round_index: int, position: int) -> None:
    found = first_divergence(pair(**measured))
    assert found is not None
    assert (found.round, found.position) == (round_index, position)
    assert not compare("s", [pair(**measured)]).same_rounds


def test_a_round_that_differs_only_in_its_hit_is_a_divergence() -> None:
    other = pair()
    other.measured.rounds[1] = other.measured.rounds[1]._replace(hit=True)
    found = first_divergence(other)
    assert found is not None
    assert found.round == 1


def test_the_margin_is_that_of_the_first_token_that_can_differ() -> None:
    margins = [float(place) for place in range(8)]
    correction = first_divergence(pair(next_tokens=(6, 8, 9)), margins)
    assert correction is not None
    assert correction.margin == 2.0
    early_end = first_divergence(pair(rounds=((3, 1, 2), *ROUNDS[1:])), margins)
    assert early_end is not None
    assert early_end.margin == 1.0


def test_accuracy_sums_schedules_up_by_absolute_error() -> None:
    parts = [compare(name, [pair(seconds, 1.0)]) for name, seconds in (("a", 1.01), ("b", 0.9), ("c", 1.02))]
    total = accuracy(parts)
    assert total.median_error == pytest.approx(0.02)
    assert (total.worst_error, total.worst_schedule) == (pytest.approx(0.1), "b")
    assert total.same_rounds


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(TraceError, match="no prompt"):
        compare("s", [])
    with pytest.raises(TraceError, match="no schedule"):
        accuracy([])
    swapped = TracePair(prompt="p", simulated=trace("measured", 1), measured=trace("measured", 1))
    with pytest.raises(TraceError, match="prompt p: expected a simulated trace, found a measured one"):
        compare("s", [swapped])
    timeless = TracePair(prompt="p", simulated=trace("simulated", 0), measured=trace("measured", 1))
    with pytest.raises(TraceError, match="simulated trace has no rounds or no decode_s"):
        compare("s", [timeless])
