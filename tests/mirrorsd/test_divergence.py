import pytest

from decoding.messages import Verdict, Window
from decoding.trace import Round, Trace
from mirrorsd.divergence import Divergence, divergences, first_divergence


def trace(world, *rounds):
    """Rounds given as (drafted, accepted, next token, hit), at arbitrary times."""
    made = Trace(world=world)
    for index, (drafted, accepted, token, hit) in enumerate(rounds):
        shift = 0.0 if world == "simulated" else 0.25
        made.begin_round(index + shift)
        made.end_round(index + 1 + shift, Window((7,) * drafted), Verdict(accepted, token), accepted + 1)
        if hit is not None:
            made.mark_hit(hit=hit)
    return made


def test_times_do_not_matter():
    rounds = [(2, 1, 5, True), (2, 0, 6, None)]
    assert first_divergence(0, trace("simulated", *rounds), trace("measured", *rounds)) is None


@pytest.mark.parametrize("other", [(1, 1, 5, True), (2, 2, 5, True), (2, 1, 9, True), (2, 1, 5, False)])
def test_each_decision_of_a_round_matters(other):
    first, second = (2, 2, 4, True), (2, 1, 5, True)
    predicted, measured = trace("simulated", first, second), trace("measured", first, other)
    found = first_divergence(3, predicted, measured)
    assert found == Divergence(3, 1, 3, predicted.rounds[1], measured.rounds[1])


def test_a_world_that_ends_early_diverges_there():
    predicted, measured = trace("simulated", (0, 0, 4, None), (0, 0, 5, None)), trace("measured", (0, 0, 4, None))
    found = first_divergence(0, predicted, measured)
    assert found == Divergence(0, 1, 1, predicted.rounds[1], None)
    assert str(found) == (
        "prompt 1, round 2, behind 1 new tokens: predicted 0 of 0 accepted and then token 5, measured no further round"
    )


def test_a_message_tells_both_outcomes():
    hit, miss = Round(0.0, 1.0, 4, 2, 3, (2, 11), hit=True), Round(0.0, 1.0, 4, 1, 2, (1, 12), hit=False)
    assert str(Divergence(1, 0, 0, hit, miss)) == (
        "prompt 2, round 1, behind 0 new tokens: predicted 2 of 4 accepted and then token 11, hit, "
        "measured 1 of 4 accepted and then token 12, miss"
    )


def test_prompts_are_compared_one_by_one():
    same, other = (1, 1, 5, None), (1, 0, 5, None)
    predicted = [trace("simulated", same), trace("simulated", same), trace("simulated", same)]
    measured = [trace("measured", other), trace("measured", same), trace("measured", other)]
    assert [item.prompt for item in divergences(predicted, measured)] == [0, 2]
