"""How far a profile reaches, and what is said of texts within and beyond."""

from dataclasses import replace

import pytest

from decoding.errors import OutOfRangeError
from hwprofiles.profile import Anchor
from mirrorsd.compare.validate_pair import calibrated_contexts, reach_in_words, require_reach
from tests.planner.synthetic import acceptance_record, machine

LANES = ("target", "draft")


def narrowed(profile, **contexts):
    """The profile with the target's layers of some lanes timed for these contexts."""
    return profile.model_copy(
        update={
            "lanes": tuple(
                lane.model_copy(update={"layer": lane.layer.model_copy(update={"contexts": contexts[lane.name]})})
                if lane.name in contexts
                else lane
                for lane in profile.lanes
            )
        }
    )


def record_of(prompt_length, num_tokens):
    record = acceptance_record(num_prompts=1, num_tokens=num_tokens)
    return replace(record, prompts=(replace(record.prompts[0], prompt_length=prompt_length),))


def test_a_range_is_what_all_lanes_in_use_were_calibrated_for():
    profile = narrowed(machine(), target=(10, 50, 400), draft=(20, 50, 500), both=(300, 310, 320))
    assert calibrated_contexts(profile, LANES) == (20, 400)
    assert calibrated_contexts(profile, ["both"]) == (300, 320)


@pytest.mark.parametrize(("prompt_length", "num_tokens"), [(21, 60), (342, 60), (200, 202)])
def test_texts_that_lie_within_are_let_through(prompt_length, num_tokens):
    """The first round begins with all but one token of the prompt cached, the last with all but one of the text."""
    require_reach(narrowed(machine(), target=(20, 50, 400)), record_of(prompt_length, num_tokens), ["target"])


@pytest.mark.parametrize(("prompt_length", "num_tokens"), [(20, 60), (343, 60), (200, 203)])
def test_texts_beyond_are_refused_and_the_error_names_the_command(prompt_length, num_tokens):
    profile, record = narrowed(machine(), target=(20, 50, 400)), record_of(prompt_length, num_tokens)
    said = rf"long.npz: .* p.yaml was calibrated for 20 to 400: .*`mirrorsd calibrate` .*--max-new-tokens {num_tokens}$"
    with pytest.raises(OutOfRangeError, match=said):
        require_reach(profile, record, ["target"], sides=("p.yaml", "long.npz"))


def test_one_context_serves_for_all():
    profile = narrowed(machine(), target=(64,), draft=(64,))
    assert calibrated_contexts(profile, LANES) is None
    require_reach(profile, record_of(5000, 60), LANES)


def test_what_was_measured_says_for_what_contexts_and_that_it_has_not_seen_the_texts():
    profile = machine()
    anchored = profile.lanes[0].model_copy(update={"anchor": Anchor(context=64, seconds=0.03)})
    measured = profile.model_copy(update={"lanes": (anchored, *profile.lanes[1:])})
    assert reach_in_words(measured, record_of(200, 60), LANES) == (
        "The profile was calibrated on made-up text with 0 to 2,048 cached tokens: it has seen none of these prompts "
        "and answers, which have 199 to 258."
    )
    assert reach_in_words(profile, record_of(200, 60), LANES) is None, "nobody measured it"
