import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.crossings import Hop
from sim.machine.link import Link, arrival_s

TOLERANCE_S = 1e-9


def link(latency_s: float = 0.0, bytes_per_s: float = 1.0) -> Link:
    return Link(Hop("there", latency_s, bytes_per_s))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0, 5), st.floats(0.5, 50))
def test_a_saturated_link_moves_all_bytes_at_its_bandwidth_and_latency_is_paid_once_each(sizes, latency_s, bytes_per_s):
    subject = link(latency_s, bytes_per_s)
    arrivals = [subject.arrival_s(size, 0.0) for size in sizes]
    expected = [sum(sizes[: place + 1]) / bytes_per_s + latency_s for place in range(len(sizes))]
    assert arrivals == pytest.approx(expected, abs=TOLERANCE_S)


def test_a_path_passes_messages_on_whole_and_they_queue_where_paths_meet():
    """Two first hops of 3 s and 1 s into one link of 4 s and a second of latency."""
    shared = link(1.0, 1.0)
    assert arrival_s((link(0.5, 4.0), shared), 4.0, 10.0) == 10 + (1 + 0.5) + (4 + 1)
    assert arrival_s((link(0.0, 4.0), shared), 4.0, 10.0) == 15.5 + 4 + 1
    assert arrival_s((), 16.0, 10.0) == 10


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), min_size=1, max_size=6), st.floats(1, 4), st.floats(0, 3))
def test_a_wider_or_nearer_link_never_delivers_anything_later(sent, factor, latency_s):
    def arrivals(subject):
        return [subject.arrival_s(num_bytes, at_s) for at_s, num_bytes in sorted(sent)]

    known = arrivals(link(latency_s, 10.0))
    for better in (link(latency_s, 10.0 * factor), link(latency_s / factor, 10.0)):
        assert all(new <= old + TOLERANCE_S for new, old in zip(arrivals(better), known, strict=True))
