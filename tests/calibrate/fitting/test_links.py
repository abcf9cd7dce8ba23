"""A link has the latency and the bandwidth that messages with and without features tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fitting.links import MESSAGE_CANDIDATES, MESSAGE_ROWS, link_of
from hwprofiles.profile import BYTES_PER_CANDIDATE

PAIR = ("a", "b")
PLAIN_BYTES = MESSAGE_ROWS * MESSAGE_CANDIDATES * BYTES_PER_CANDIDATE


@given(latency_s=st.floats(1e-5, 1e-2), bytes_per_s=st.floats(1e7, 1e9), feature_width=st.sampled_from([0, 700, 2048]))
def test_a_link_that_keeps_to_a_law_is_found_again_over_both_of_its_hops(latency_s, bytes_per_s, feature_width) -> None:
    features_bytes = MESSAGE_ROWS * max(feature_width, 1024) * 2
    hop_s = [latency_s + num_bytes / bytes_per_s for num_bytes in (PLAIN_BYTES, PLAIN_BYTES + features_bytes)]
    link = link_of(PAIR, (hop_s[0], hop_s[1]), feature_width, "a test")
    if features_bytes / bytes_per_s > 1e-3 * hop_s[0]:
        assert link.latency_s == pytest.approx(2 * latency_s, rel=1e-3)
        assert link.bytes_per_s == pytest.approx(bytes_per_s / 2, rel=1e-3)
    assert (link.lanes, link.source) == (PAIR, "a test")


@pytest.mark.parametrize("hop_s", [(1e-4, 1e-4), (1e-4, 5e-5), (0.0, 0.0), (0.0, 1e-3)])
def test_noise_makes_neither_a_negative_latency_nor_an_endless_bandwidth(hop_s: tuple[float, float]) -> None:
    link = link_of(PAIR, hop_s, 0, "a test")
    assert link.latency_s >= 0
    assert 0 < link.bytes_per_s < 1e16
