"""Who reads a prompt, when, and for how long; by hand, and that both simulated worlds agree is tested with them."""

from typing import Any

import pytest

from costs.prefill import PrefillTimes
from decoding.errors import OutOfRangeError, ProfileError
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Contention, LinkProfile, Profile
from sim.evaluator import Evaluator, predict
from sim.world import simulate
from tests.costs.constant_cost import ConstantCost
from tests.sim.worlds.machines import lane, machine, reading
from tests.sim.worlds.records import TREES, prompt, record
from tests.sim.worlds.schedules import AUTOREGRESSIVE, lookup, mirror, speculative, tree

DISPATCH_S = 0.5
EAGLE, STREAMS = TREES[3], TREES[-1]


def reader(name: str, **changes: Any) -> LaneProfile:
    """A token takes the target 4 s, a draft model 2 s, a head 1 s."""
    one = reading(lane(name, dispatch_s=DISPATCH_S), prefill=4, draft_prefill=2, head_prefill=1)
    return one.model_copy(update=changes)


def times(profile: Profile) -> PrefillTimes:
    return Evaluator(profile, record(prompt("1")))._tables.prefill


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        (AUTOREGRESSIVE, 40 + 0.5),
        (speculative(), 40 + 0.5),
        (mirror("exit"), 40 + 0.5),
        (speculative(exit_features=True), 40 + 20 + 2 * 0.5),
        (mirror("exit", exit_features=True), 40 + 20 + 2 * 0.5),
        (speculative(draft_lane="target"), 40 + 20 + 0.5),
        (speculative(draft_lane="target", exit_features=True), 40 + 20 + 2 * 0.5),
        (tree(EAGLE, 4), 40 + 10 + 2 * 0.5),
        (tree(EAGLE, 4, draft_lane="target"), 40 + 10 + 2 * 0.5),
        (tree(STREAMS, 4), 40 + 0.5),
        (lookup(), 40 + 0.5),
        (lookup(draft_lane="draft"), 40 + 0.5),
    ],
)
def test_all_tokens_but_the_last_are_read_at_once_in_turn_or_one_after_the_other(schedule, seconds):
    assert times(machine(reader("target"), reader("draft"))).seconds(schedule, [11, 11]) == [seconds] * 2


def test_two_readers_slow_each_other_until_one_has_read():
    pair = Contention(lanes=("target", "draft"), slowdown=(2.0, 1.5), source="by hand")
    found = times(machine(reader("target"), reader("draft"), contention=(pair,)))
    # the draft reads 20 s of work in 30 s, in which the target does 15 s of its 40 s
    assert found.seconds(speculative(), [11]) == [30 + 25 + 0.5]
    assert found.seconds(speculative(exit_features=True), [11]) == [61], "never at once"


def test_the_last_of_two_readers_goes_on_alone_whichever_it_is():
    pair = Contention(lanes=("target", "draft"), slowdown=(1.5, 2.0), source="by hand")
    slow = reading(lane("draft"), prefill=1, draft_prefill=8, head_prefill=1)
    found = times(machine(reader("target"), slow, contention=(pair,)))
    # the target reads 40 s of work in 60 s, in which the draft does 30 s of its 80 s
    assert found.seconds(speculative(), [11]) == [60 + 50]


def test_a_group_reads_before_its_first_device_does_and_two_streams_read_at_once():
    def first_token_s(target: tuple[str, ...], draft: tuple[str, ...]) -> float:
        lanes = (reader("target", devices=target), reader("draft", devices=draft, dispatch_s=0.75))
        return times(machine(*lanes)).seconds(speculative(), [11])[0]

    assert first_token_s(("gpu0", "gpu1"), ("gpu0",)) == 40 + 20 + 0.75
    assert first_token_s(("gpu0",), ("gpu0",)) == first_token_s(("gpu0",), ("gpu1",)) == 40 + 0.5


def test_a_prompt_of_one_token_leaves_nothing_to_read():
    found = times(machine(reader("target"), reader("draft")))
    assert found.seconds(speculative(), [1]) == [DISPATCH_S]
    assert times(machine()).known(speculative(), [1]) is None, "unless reading was not measured at all"


def test_states_of_the_prompt_cross_to_a_reader_on_another_lane():
    link = LinkProfile(lanes=("target", "draft"), latency_s=3, bytes_per_s=8, source="by hand")
    lanes = reader("target"), reader("draft")
    found, known = times(machine(*lanes, links=(link,), features_bytes_per_row=4)), times(machine(*lanes))
    for schedule in (speculative(exit_features=True), tree(EAGLE, 4)):
        [with_link], [without] = found.seconds(schedule, [11]), known.seconds(schedule, [11])
        assert with_link - without == 3 + 10 * 4 / 8
        assert found.seconds(schedule, [1]) == known.seconds(schedule, [1]), "no token, no message"
    for schedule in (speculative(), AUTOREGRESSIVE, speculative(draft_lane="target", exit_features=True)):
        assert found.seconds(schedule, [11]) == known.seconds(schedule, [11])


def test_what_was_not_measured_is_named_and_never_guessed():
    blind = reader("draft", draft_prefill=None, head_prefill={})
    found = times(machine(reader("target"), blind))
    assert found.known(AUTOREGRESSIVE, [11]) is not None
    for schedule, what in (
        (speculative(), "lane 'draft' has no measured draft_prefill; measured there: "),
        (tree(EAGLE, 4), "lane 'draft' has no measured head prefill of head; measured there: "),
    ):
        assert found.known(schedule, [11]) is None
        with pytest.raises(ProfileError, match=what):
            found.seconds(schedule, [11])
    with pytest.raises(OutOfRangeError, match="prefill on lane 'target': more than 200 rows were not measured"):
        found.seconds(AUTOREGRESSIVE, [201, 202])


def test_one_prompt_that_is_too_long_leaves_decoding_as_it_is():
    profile = machine(reader("target"), reader("draft"))
    texts = record(prompt("1010", prompt_length=5), prompt("1010", prompt_length=300))
    found, known = (
        predict(speculative(), profile, texts),
        predict(speculative(), machine(*map(lane, ("target", "draft")), round_overhead_s=0), texts),
    )
    assert found.prefill_s is None
    assert found.num_rounds == known.num_rounds
    assert [trace.prefill_s for trace in simulate(speculative(), profile, texts)] == [None, None]


def test_other_cost_models_replace_a_lane_here_too():
    cost = ConstantCost({"layer": 0.5, "lm_head": 2.0, "prefill": 3.0})
    [trace] = simulate(AUTOREGRESSIVE, machine(), record(prompt("0", prompt_length=4)), costs={"target": cost})
    assert (trace.prefill_s, trace.decode_s) == (3, 7)
