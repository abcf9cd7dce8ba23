"""A link has the latency and the bandwidth that messages with and without features tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.lane_pairs import link_of, message_costs
from hwprofiles.profile import BYTES_PER_CANDIDATE
from runtime.wire.operations import Answer
from runtime.worker.server import LaneServer
from tests.calibrate.profiling.fake_machine.lanes import Done

PAIR = ("a", "b")
PLAIN_BYTES = 5 * 9 * BYTES_PER_CANDIDATE


def features_bytes(width: int) -> int:
    return 2 * 5 * max(width, 1024)


class PingedLane:
    """A lane whose pings take one second, another one for each kilobyte, and whatever is added to single ones."""

    def __init__(self, disturbed: dict[int, float]) -> None:
        self.disturbed, self.asked, self.now_s = disturbed, list[int](), 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def request(self, method, load) -> Done:
        assert method is LaneServer.ping
        num_bytes = sum(len(block.data) for block in load)
        self.now_s += 1 + num_bytes / 1000 + self.disturbed.get(len(self.asked), 0.0)
        self.asked.append(num_bytes)
        return Done(Answer(None, 0.0, 0.0))


@pytest.mark.parametrize("disturbed", [{}, {0: 9.0, 4: 9.0, 8: 9.0, 13: 9.0}])
def test_a_message_costs_what_it_takes_beyond_an_empty_one(monkeypatch, disturbed):
    """The slowest tenth of each kind does not count."""
    lane = PingedLane(disturbed)
    monkeypatch.setattr("calibrate.profiling.lane_pairs.time", lane)
    assert message_costs(lane, 2048) == pytest.approx([(PLAIN_BYTES + more) / 1000 for more in (0, 2 * 5 * 2048)])
    assert lane.asked == [0, PLAIN_BYTES, PLAIN_BYTES + 2 * 5 * 2048] * 40


def test_a_message_never_costs_less_than_nothing(monkeypatch):
    """Where an empty message happens to take longer, the difference is noise."""
    lane = PingedLane(dict.fromkeys(range(0, 120, 3), 20.0))
    monkeypatch.setattr("calibrate.profiling.lane_pairs.time", lane)
    assert message_costs(lane, 0) == (0.0, 0.0)


@given(latency_s=st.floats(1e-5, 1e-2), bytes_per_s=st.floats(1e7, 1e9), feature_width=st.sampled_from([0, 700, 2048]))
def test_a_link_that_keeps_to_a_law_is_found_again_over_both_of_its_hops(latency_s, bytes_per_s, feature_width):
    loaded_bytes = features_bytes(feature_width)
    hop_s = [latency_s + num_bytes / bytes_per_s for num_bytes in (PLAIN_BYTES, PLAIN_BYTES + loaded_bytes)]
    link = link_of(PAIR, (hop_s[0], hop_s[1]), feature_width, "a test")
    if loaded_bytes / bytes_per_s > 1e-3 * hop_s[0]:
        assert link.latency_s == pytest.approx(2 * latency_s, rel=1e-3)
        assert link.bytes_per_s == pytest.approx(bytes_per_s / 2, rel=1e-3)
    assert (link.lanes, link.source) == (PAIR, "a test")


@pytest.mark.parametrize("hop_s", [(1e-4, 1e-4), (1e-4, 5e-5), (0.0, 0.0), (0.0, 1e-3)])
def test_noise_makes_neither_a_negative_latency_nor_an_endless_bandwidth(hop_s):
    link = link_of(PAIR, hop_s, 0, "a test")
    assert link.latency_s >= 0
    assert 0 < link.bytes_per_s < 1e16
