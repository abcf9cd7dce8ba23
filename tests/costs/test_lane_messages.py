import numpy as np
import pytest

from costs.lane_messages import Hop, Messages, crossing_s, route_of, second_arrival_s
from decoding.errors import ProfileError
from hwprofiles.profile import LinkProfile
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.records import TREES
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

LINK = LinkProfile(lanes=("draft", "target"), latency_s=0.5, bytes_per_s=16, source="by hand")
LINKED = machine(links=(LINK,), features_bytes_per_row=100)


def test_nothing_crosses_within_a_lane_or_where_no_link_is_known():
    for schedule, profile in (
        (AUTOREGRESSIVE, LINKED),
        (speculative(2, draft_lane="target"), LINKED),
        (tree(TREES[-1], 4), LINKED),
        (speculative(2), machine()),
    ):
        messages = Messages.of(schedule, profile)
        assert (messages.to_draft, messages.to_target) == ((), ())
        assert not messages.verdict_s.any()
        assert not messages.window_s.any()


def test_lanes_without_a_link_of_their_own_are_joined_over_others():
    profile = machine(
        *map(lane, ("gpu", "cpu", "npu", "far")),
        links=(
            LinkProfile(lanes=("gpu", "cpu"), latency_s=1, bytes_per_s=8, source=""),
            LinkProfile(lanes=("npu", "cpu"), latency_s=2, bytes_per_s=4, source=""),
        ),
    )
    route = route_of(profile, "gpu", "npu")
    assert route == (Hop("gpu->cpu", 1, 8), Hop("cpu->npu", 2, 4))
    assert crossing_s(route, np.array([0.0, 16.0])).tolist() == [3.0, (1 + 16 / 8) + (2 + 16 / 4)]
    assert route_of(profile, "gpu", "far") == ()


def test_nothing_crosses_between_a_group_and_its_first_device_whatever_is_linked_to_both():
    devices = {"gpus": ("gpu0", "gpu1"), "gpu0": ("gpu0",), "gpu0#2": ("gpu0",), "cpu": ("cpu",)}
    lanes = [lane(name).model_copy(update={"devices": own}) for name, own in devices.items()]
    ends = (("gpus", "cpu"), ("cpu", "gpu0"), ("gpu0", "gpu0#2"))
    profile = machine(*lanes, links=tuple(LINK.model_copy(update={"lanes": one}) for one in ends))
    assert route_of(profile, "gpus", "gpu0") == route_of(profile, "gpu0", "gpus") == ()
    assert [hop.name for hop in route_of(profile, "gpu0", "gpu0#2")] == ["gpu0->gpu0#2"], "streams are two processes"


def test_a_second_message_queues_after_the_first_on_every_link():
    """The first leaves the links at 4 and 4 + 1 + 8; the second, sent at 3, is on them at 4..5 and 13..15."""
    route = (Hop("a", 1.0, 4.0), Hop("b", 2.0, 2.0))
    arrival_s = second_arrival_s(route, (16.0, 4.0), (np.array([0.0, 0.0]), np.array([3.0, 90.0])))
    assert arrival_s.tolist() == [13.0 + 2.0 + 2.0, 90 + (1 + 1) + (2 + 2)]


def test_windows_under_the_ratio_rule_carry_what_their_tokens_were_drawn_from():
    def window_bytes(schedule):
        return Messages.of(schedule, LINKED).window_bytes

    assert window_bytes(speculative(2)) == (0, 8, 16)
    assert window_bytes(speculative(2, verification="ratio")) == (0, 8 + 64 * 8, 2 * (8 + 64 * 8))


@pytest.mark.parametrize(
    "profile",
    [
        machine(links=(LINK.model_copy(update={"bytes_per_s": 1.0}),), features_bytes_per_row=1e12),
        machine(links=(LINK.model_copy(update={"latency_s": 3600.0}),)),
    ],
)
def test_a_message_that_takes_hours_is_refused(profile):
    with pytest.raises(ProfileError, match="seconds of a message from lane 'target': at most 3600 are plausible"):
        Messages.of(mirror("exit", exit_features=True), profile)
